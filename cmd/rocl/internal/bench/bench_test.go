// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The figure of a side is the median of its rounds' medians. The p99 is that of all its round
// trips.
func TestTimes(t *testing.T) {
	a := newTimes()
	if a.mid() != 0 || a.quantile(99) != 0 {
		t.Errorf("without rounds: p50 %v, p99 %v", a.mid(), a.quantile(99))
	}
	a.each = []float64{100, 2, 3, 6}
	for range 98 {
		_ = a.all.RecordValue(1000)
	}
	_ = a.all.RecordValues(50_000, 2)
	if got := a.quantile(99); a.mid() != 4.5 || math.Abs(got-50) > 0.1 { // the histogram keeps three digits
		t.Errorf("p50 = %v, want 4.5; p99 = %v µs, want 50", a.mid(), got)
	}
}

// round and batch call f exactly count times, because the other side must know how many messages to
// answer. They record the time of one call.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, count := range []int{1, 15, 16, 17, 32, 100} {
			for _, c := range []struct {
				times int
				round func(a *times, f func())
			}{
				{count, func(a *times, f func()) { a.round(count, f) }},
				{max(count/16, 1), func(a *times, f func()) { a.batch(t.Context(), count, f) }},
			} {
				a, n := newTimes(), 0
				c.round(a, func() { n++; time.Sleep(200 * time.Microsecond) })
				if n != count || len(a.each) != 1 || a.all.TotalCount() != int64(c.times) || math.Abs(a.mid()-200) > 0.5 {
					t.Errorf("%d calls of %d, %d times of %v µs, want %d", n, count, a.all.TotalCount(), a.mid(), c.times)
				}
			}
		}
	})
}

// A failure or the end of the context ends a round, which is not counted.
func TestRoundsFail(t *testing.T) {
	bad := errors.New("bad")
	ctx, cancel := context.WithCancelCause(t.Context())
	a, n := newTimes(), 0
	fail := func() {
		if n++; n == 5 {
			check(bad)
		}
	}
	for _, c := range []struct {
		calls int
		round func()
	}{
		{5, func() { a.round(10, fail) }},
		{5, func() { a.batch(t.Context(), 100, fail) }},
		{48, func() {
			a.batch(ctx, 1<<30, func() {
				if n++; n == 40 {
					cancel(bad)
				}
			})
		}},
	} {
		n = 0
		if err := attempt(c.round); !errors.Is(err, bad) || n != c.calls || len(a.each) != 0 || a.all.TotalCount() != 0 {
			t.Errorf("%v after %d calls, want %d", err, n, c.calls)
		}
	}
}

// A failure in any goroutine is that of all, and a panic for another reason goes on.
func TestConcurrently(t *testing.T) {
	bad := errors.New("bad")
	try.Fails(attempt(func() {
		concurrently(5, func(i int) {
			if i == 3 {
				check(bad)
			}
		})
	}))(t, bad, "it failed with")
	defer func() {
		try.Equal(t, recover(), "other", "recovered")
	}()
	_ = attempt(func() { panic("other") })
}

// The loops take turns. The first round is short and does not count.
func TestMeasure(t *testing.T) {
	var order []string
	counting := func(name string) loop {
		return func(n int, t *times) {
			order = append(order, fmt.Sprint(name, n))
			t.rate(n, func() {})
		}
	}
	got := measure(2, 1000, counting("a"), counting("b"))
	if fmt.Sprint(order) != "[a500 b500 a1000 b1000 a1000 b1000]" || len(got[0].each) != 2 || len(got[1].each) != 2 {
		t.Errorf("%v, with %v and %v", order, got[0].each, got[1].each)
	}
}

func TestShow(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Result{Case: Case{Bench: "rtt"}, P50: 6.5, P99: 30.25, Raw: 5, Ratio: 1.3, Unit: "µs", What: "a loop", Place: far},
			"rtt: p50 6.50, p99 30.25 µs, p99/p50 4.65; a loop: 5.00 µs; ratio 1.30; processors far\n"},
		{Result{Case: Case{Bench: "db"}, Rate: 850000, Raw: 700000, Ratio: 1.214, Unit: "registrations/s", What: "the required", Extra: "more",
			Limits: []Limit{{Of: "ratio", Is: 1.214, Must: 1, Goal: 1.5, AtLeast: true, Verdict: met}}},
			"db: 8.5e+05 registrations/s; the required: 7e+05; ratio 1.21\n  met: ratio ≥ 1.00, goal 1.50, is 1.21\nmore\n"},
	} {
		var b strings.Builder
		try.OK(t, show(&b, []*Result{&c.r}, false))
		try.Equal(t, b.String(), c.want)
		b.Reset()
		var back Result
		try.OK(t, show(&b, []*Result{&c.r}, true))
		try.OK(t, json.Unmarshal([]byte(b.String()), &back))
		if !reflect.DeepEqual(back, c.r) {
			t.Errorf("as JSON: %q", b.String())
		}
	}
}

