// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/spf13/pflag"
)

// A sight is what a run of a bench has done.
type sight struct {
	rows  []*Result
	pairs []config
	sent  map[string]uint64 // messages of this process, by transport
	bytes uint64            // sent and received
	work  uint64            // messages sent and received, and questions to the directory
	most  int               // sending resources
}

// counted returns the sum of the counts of all rows.
func (s *sight) counted() (n int) {
	for _, r := range s.rows {
		n += r.Count
	}
	return n
}

// all reports whether f is true of every row.
func (s *sight) all(f func(*Result) bool) bool {
	for _, r := range s.rows {
		if !f(r) {
			return false
		}
	}
	return len(s.rows) > 0
}

// seen runs a bench.
func seen(t *testing.T, line string) *sight {
	t.Helper()
	s := &sight{sent: map[string]uint64{}}
	b, o, err := parse(line)
	try.OK(t, err, line)
	o.opened = func(p *pair) {
		s.pairs = append(s.pairs, p.config)
		p.add(func() {
			stats := p.c.Stats()
			for _, side := range []map[string]uint64{stats.Sent, stats.Received} {
				for transport, n := range side {
					s.sent[transport] += n
					s.work += n
				}
			}
			s.work += stats.Questions
			s.bytes += stats.SentBytes + stats.ReceivedBytes
			s.most = max(s.most, len(p.senders))
		})
	}
	s.rows = try.Get(b.measure(t.Context(), o))(t, line)
	return s
}

// smallRuns are the flags of each bench with which it takes little time.
var smallRuns = map[string]string{
	"rtt":     "--transport inproc --poll adaptive --count 20 --rounds 1",
	"call":    "--transport inproc --poll adaptive --count 20 --rounds 1",
	"rate":    "--transport inproc --count 20 --rounds 1",
	"cpu":     "--transport inproc --count 20 --rounds 1",
	"bw":      "--transport shm --size 4096 --count 4 --rounds 1",
	"db":      "--count 1000",
	"pairs":   "--transport shm --count 3",
	"find":    "--count 10 --rounds 1",
	"findall": "--count 10 --rounds 1",
	"tpvm":    "--count 16 --rounds 1",
	"rpc":     "--count 16 --rounds 1",
	"flow":    "--transport shm --count 20 --rounds 1",
	"kit":     "--only pick --count 16 --rounds 1",
	"see":     "--count 20 --rounds 1",
	"bulk":    "--transport shm --only view --size 1000000 --count 1 --rounds 1",
}

// An effect is the value that a test gives a flag, further flags that the value needs, and what
// must differ from a run without it.
type effect struct {
	value, with string
	shows       func(without, with *sight, value string) bool
}

func inRows(field func(*Result) string) func(_, with *sight, value string) bool {
	return func(_, with *sight, value string) bool {
		return with.all(func(r *Result) bool { return field(r) == value })
	}
}

// effects are those of the flags of all benches, by flag, or by bench and flag where they differ.
var effects = map[string]effect{
	"count": {"40", "", func(without, with *sight, _ string) bool { return with.counted() > without.counted() }},
	"size": {"128", "", func(without, with *sight, _ string) bool {
		return (len(with.pairs) == 0 || with.bytes > without.bytes) && strings.Contains(with.rows[0].name(), "128 B")
	}},
	"rounds": {"3", "", func(without, with *sight, _ string) bool { return with.work > without.work }},
	"poll": {"never", "", func(without, with *sight, value string) bool {
		return without.pairs[0].Poll != value && with.pairs[0].Poll == value
	}},
	"transport": {"tcp", "", func(without, with *sight, value string) bool {
		return with.all(func(r *Result) bool { return r.Transport == value }) && (len(with.pairs) == 0 || with.sent[value] > 0 && without.sent[value] == 0)
	}},
	"senders": {"3", "", func(without, with *sight, _ string) bool { return without.most == 1 && with.most == 3 }},
	"receive": {"messages", "", inRows(func(r *Result) string { return r.Receive })},
	"procs":   {"1", "", inRows(func(r *Result) string { return strconv.Itoa(r.Procs) })}, // TestPlace shows that the loop has them
	"inflight": {"4", "", func(_, with *sight, _ string) bool {
		return with.rows[0].InFlight == 4 && with.rows[0].Unit == "calls/s"
	}},
	"idle":   {"3", "--transport shm", inRows(func(r *Result) string { return strconv.Itoa(r.Idle) })},
	"server": {"goroutine", "--transport shm", inRows(func(r *Result) string { return strings.TrimPrefix(r.Bench, "rtt server=") })},
	"nodes":  {"2", "", inRows(func(r *Result) string { return strconv.Itoa(r.Nodes) })},
	"sealed": {"true", "--nodes 2", func(_, with *sight, _ string) bool { return with.pairs[0].Key != "" && with.rows[0].Sealed }},
	"resources": {"100", "", func(_, with *sight, _ string) bool {
		return with.rows[0].Resources == 100 && with.pairs[0].Role == isDirectory
	}},

	"pairs count": {"4", "", func(without, with *sight, _ string) bool {
		return without.rows[0].Count == 3 && with.rows[0].Count == 6
	}}, // pairs of contexts
	"db count": {"2000", "", func(_, with *sight, _ string) bool { return with.rows[0].Count == 2000 }},
	"bw size": {"8192", "", func(without, with *sight, _ string) bool {
		return with.rows[0].Size == 8192 && with.bytes > without.bytes
	}},
	"rpc size": {"128", "", func(without, with *sight, _ string) bool {
		return with.bytes > without.bytes && strings.Contains(with.rows[0].What, "128 bytes")
	}},
	"tpvm size": {"128", "", func(without, with *sight, _ string) bool { // the bytes of all its rows vary
		return without.pairs[0].Size == 64 && with.pairs[0].Size == 128 && with.rows[0].Size == 128
	}},
	"pairs transport": {"tcp", "", inRows(func(r *Result) string { return r.Transport })},
	"bulk size":       {"4096", "", inRows(func(r *Result) string { return strconv.Itoa(r.Size) })},
	"bulk transport":  {"tcp", "--only call --size 4096", inRows(func(r *Result) string { return r.Transport })},
	"kit rounds":      {"3", "", func(without, with *sight, _ string) bool { return with.counted() > without.counted() }},
	"kit only": {"pick", "", func(_, with *sight, _ string) bool {
		return with.all(func(r *Result) bool { return strings.HasPrefix(r.Bench, "kit pick ") })
	}},
	"bulk only": {"call", "--size 4096", func(_, with *sight, _ string) bool {
		return with.all(func(r *Result) bool { return strings.HasSuffix(r.Bench, "in a call") })
	}},
}

