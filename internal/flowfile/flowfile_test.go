// SPDX-License-Identifier: Apache-2.0

package flowfile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// theirs yields FastFlow's own configurations.
func theirs(t testing.TB) map[string]string {
	text := string(try.Get(os.ReadFile("testdata/fastflow.txt"))(t))
	files := map[string]string{}
	for part := range strings.SplitSeq(text, "\n-- ") {
		if name, body, ok := strings.Cut(part, " --\n"); ok {
			files[name] = body
		}
	}
	return files
}

// Promise (Dataflow): FastFlow's configuration files load unchanged.
func TestTheirFiles(t *testing.T) {
	files := theirs(t)
	try.Equal(t, len(files), 37, "files")
	for name, text := range files {
		f, err := Parse(name, []byte(text))
		try.OK(t, err)
		if len(f.Groups) < 2 {
			t.Errorf("%s: %d groups", name, len(f.Groups))
		}
	}
	f := try.Get(Parse("17", []byte(files["test_group17.json"])))(t)
	if !reflect.DeepEqual(f.Groups[0], Group{Name: "G1", Host: "localhost", BatchItems: 2, Window: 1}) {
		t.Errorf("%+v", f.Groups[0])
	}
}

// Every key is read.
func TestKeys(t *testing.T) {
	f := try.Get(Parse("f", []byte(`{"protocol": "SHM", "groups": [{"name": "work", "endpoint": "[::1]:7001", "batchSize": 64,
		"batchByteSize": "256K", "batchDelay": "250us", "messageOTF": 8, "threadMapping": "0, 3", "preCmd": "nice -n 5",
		"policy": "OnDemand(4)", "env": {"A": "b=c", "EMPTY": ""}}, {"name": "read", "policy": "PreferLocal"}]}`)))(t)
	try.Equal(t, f.Protocol, "SHM")
	want := Group{
		Name: "work", Host: "::1", BatchItems: 64, BatchBytes: 256 << 10, BatchDelay: 250 * time.Microsecond, Window: 8,
		Cores: []int{0, 3}, PreCmd: "nice -n 5", Policy: "OnDemand", Demand: 4, Env: []string{"A=b=c", "EMPTY="},
	}
	if got := try.Get(f.Group("work"))(t); !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v", *got)
	}
	try.Equal(t, f.Groups[1].Policy, "PreferLocal")
	try.Fails(f.Group("none"))(t, ErrConfig)
	try.OK(t, f.Match([]string{"read", "work"}))
	for _, c := range []struct{ program, says string }{
		{"read", `dataflow: f: groups[0].name: the program has no group "work"; its groups are ["read"]`},
		{"read work more", `dataflow: f: groups: the group "more" of the program is missing`},
	} {
		if err := f.Match(strings.Fields(c.program)); !errors.Is(err, ErrConfig) || err.Error() != c.says {
			t.Errorf("%v, not %s", err, c.says)
		}
	}
}

// group returns a configuration of one group with more text in it.
func group(more string) string { return `{"groups": [{"name": "a", ` + more + `}]}` }

