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
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/pflag"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{9, 1, 5, 7}, 6},
		{[]float64{1, 1, 1, 1000}, 1},
	} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
	v := []float64{3, 1, 2}
	median(v)
	if v[0] != 3 || v[1] != 1 || v[2] != 2 {
		t.Errorf("median reordered its argument: %v", v)
	}
}

// The figure of a side is the median of its rounds' medians. The p99 is that of all its round
// trips.
func TestTimes(t *testing.T) {
	a := newTimes()
	if a.mid() != 0 || a.quantile(99) != 0 {
		t.Errorf("without rounds: p50 %v, p99 %v", a.mid(), a.quantile(99))
	}
	calls := 0
	for range 3 {
		a.round(10, func() { calls++ })
	}
	if calls != 30 || len(a.each) != 3 || a.all.TotalCount() != 30 {
		t.Errorf("%d calls, %d medians, %d times", calls, len(a.each), a.all.TotalCount())
	}
	a = newTimes()
	a.each = []float64{100, 2, 3}
	for range 98 {
		_ = a.all.RecordValue(1000)
	}
	_ = a.all.RecordValues(50_000, 2)
	if a.mid() != 3 {
		t.Errorf("p50 = %v, want 3", a.mid())
	}
	if got := a.quantile(99); math.Abs(got-50) > 0.1 { // the histogram keeps three digits
		t.Errorf("p99 = %v µs, want 50", got)
	}
}

func TestTimesFail(t *testing.T) {
	bad := errors.New("bad")
	a := newTimes()
	n := 0
	f := func() {
		if n++; n == 5 {
			check(bad)
		}
	}
	if err := attempt(func() { a.round(10, f) }); !errors.Is(err, bad) || n != 5 {
		t.Errorf("round: %v after %d calls", err, n)
	}
	n = 0
	if err := attempt(func() { a.batch(t.Context(), 100, f) }); !errors.Is(err, bad) || n != 5 {
		t.Errorf("batch: %v after %d calls", err, n)
	}
	if len(a.each) != 0 || a.all.TotalCount() != 0 {
		t.Error("a round that failed was counted")
	}
}

// A failure in any goroutine is that of all, and a panic for another reason goes on.
func TestConcurrently(t *testing.T) {
	bad := errors.New("bad")
	if err := attempt(func() {
		concurrently(5, func(i int) {
			if i == 3 {
				check(bad)
			}
		})
	}); !errors.Is(err, bad) {
		t.Errorf("it failed with %v", err)
	}
	defer func() {
		if r := recover(); r != "other" {
			t.Errorf("recovered %v", r)
		}
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

// batch calls f exactly count times: the other side of a batch must know how many messages to
// answer.
func TestBatchCalls(t *testing.T) {
	for _, count := range []int{1, 15, 16, 17, 32, 100} {
		a := newTimes()
		n := 0
		a.batch(t.Context(), count, func() { n++ })
		if n != count {
			t.Errorf("batch of %d called %d times", count, n)
		}
		if want := int64(max(count/16, 1)); len(a.each) != 1 || a.all.TotalCount() != want {
			t.Errorf("batch of %d: %d medians, %d times, want 1 and %d", count, len(a.each), a.all.TotalCount(), want)
		}
	}
}

// batch records the time of one call, not of sixteen calls.
func TestBatchDivides(t *testing.T) {
	const each = 200 * time.Microsecond
	a := newTimes()
	start := time.Now()
	a.batch(t.Context(), 64, func() {
		for begun := time.Now(); time.Since(begun) < each; {
		}
	})
	took := time.Since(start).Seconds() * 1e6
	least := each.Seconds() * 1e6
	if got := a.mid(); got < least*0.99 || got > took/16 {
		t.Errorf("p50 = %v µs for calls of at least %v, all of which took %v", got, least, took)
	}
	if got := a.quantile(99); got < least*0.99 || got > took/16 {
		t.Errorf("p99 = %v µs for calls of at least %v, all of which took %v", got, least, took)
	}
}

func TestBatchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	n := 0
	err := attempt(func() {
		newTimes().batch(ctx, 1<<30, func() {
			if n++; n == 40 {
				cancel(why)
			}
		})
	})
	if !errors.Is(err, why) || n != 48 {
		t.Errorf("batch: %v after %d calls, want the cause after 48", err, n)
	}
}

func TestMet(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want bool
	}{
		{Result{Ratio: 1.2, Target: 1.25}, true},
		{Result{Ratio: 1.25, Target: 1.25}, true},
		{Result{Ratio: 1.26, Target: 1.25}, false},
		{Result{Ratio: 0.3, Target: 0.4, AtLeast: true}, false},
		{Result{Ratio: 0.4, Target: 0.4, AtLeast: true}, true},
		{Result{Ratio: 0.5, Target: 0.4, AtLeast: true}, true},
		{Result{Ratio: math.NaN(), Target: 1}, false},
		{Result{Ratio: math.NaN(), Target: 1, AtLeast: true}, false},
	} {
		if got := c.r.Met(); got != c.want {
			t.Errorf("ratio %v, target %v, at least %v: met %v", c.r.Ratio, c.r.Target, c.r.AtLeast, got)
		}
	}
}

