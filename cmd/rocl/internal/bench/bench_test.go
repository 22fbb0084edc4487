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
		{Result{Bench: "rtt", P50: 6.5, P99: 30.25, Raw: 5, Ratio: 1.3, Unit: "µs", What: "a loop"},
			"rtt: p50 6.50, p99 30.25 µs; a loop: 5.00 µs; ratio 1.30\n"},
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
		{Bench: "rate", Transport: "tcp", Poll: "off", Senders: 4, Rate: 1, Raw: 1, Ratio: math.NaN(), Target: 1, AtLeast: true, Unit: "messages/s", What: "a loop"},
		{Bench: "db", Rate: 850000, Raw: 700000, Ratio: 1, Target: 1, AtLeast: true, Unit: "registrations/s", What: "the required", Extra: "more", Machine: m},
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
| what | rocl | bare | what the bare figure is | ratio | must reach | met | allocations a message |
|---|---|---|---|---|---|---|---|
| ` + "`rtt tcp 64 B poll=on`" + ` | p50 6.50, p99 30.00 µs | 5.00 µs | a loop | 1.30 | ≤ 1.25 | no | 0.00 |
| ` + "`rate tcp poll=off 4 senders`" + ` | 1 messages/s | 1 | a loop | NaN | ≥ 1.00 | no | 0.00 |
| ` + "`db`" + ` | 8.5e+05 registrations/s; more | 7e+05 | the required | 1.00 | ≥ 1.00 | yes |  |
`
	if rest != want {
		t.Errorf("the table is\n%s\nwant\n%s", rest, want)
	}
	for _, w := range []io.Writer{&full{0}, &full{1}, &full{2}} {
		try.Fails(write(w))(t, io.ErrShortWrite, "a write that fails")
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