// A wrong configuration is refused with the file, the key and the reason.
func TestWrongFiles(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"", "f: the file is empty"},
		{"{\n\"groups\": [}", "f: line 2: the JSON is broken: "},
		{"{\n\n\"groups\": [", "f: line 3: the JSON is cut off"},
		{`{"groups": [{"name": "a"}]} {}`, "f: line 1: there is more text behind the object"},
		{`[]`, "f: [] is not an object"},
		{`{}`, "f: groups: the key is missing"},
		{`{"groups": []}`, "f: groups: the list is empty"},
		{`{"groups": null}`, "f: groups: null is not a list"},
		{`{"groups": [1]}`, "f: groups[0]: 1 is not an object"},
		{`{"groups": [{"endpoint": "h:1"}]}`, "f: groups[0].name: the key is missing"},
		{`{"groups": [{"name": ""}]}`, "f: groups[0].name: the text is empty"},
		{`{"groups": [{"name": 7}]}`, "f: groups[0].name: 7 is not a text"},
		{`{"groups": [{"name": "a"}, {"name": "a"}]}`, `f: groups[1].name: two groups have the name "a"`},
		{`{"groups": [{"name": "a", "name": "b"}]}`, "f: groups[0].name: the key stands there twice"},
		{`{"group": []}`, "f: group: the key is unknown; the keys are protocol, groups"},
		{`{"Groups": []}`, `f: Groups: the key is unknown; it is written "groups"`},
		{`{"protocol": "UDP", "groups": [{"name": "a"}]}`, `f: protocol: "UDP" is unknown; it can be TCP, MPI, UCX, MQTT, MPIP2P, SHM`},
		{`{"protocol": "tcp", "groups": [{"name": "a"}]}`, `f: protocol: "tcp" is unknown`},
		{group(`"batchsize": 3`), `f: groups[0].batchsize: the key is unknown; it is written "batchSize"`},
		{group(`"color": 3`), "f: groups[0].color: the key is unknown; the keys are name, endpoint, "},
		{group(`"endpoint": "node1"`), `f: groups[0].endpoint: "node1" is not host:port`},
		{group(`"endpoint": "node1:"`), `f: groups[0].endpoint: the port of "node1:" is not a number from 1 to 65535`},
		{group(`"endpoint": "node1:70000"`), `f: groups[0].endpoint: the port of "node1:70000" is not`},
		{group(`"endpoint": "-oProxyCommand=x:1"`), `f: groups[0].endpoint: "-oProxyCommand=x" is not the name of a host`},
		{group(`"batchSize": 0`), "f: groups[0].batchSize: 0 is not a whole number from 1 to 2147483647"},
		{group(`"batchSize": "8"`), `f: groups[0].batchSize: "8" is not a whole number`},
		{group(`"batchSize": 1.5`), "f: groups[0].batchSize: 1.5 is not a whole number"},
		{group(`"messageOTF": -1`), "f: groups[0].messageOTF: -1 is not a whole number"},
		{group(`"batchByteSize": 256`), `f: groups[0].batchByteSize: 256 is not a text such as "65536" or "256k"`},
		{group(`"batchByteSize": "256q"`), `f: groups[0].batchByteSize: "256q" is not digits with an optional k, m or g`},
		{group(`"batchByteSize": "k"`), `f: groups[0].batchByteSize: "k" is not digits`},
		{group(`"batchByteSize": "0k"`), `f: groups[0].batchByteSize: "0k" is not more than zero`},
		{group(`"batchByteSize": "9g"`), `f: groups[0].batchByteSize: "9g" is more than 2g`},
		{group(`"batchDelay": 1`), "f: groups[0].batchDelay: 1 is not a text"},
		{group(`"batchDelay": "1"`), `f: groups[0].batchDelay: "1" is not a duration above zero, such as "1ms"`},
		{group(`"threadMapping": "0,x"`), `f: groups[0].threadMapping: "0,x" is not a list of processors`},
		{group(`"policy": "ByKey"`), `f: groups[0].policy: "ByKey" is not Balanced, RoundRobin, PreferLocal or OnDemand(n)`},
		{group(`"policy": "OnDemand"`), `f: groups[0].policy: "OnDemand" is not`},
		{group(`"policy": "OnDemand(0)"`), `f: groups[0].policy: "OnDemand(0)" is not`},
		{group(`"policy": "OnDemand(2"`), `f: groups[0].policy: "OnDemand(2" is not`},
		{group(`"policy": "Balanced)"`), `f: groups[0].policy: "Balanced)" is not`},
		{group(`"env": {"A": 1}`), "f: groups[0].env.A: 1 is not a text"},
		{group(`"env": {"A=B": "1"}`), `f: groups[0].env.A=B: "A=B" is no variable of the environment`},
		{group(`"env": ["A=1"]`), `f: groups[0].env: ["A=1"] is not an object`},
	} {
		f, err := Parse("f", []byte(c.text))
		if f != nil || !errors.Is(err, ErrConfig) || !strings.HasPrefix(err.Error(), "dataflow: "+c.says) {
			t.Errorf("%s\n gives %v\n   not %s", c.text, err, c.says)
		}
	}
	none := filepath.Join(t.TempDir(), "none.json")
	if _, err := Read(none); !errors.Is(err, os.ErrNotExist) || err.Error() != "dataflow: "+none+": no such file or directory" {
		t.Errorf("no file: %v", err)
	}
}

// No text makes Parse panic, and what it accepts has valid groups.
func FuzzParse(f *testing.F) {
	for _, text := range theirs(f) {
		f.Add([]byte(text))
	}
	f.Add([]byte(group(`"batchByteSize": "256k", "policy": "OnDemand(3)", "env": {"A": "1"}, "threadMapping": "0,1", "batchDelay": "1ms"`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f", text)
		if err != nil {
			try.Fails(err)(t, ErrConfig)
			return
		}
		names := map[string]bool{}
		for _, g := range c.Groups {
			if g.Name == "" || names[g.Name] || g.BatchItems < 0 || g.BatchBytes < 0 || g.BatchDelay < 0 || g.Window < 0 {
				t.Errorf("%s gives %+v", text, g)
			}
			names[g.Name] = true
		}
		if len(names) == 0 {
			t.Errorf("%s gives no group", text)
		}
	})
}