func TestName(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Result{Bench: "db"}, "db"},
		{Result{Bench: "rtt", Transport: "tcp", Size: 64, Poll: "on"}, "rtt tcp 64 B poll=on"},
		{Result{Bench: "rate", Transport: "tcp", Poll: "off", Senders: 1}, "rate tcp poll=off"},
		{Result{Bench: "rate", Transport: "tcp", Size: 8, Poll: "off", Senders: 4}, "rate tcp 8 B poll=off 4 senders"},
	} {
		if got := c.r.name(); got != c.want {
			t.Errorf("name %q, want %q", got, c.want)
		}
	}
}

func TestShow(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Result{Bench: "rtt", P50: 6.5, P99: 30.25, Raw: 5, Ratio: 1.3, Unit: "µs", What: "a loop"},
			"rtt: p50 6.50 µs, p99 30.25; a loop: p50 5.00; ratio 1.30\n"},
		{Result{Bench: "db", Rate: 850000, Raw: 700000, Ratio: 1.214, Unit: "registrations/s", What: "the required", Extra: "more"},
			"db: 8.5e+05 registrations/s; the required: 7e+05; ratio 1.21\nmore\n"},
	} {
		var b strings.Builder
		if err := show(&b, []*Result{&c.r}, false); err != nil || b.String() != c.want {
			t.Errorf("shown: %v, %q, want %q", err, b.String(), c.want)
		}
		b.Reset()
		var back Result
		if err := show(&b, []*Result{&c.r}, true); err != nil || json.Unmarshal([]byte(b.String()), &back) != nil || back != c.r {
			t.Errorf("as JSON: %v, %q", err, b.String())
		}
	}
}

func TestMarkdown(t *testing.T) {
	m := Machine{CPU: "Abacus", Cores: 3, Kernel: "Linux 9", Go: "go9"}
	rs := []*Result{
		{Bench: "rtt", Transport: "tcp", Size: 64, Poll: "on", P50: 6.5, P99: 30, Raw: 5, Ratio: 1.3, Target: 1.25, Unit: "µs", What: "a loop", Machine: m},
		{Bench: "db", Rate: 850000, Raw: 700000, Ratio: 1.214, Target: 1, AtLeast: true, Unit: "registrations/s", What: "the required", Extra: "more", Machine: m},
	}
	write := func(w io.Writer) error {
		err := markdownHead(w, m)
		return errors.Join(err, markdownRows(w, rs))
	}
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(b.String(), "\n")
	day, where, _ := strings.Cut(head, ": ")
	if _, err := time.Parse(time.DateOnly, day); err != nil || where != "Abacus, 3 cores, Linux 9, go9." {
		t.Errorf("the head is %q", head)
	}
	const want = `
| what | rocl | bare | what the bare figure is | ratio | must reach | met | allocations a message |
|---|---|---|---|---|---|---|---|
| ` + "`rtt tcp 64 B poll=on`" + ` | p50 6.50, p99 30.00 µs | 5.00 µs | a loop | 1.30 | ≤ 1.25 | no | 0.00 |
| ` + "`db`" + ` | 8.5e+05 registrations/s; more | 7e+05 | the required | 1.21 | ≥ 1.00 | yes |  |
`
	if rest != want {
		t.Errorf("the table is\n%s\nwant\n%s", rest, want)
	}
	for _, w := range []io.Writer{&full{0}, &full{1}, &full{2}} {
		if err := write(w); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("a write that fails: %v", err)
		}
	}
}

// full is a writer that fails after some writes.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room--; f.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestMachine(t *testing.T) {
	if m := machine(); m.CPU == "" || m.Cores < 1 || !strings.HasPrefix(m.Go, "go") || !strings.HasPrefix(m.Kernel, "Linux ") {
		t.Errorf("%+v", m)
	}
}

func TestPolicy(t *testing.T) {
	for name, want := range map[string]rocl.PollPolicy{"on": rocl.PollAlways, "always": rocl.PollAlways, "off": rocl.PollNever, "never": rocl.PollNever, "adaptive": rocl.PollAdaptive} {
		b := benches[0]
		o := b.define(pflag.NewFlagSet("", pflag.ContinueOnError))
		o.poll = name
		if err := o.check(b); err != nil {
			t.Errorf("--poll %s: %v", name, err)
		}
		if p, err := policyOf(o.poll); err != nil || p != want {
			t.Errorf("--poll %s: %v, %v", name, p, err)
		}
	}
}

// The flags of every line of the table are valid, and some case is for them.
func TestTable(t *testing.T) {
	for _, line := range table {
		b, o, err := parse(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if err := o.check(b); err != nil {
			t.Errorf("%s: %v", line, err)
		}
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
	} {
		var u usage.Error
		if out, err := execute(t.Context(), append([]string{"bench"}, strings.Fields(line)...)...); !errors.As(err, &u) {
			t.Errorf("bench %s: %v, want a usage error; it printed %q", line, err, out)
		}
	}
	// The caller of the command sees the error.
	for _, args := range [][]string{{"bench", "rtt", "--poll", "sometimes"}, {"bench", "nonsense"}, {"bench", "rtt", "nonsense"}, {"bench-peer", "x"}} {
		if code := cli.Run(t.Context(), root(), args); code != 64 {
			t.Errorf("rocl %v: exit code %d, want 64", args, code)
		}
	}
}

func TestHelp(t *testing.T) {
	out, err := execute(t.Context(), "bench")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rtt", "rate", "bw", "bulk", "db", "find", "all"} {
		if !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("bench --help does not name %s", name)
		}
	}
	if out, _ := execute(t.Context(), "--help"); strings.Contains(out, "bench-") {
		t.Error("the peer's command is not hidden")
	}
}
