// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// write writes a file and returns its name.
func write(t *testing.T, text string) string {
	name := filepath.Join(t.TempDir(), "flow.json")
	try.OK(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// twoGroups returns a graph of 100 numbers in the groups "a" and "b".
func twoGroups(t *testing.T, k *collector[int]) *Graph {
	src, pass, sink := count(100), pass[int]("P"), k.sink("K")
	g := try.Get(New("two", Pipeline3(src, pass, sink)))(t)
	try.OK(t, errors.Join(g.Group("a", src), g.Group("b", pass, sink)))
	return g
}

const twoConfig = `{"groups": [{"name": "a", "endpoint": "localhost:8004", "batchSize": 3, "batchByteSize": "2k",
	"batchDelay": "2ms", "messageOTF": 5, "policy": "OnDemand(2)"}, {"name": "b"}]}`

// Flags are taken out of the arguments, with a value behind = or in the next argument.
func TestParseFlags(t *testing.T) {
	config := write(t, twoConfig)
	for _, args := range [][]string{
		{"x", "--DFF_Config=" + config, "-y", "--DFF_GName=a", "z"},
		{"--DFF_Config", config, "x", "-y", "z", "--DFF_GName", "a"},
	} {
		l, rest, err := ParseFlags(args)
		try.OK(t, err)
		try.Equal(t, strings.Join(rest, " "), "x -y z")
		try.Equal(t, l.Group, "a")
		c := l.Config
		if c.BatchItems != 3 || c.BatchBytes != 2048 || c.BatchDelay.Milliseconds() != 2 || c.Window != 5 || c.Policy != OnDemand(2) {
			t.Errorf("%+v", c)
		}
	}
	_, rest, err := ParseFlags([]string{"x", "--", "--DFF_GName=a"})
	try.OK(t, err)
	try.Equal(t, len(rest), 3)
}

// Wrong flags are errors.
func TestParseWrongFlags(t *testing.T) {
	config := write(t, twoConfig)
	for _, c := range []struct{ args, says string }{
		{"--DFF_GName", "the flag --DFF_GName has no value"},
		{"--DFF_GName=", "the value of --DFF_GName is empty"},
		{"--DFF_Config=" + config, "is given without a group"},
		{"--DFF_GName=c --DFF_Config=" + config, config + `: groups: no group has the name "c"`},
		{"--DFF_GName=a --DFF_Config=none.json", "none.json: no such file or directory"},
	} {
		_, _, err := ParseFlags(strings.Fields(c.args))
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

// The environment says what flags do not say.
func TestEnvironment(t *testing.T) {
	t.Setenv("ROCL_FLOW_GROUP", "a")
	t.Setenv("ROCL_FLOW_RUN", "r17")
	t.Setenv("ROCL_FLOW_FILE", "f.json")
	t.Setenv("ROCL_FLOW_CONFIG", twoConfig)
	l, _, err := ParseFlags(nil)
	try.OK(t, err)
	if l.Group != "a" || l.Config.Run != "r17" || l.Config.BatchItems != 3 {
		t.Errorf("%+v", l)
	}
	l, _, err = ParseFlags([]string{"--DFF_GName=b"})
	try.OK(t, err)
	if l.Group != "b" || l.Config.BatchItems != 0 {
		t.Errorf("%+v", l)
	}
	t.Setenv("ROCL_FLOW_CONFIG", "{")
	_, _, err = ParseFlags(nil)
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "f.json: line 1: ") {
		t.Errorf("%v", err)
	}
}

// Without a group the whole graph runs in this process.
func TestLaunchWhole(t *testing.T) {
	var k collector[int]
	l, _, err := ParseFlags(nil)
	try.OK(t, err)
	try.OK(t, l.Run(t.Context(), twoGroups(t, &k)))
	checkNumbers(t, k.values("K"), 100)
}

// Groups that a launcher has started find each other, with every protocol of a
// configuration.
func TestLaunchGroups(t *testing.T) {
	for _, protocol := range []string{`"protocol": "TCP",`, `"protocol": "SHM",`, `"protocol": "MPI",`, ""} {
		var k collector[int]
		config := write(t, strings.Replace(twoConfig, "{", "{"+protocol, 1))
		socket := rocl.WithSocket(filepath.Join(t.TempDir(), "s"))
		errs := make(chan error, 2)
		for _, group := range []string{"a", "b"} {
			l, _, err := ParseFlags([]string{"--DFF_Config", config, "--DFF_GName", group})
			try.OK(t, err)
			g := twoGroups(t, &k)
			go func() { errs <- l.Run(t.Context(), g, socket) }()
		}
		try.OK(t, errors.Join(<-errs, <-errs), protocol)
		checkNumbers(t, k.values("K"), 100)
	}
}

// A configuration whose groups are not those of the graph is refused.
func TestLaunchRefused(t *testing.T) {
	var k collector[int]
	for _, c := range []struct{ config, says string }{
		{`{"groups": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}`, `: groups[2].name: the program has no group "c"; its groups are ["a" "b"]`},
		{`{"groups": [{"name": "a"}]}`, `: groups: the group "b" of the program is missing`},
		{`{"groups": [{"name": "a", "threadMapping": "1023"}, {"name": "b"}]}`, `: threadMapping: group "a": processors [1023]: invalid argument`},
	} {
		l, _, err := ParseFlags([]string{"--DFF_GName=a", "--DFF_Config=" + write(t, c.config)})
		try.OK(t, err)
		err = l.Run(t.Context(), twoGroups(t, &k))
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, not %s", err, c.says)
		}
	}
	l, _, err := ParseFlags([]string{"--DFF_GName=c"})
	try.OK(t, err)
	try.Fails(l.Run(t.Context(), twoGroups(t, &k)))(t, ErrGroup)
	l.Group, l.Config.Policy = "a", Broadcast
	try.Fails(l.Run(t.Context(), twoGroups(t, &k), rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t, ErrGraph)
}

// A dry run writes the groups with their nodes, in the form of a configuration, and runs nothing.
func TestDryRun(t *testing.T) {
	var k collector[int]
	at := filepath.Join(t.TempDir(), "groups.json")
	l, _, err := ParseFlags([]string{"--DFF_dryrun", at})
	try.OK(t, err)
	try.OK(t, l.Run(t.Context(), twoGroups(t, &k)))
	try.Equal(t, len(k.values("K")), 0)
	text := string(try.Get(os.ReadFile(at))(t))
	for _, says := range []string{`"name": "a"`, `"P",`, `"K"`} {
		if !strings.Contains(text, says) {
			t.Errorf("%s\nhas no %s", text, says)
		}
	}
	for _, group := range []string{"a", "b"} {
		_, _, err := ParseFlags([]string{"--DFF_Config", at, "--DFF_GName", group})
		try.OK(t, err)
	}
}

// Without a group a graph with an elastic farm finds its workers.
func TestLaunchElastic(t *testing.T) {
	var k collector[int]
	socket := rocl.WithSocket(filepath.Join(t.TempDir(), "s"))
	c := try.Get(rocl.Open(t.Context(), socket))(t)
	defer c.Close()
	worked := make(chan error)
	go func() {
		worked <- Work(t.Context(), c, WorkFor{Graph: "elastic", Farm: "F"}, Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			return out.Send(ctx, in.Value)
		}))
	}()
	l, _, err := ParseFlags(nil)
	try.OK(t, err)
	try.OK(t, l.Run(t.Context(), elasticGraph(t, 20, &k), socket))
	checkNumbers(t, k.values("K"), 20)
	try.OK(t, <-worked)
}

// A configuration sets batches, the window and the policy of a group.
func TestConfigCounts(t *testing.T) {
	release := make(chan struct{})
	src, sink := count(100), held(release)
	g := try.Get(New("counts", Pipeline(src, sink)))(t)
	try.OK(t, errors.Join(g.Group("a", src), g.Group("b", sink)))
	cluster := rocltest.Cluster(t, 1)
	var wg sync.WaitGroup
	run := func(name string, cfg Config) {
		c := cluster.Open(0)
		wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(c, name, cfg))) })
	}
	run("a", Config{BatchItems: 3, BatchDelay: time.Hour, Window: 6})
	run("b", Config{})
	var s EdgeStats
	eventually.True(t, "the source waits for credit, and the sink has taken 4 items", func() bool {
		for _, s = range g.Stats() {
			if s.Group == "a" {
				return s.Sent >= 9 && s.Waits > 0
			}
		}
		return false
	})
	if s.Sent > 6+4 || s.Batches < s.Sent/3 || s.Batches == s.Sent { // a sender that waits lets a batch leave that is not full
		t.Errorf("%+v", s)
	}
	close(release)
	wg.Wait()
}

// The policy of a configuration replaces that of the nodes, but for one that belongs to the graph.
func TestConfigPolicy(t *testing.T) {
	for _, c := range []struct {
		program  Choice
		cfg      Config
		isShared bool
	}{
		{PreferLocal, Config{}, false},
		{PreferLocal, Config{Policy: RoundRobin}, true},
		{ByKey(func(int) uint64 { return 0 }), Config{Policy: RoundRobin}, false},
	} {
		var k collector[int]
		src, k0, k1 := count(100, Policy(c.program)), k.sink("K0"), k.sink("K1")
		g := try.Get(New("policy", AllToAll([]Part[None, int]{src}, []Part[int, None]{k0, k1})))(t)
		try.OK(t, errors.Join(g.Group("a", src, k0), g.Group("b", k1)))
		cluster := rocltest.Cluster(t, 1)
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			rc := cluster.Open(0)
			wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(rc, name, c.cfg))) })
		}
		wg.Wait()
		want := 0
		if c.isShared {
			want = 50
		}
		try.Equal(t, len(k.values("K1")), want, "items of the other group")
	}
}