// Each figure can have limits. A limit for near processors decides nothing elsewhere.
func TestLimits(t *testing.T) {
	r := func(p place) *Result {
		return &Result{P50: 2, P99: 5, Raw: 1.5, RawP99: 5, Ratio: 1.25, Rate: 7, Allocs: 0.004, Place: p}
	}
	for _, c := range []struct {
		l    Limit
		r    *Result
		is   float64
		want string
	}{
		{atMost("ratio", 1.25), r(far), 1.25, goalMet},
		{atMost("ratio", 1.25, 1.1), r(far), 1.25, met},
		{atMost("ratio", 1.2, 1.1), r(far), 1.25, missed},
		{atLeast("ratio", 1.2, 1.3), r(far), 1.25, met},
		{atLeast("ratio", 1.3), r(far), 1.25, missed},
		{atLeast("rate", 6, 7), r(far), 7, goalMet},
		{atMost("excess", 0.5), r(near), 0.5, goalMet},
		{atMost("p50", 1), r(near), 2, missed},
		{atMost("p99", 5), r(near), 5, goalMet},
		{atMost("p99/p50", 3, 2), r(near), 2.5, met},
		{atMost("p99/bare", 1), r(near), 1, goalMet},
		{atMost("allocs", 0), r(near), 0, goalMet},
		{ifNear(atMost("p50", 1)), r(near), 2, missed},
		{ifNear(atMost("p50", 1)), r(far), 2, undecided},
		{ifNear(atMost("p50", 1)), r(moved), 2, undecided},
		{ifNear(atMost("p50", 1)), r(unknown), 2, undecided},
		{ifNear(atMost("p50", 1)), r(near), 2, missed},
	} {
		c.r.Limits = []Limit{c.l}
		complete([]*Result{c.r}, unknown)
		if got := c.r.Limits[0]; got.Is != c.is || got.Verdict != c.want {
			t.Errorf("%s, %s: is %v, %s; want %v, %s", got.text(), c.r.Place, got.Is, got.Verdict, c.is, c.want)
		}
	}
	verdicts := tally{}
	verdicts.add([]*Result{{Limits: []Limit{{Verdict: met}, {Verdict: goalMet}, {Verdict: missed}, {Verdict: undecided}}}})
	try.Equal(t, verdicts.String(), "4 limits: 2 met, of these 1 with their goal; 1 missed;\n1 not decided, because the processors were not near")
}

// A row whose rounds had near and far processors is marked. A round that could not tell changes
// nothing.
func TestPlace(t *testing.T) {
	for _, c := range [][3]place{{near, near, near}, {near, far, moved}, {moved, near, moved}, {unknown, far, far}, {far, unknown, far}, {unknown, unknown, unknown}} {
		try.Equal(t, c[0].and(c[1]), c[2], "%q and %q", c[0], c[1])
	}
	if p := look(); p != near && p != far && p != unknown {
		t.Errorf("the processors are %q", p)
	}
	before := runtime.GOMAXPROCS(0)
	onProcs(1, func(int, *times) {
		try.Equal(t, runtime.GOMAXPROCS(0), 1, "GOMAXPROCS of a loop on one")
		try.Equal(t, look(), unknown, "the place of one")
	})(1, nil)
	try.Equal(t, runtime.GOMAXPROCS(0), before, "GOMAXPROCS afterwards")
}

func TestMarkdown(t *testing.T) {
	m := Machine{CPU: "Abacus", Cores: 3, Kernel: "Linux 9", Go: "go9"}
	rs := []*Result{
		{Case: Case{Bench: "rtt", Transport: "tcp", Size: 64, Poll: "on"}, P50: 6.5, P99: 30, Raw: 5, Ratio: 1.3, Unit: "µs", What: "a loop", Place: near,
			Limits: []Limit{{Of: "ratio", Is: 1.3, Must: 1.25, Goal: 1.25, Verdict: missed}, {Of: "p99/p50", Is: 4.6, Must: 5, Goal: 4, NearOnly: true, Verdict: met}}},
		{Case: Case{Bench: "rate", Transport: "tcp", Poll: "off", Senders: 4, Receive: "messages", Procs: 1}, Rate: 1, Raw: 1, Ratio: math.NaN(), Unit: "messages/s", What: "a loop"},
		{Case: Case{Bench: "db"}, Rate: 850000, Raw: 700000, Ratio: 1, Unit: "registrations/s", What: "the required", Extra: "more"},
	}
	write := func(w io.Writer) error {
		err := markdownHead(w, m)
		return errors.Join(err, markdownRows(w, rs))
	}
	var b strings.Builder
	try.OK(t, write(&b))
	head, rest, _ := strings.Cut(b.String(), "\n")
	day, where, _ := strings.Cut(head, ": ")
	if _, err := time.Parse(time.DateOnly, day); err != nil || where != "Abacus, 3 cores, Linux 9, go9." {
		t.Errorf("the head is %q", head)
	}
	const want = `
| what | rocl | bare | what the bare figure is | ratio | processors | must reach | is | allocations a message |
|---|---|---|---|---|---|---|---|---|
| ` + "`rtt tcp 64 B poll=on`" + ` | p50 6.50, p99 30.00 µs, p99/p50 4.62 | 5.00 µs | a loop | 1.30 | near | ratio ≤ 1.25<br>p99/p50 ≤ 5.00, goal 4.00, near | 1.30, missed<br>4.60, met | 0.00 |
| ` + "`rate tcp poll=off 4 senders receive=messages GOMAXPROCS=1`" + ` | 1 messages/s | 1 | a loop | NaN |  |  |  | 0.00 |
| ` + "`db`" + ` | 8.5e+05 registrations/s; more | 7e+05 | the required | 1.00 |  |  |  |  |
`
	try.Equal(t, rest, want)
	for _, w := range []io.Writer{&full{0}, &full{1}, &full{2}} {
		try.Fails(write(w))(t, io.ErrShortWrite, "a write that fails")
	}
}