// Each flag of each bench changes what its help says. A flag without an effect here fails the test.
func TestFlags(t *testing.T) {
	if testing.Short() {
		t.Skip("TestSmoke runs the same benches")
	}
	for _, b := range benches {
		t.Run(b.name, func(t *testing.T) {
			line := b.name + " " + smallRuns[b.name]
			without := seen(t, line)
			f := pflag.NewFlagSet(b.name, pflag.ContinueOnError)
			b.define(f)
			f.VisitAll(func(flag *pflag.Flag) {
				if flag.Name == "full" { // its clients take too long for a test
					size, memory := clientSizes(true)
					if less, some := clientSizes(false); size <= less || memory <= some {
						t.Errorf("--full: %d bytes in %d", size, memory)
					}
					return
				}
				e, ok := effects[b.name+" "+flag.Name]
				if !ok {
					e, ok = effects[flag.Name]
				}
				if !ok {
					t.Fatalf("nothing shows the effect of --%s", flag.Name)
				}
				with := seen(t, line+" "+e.with+" --"+flag.Name+"="+e.value)
				if !e.shows(without, with, e.value) {
					t.Errorf("--%s=%s has no effect: %+v; without: %+v", flag.Name, e.value, with, without)
				}
			})
		})
	}
}

// The flags of all and sustain change what their help says.
func TestFlagsOfTables(t *testing.T) {
	if testing.Short() {
		t.Skip("TestSmoke and TestSustain run the same benches")
	}
	whole := table
	defer func() { table = whole }()
	table = []string{"call --transport inproc --poll adaptive --count 20"}
	dir := t.TempDir()
	page, plot := filepath.Join(dir, "page.md"), filepath.Join(dir, "plot.svg")
	run := func(line string) string { return try.Get(execute(t.Context(), strings.Fields(line)...))(t, line) }
	shown := map[string]func() bool{
		"all rounds": func() bool {
			var r Result
			return json.Unmarshal([]byte(run("bench all --json --rounds 3")), &r) == nil && r.Count == 60
		},
		"all markdown": func() bool { return strings.Contains(run("bench all --rounds 1 --markdown"), "| `call inproc") },
		"all into": func() bool {
			try.OK(t, os.WriteFile(page, []byte("<!-- bench all -->\n<!-- end of bench all -->\n"), 0o600))
			return run("bench all --rounds 1 --into "+page) == "" && strings.Contains(string(must(os.ReadFile(page))), "| `call inproc")
		},
	}
	sustained := sync.OnceValue(func() (s Sustained) { // a run takes minutes on a busy machine: its processes poll
		try.OK(t, json.NewDecoder(strings.NewReader(run("bench sustain --json --size 100 --rounds 2 --interval 2ms --plot "+plot))).Decode(&s))
		return s
	})
	shown["sustain size"] = func() bool { return sustained().Size == 100 }
	shown["sustain rounds"] = func() bool { return sustained().Rounds == 2 }
	shown["sustain interval"] = func() bool { return sustained().Interval == 0.002 }
	shown["sustain markdown"] = func() bool {
		return strings.Contains(run("bench sustain --rounds 1 --interval 1ms --markdown"), "| inproc | `rocl")
	}
	shown["sustain plot"] = func() bool {
		sustained()
		return strings.HasPrefix(string(must(os.ReadFile(plot))), "<svg")
	}
	shown["sustain into"] = func() bool {
		try.OK(t, os.WriteFile(page, []byte("<!-- bench sustain -->\n<!-- end of bench sustain -->\n"), 0o600))
		return run("bench sustain --rounds 1 --interval 1ms --into "+page) == "" && strings.Contains(string(must(os.ReadFile(page))), "| inproc | `rocl")
	}
	for _, c := range Commands()[0].Commands() {
		if c.Name() != "all" && c.Name() != "sustain" {
			continue
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			name := c.Name() + " " + f.Name
			if shows := shown[name]; shows == nil || !shows() {
				t.Errorf("bench %s has no effect", name)
			}
			delete(shown, name)
		})
	}
	for name := range shown {
		t.Errorf("bench %s is no flag", name)
	}
	try.Fails(measureTable(t.Context(), &full{1}, 1, false, false))(t, io.ErrShortWrite, "the table")
}