// A table goes between its two lines of a page. The page stays as it was if the bench fails, or if
// it lacks the lines.
func TestIntoPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	const page = "a\n<!-- bench all -->\nold\n<!-- end of bench all -->\nb\n"
	try.OK(t, os.WriteFile(path, []byte(page), 0o600))
	is := func(want string) {
		t.Helper()
		try.Equal(t, string(try.Get(os.ReadFile(path))(t)), want, "the page")
	}
	bad := errors.New("bad")
	try.Fails(intoPage(path, "all", func(w io.Writer) error { fmt.Fprintln(w, "half"); return bad }))(t, bad)
	is(page)
	var u usage.Error
	for _, err := range []error{intoPage(path, "sustain", nil), intoPage(path+".none", "all", nil)} {
		if !errors.As(err, &u) {
			t.Errorf("%v, want a usage error", err)
		}
	}
	is(page)
	try.OK(t, intoPage(path, "all", func(w io.Writer) error { _, err := fmt.Fprintln(w, "new"); return err }))
	is("a\n<!-- bench all -->\nnew\n<!-- end of bench all -->\nb\n")
}

// full is a writer that fails after some writes.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room--; f.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// The flags of every line of the table are valid, and some case is for them.
func TestTable(t *testing.T) {
	for _, line := range table {
		b, o, err := parse(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		try.Check(t, o.check(b), "%s", line)
	}
}

// execute runs a command line and returns its output.
func execute(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	r := root()
	r.SetOut(&out)
	r.SetErr(&out)
	r.SetArgs(args)
	err := r.ExecuteContext(ctx)
	return out.String(), err
}

func TestWrongFlags(t *testing.T) {
	for _, line := range []string{
		"rtt --poll sometimes",
		"rtt --size -1",
		"rtt --size 99999999999",
		"rtt --size many",
		"rtt --count 0",
		"rtt --count -3",
		"rtt --rounds 0",
		"rtt --transport pigeon",
		"rtt --transport inproc --poll sometimes",
		"rtt --nonsense",
		"rtt --senders 2",
		"rtt more",
		"rate --senders 1025 --count 2000",
		"find --sealed",
		"all --json --markdown",
		"rate --senders 0",
		"rate --senders 4 --count 3",
		"bw --size 0",
		"bw --transport inproc",
		"find --transport shm",
		"db --count 0",
		"db --poll sometimes",
		"db --transport pigeon",
		"find --transport inproc",
		"find --count 0",
		"find --resources -1",
		"find --resources 100000000",
		"find --resources 10 --nodes 2",
		"all --rounds 0",
		"all --markdown --into x",
		"all --json --into x",
		"all --into /nowhere/at/all.md",
		"rate --receive post",
		"rate --procs -1",
		"bulk --only pipeline --size 4096",
		"bulk --only view --full",
		"bulk --size -1",
		"bulk --only all",
		"cpu --transport pigeon",
	} {
		var u usage.Error
		if out, err := execute(t.Context(), append([]string{"bench"}, strings.Fields(line)...)...); !errors.As(err, &u) {
			t.Errorf("bench %s: %v, want a usage error; it printed %q", line, err, out)
		}
	}
	// The caller of the command sees the error.
	for _, args := range [][]string{{"bench", "rtt", "--poll", "sometimes"}, {"bench", "nonsense"}, {"bench", "rtt", "nonsense"}, {"bench-peer", "x"}} {
		try.Equal(t, cli.Run(t.Context(), root(), args), 64, "rocl %v: exit code", args)
	}
}
