// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
)

// A Case says what a row measures. Fields that its bench does not have are zero.
type Case struct {
	Bench     string `json:"bench"`
	Transport string `json:"transport,omitempty"`
	Size      int    `json:"size,omitempty"`
	Poll      string `json:"poll,omitempty"`
	Senders   int    `json:"senders,omitempty"`
	Receive   string `json:"receive,omitempty"`   // how the peer receives
	Procs     int    `json:"procs,omitempty"`     // GOMAXPROCS; 0: as many as there are processors
	InFlight  int    `json:"in_flight,omitempty"` // goroutines that call at the same time
	Idle      int    `json:"idle,omitempty"`      // links beside the measured one
	Nodes     int    `json:"nodes,omitempty"`
	Sealed    bool   `json:"sealed,omitempty"`
	Resources int    `json:"resources,omitempty"`
}

// Result is one row. Times are in microseconds, or in Unit. Rates are per second.
type Result struct {
	Case
	Count   int     `json:"count"`
	P50     float64 `json:"p50,omitempty"`
	P99     float64 `json:"p99,omitempty"`
	Rate    float64 `json:"rate,omitempty"`
	Raw     float64 `json:"raw"`
	RawP99  float64 `json:"raw_p99,omitempty"`
	Ratio   float64 `json:"ratio"`
	Limits  []Limit `json:"limits,omitempty"`
	Unit    string  `json:"unit"`
	What    string  `json:"what"`            // what the raw figure measures
	Allocs  float64 `json:"allocs"`          // allocations of this process for each message sent or round trip
	Place   place   `json:"place,omitempty"` // near, far or changed
	Extra   string  `json:"extra,omitempty"`
	Machine Machine `json:"machine"`
}

// A Limit is a figure of a row, the value that it must reach, and the better value at which the
// project aims.
type Limit struct {
	Of       string  `json:"of"` // a key of figures
	Is       float64 `json:"is"`
	Must     float64 `json:"must"`
	Goal     float64 `json:"goal"`
	AtLeast  bool    `json:"at_least,omitempty"`  // at least these values; otherwise at most
	NearOnly bool    `json:"near_only,omitempty"` // is decided only while the processors are near
	Verdict  string  `json:"verdict"`
}

// figures are the figures that a limit can be of.
var figures = map[string]func(*Result) float64{
	"ratio":    func(r *Result) float64 { return r.Ratio },
	"excess":   func(r *Result) float64 { return r.P50 - r.Raw }, // above the bare loop
	"p50":      func(r *Result) float64 { return r.P50 },
	"p99":      func(r *Result) float64 { return r.P99 },
	"p99/p50":  func(r *Result) float64 { return r.P99 / r.P50 },
	"p99/bare": func(r *Result) float64 { return r.P99 / r.RawP99 },
	"rate":     func(r *Result) float64 { return r.Rate },
	"allocs":   func(r *Result) float64 { return math.Round(r.Allocs*100) / 100 }, // a garbage collection allocates too
}

// atMost returns a limit above which the figure must not be. Without a goal, the two are the same.
func atMost(of string, must float64, goal ...float64) Limit {
	return Limit{Of: of, Must: must, Goal: append(goal, must)[0]}
}

// atLeast returns a limit that the figure must reach.
func atLeast(of string, must float64, goal ...float64) Limit {
	l := atMost(of, must, goal...)
	l.AtLeast = true
	return l
}

// ifNear makes l decide only while the processors are near.
func ifNear(l Limit) Limit {
	l.NearOnly = true
	return l
}

// The verdicts of limits.
const (
	missed    = "missed"
	met       = "met"
	goalMet   = "goal met"
	undecided = "not decided"
)

func (l *Limit) judge(r *Result) {
	l.Is = figures[l.Of](r)
	meets := func(v float64) bool {
		if l.AtLeast {
			return l.Is >= v
		}
		return l.Is <= v
	}
	switch {
	case l.NearOnly && r.Place != near:
		l.Verdict = undecided
	case meets(l.Goal) && meets(l.Must):
		l.Verdict = goalMet
	case meets(l.Must):
		l.Verdict = met
	default:
		l.Verdict = missed
	}
}

// text returns what the figure must reach, and its goal if that is another one.
func (l *Limit) text() string {
	sign := "≤"
	if l.AtLeast {
		sign = "≥"
	}
	s := fmt.Sprintf("%s %s %s", l.Of, sign, number(l.Must))
	if l.Goal != l.Must {
		s += ", goal " + number(l.Goal)
	}
	if l.NearOnly {
		s += ", near"
	}
	return s
}

// number returns a figure as text: counts with three digits, others with two decimals.
func number(v float64) string {
	if v >= 10_000 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// result returns the row of a case.
func (p *pair) result(c *comparison, ours, bare *times) *Result {
	o := p.o
	r := &Result{Case: Case{Bench: cmp.Or(c.name, c.bench), Transport: p.Transport, Size: p.Size, Poll: p.Poll, InFlight: o.inFlight, Nodes: o.nodes, Sealed: o.sealed,
		Resources: o.resources}, Count: o.count * o.rounds, Unit: c.unit, What: c.what, Limits: slices.Clone(c.limits), Allocs: ours.allocs}
	if o.bench == "rate" {
		r.Senders, r.Receive, r.Procs = o.senders, o.receive, o.procs
	}
	r.compare(ours, bare)
	return r
}

// compare sets the figures of both sides, and their ratio.
func (r *Result) compare(ours, bare *times) {
	r.Raw, r.Ratio, r.Place = bare.mid(), ours.mid()/bare.mid(), ours.place
	if strings.HasSuffix(r.Unit, "/s") {
		r.Rate = ours.mid()
		return
	}
	r.P50, r.P99, r.RawP99 = ours.mid(), ours.quantile(99), bare.quantile(99)
}

// complete sets the place of the rows that have none, and judges all limits.
func complete(rs []*Result, p place) {
	for _, r := range rs {
		r.Machine = machine()
		if r.Place == unknown {
			r.Place = p
		}
		for i := range r.Limits {
			r.Limits[i].judge(r)
		}
	}
}

func (r *Result) name() string {
	s := r.Bench
	for _, part := range []struct {
		shown bool
		text  string
	}{
		{r.Transport != "", r.Transport},
		{r.Size > 0, fmt.Sprint(r.Size, " B")},
		{r.Poll != "", "poll=" + r.Poll},
		{r.Idle > 0, fmt.Sprintf("beside %d idle links", r.Idle)},
		{r.Nodes > 0, fmt.Sprint(r.Nodes, " nodes")},
		{r.Sealed, "sealed"},
		{r.Resources > 0, fmt.Sprint("in place, of ", r.Resources)},
		{r.InFlight > 1, fmt.Sprint(r.InFlight, " in flight")},
		{r.Senders > 1, fmt.Sprint(r.Senders, " senders")},
		{r.Receive != "" && r.Receive != receives[0], "receive=" + r.Receive},
		{r.Procs > 0, fmt.Sprintf("GOMAXPROCS=%d", r.Procs)},
	} {
		if part.shown {
			s += " " + part.text
		}
	}
	return s
}

// figures returns the figures of both sides as text.
func (r *Result) figures() (ours, bare string) {
	switch bare = fmt.Sprintf("%.2f %s", r.Raw, r.Unit); {
	case r.Rate > 0:
		ours, bare = fmt.Sprintf("%.3g %s", r.Rate, r.Unit), fmt.Sprintf("%.3g", r.Raw)
	case r.P99 > 0:
		ours = fmt.Sprintf("p50 %.2f, p99 %.2f %s, p99/p50 %.2f", r.P50, r.P99, r.Unit, r.P99/r.P50)
	default:
		ours = fmt.Sprintf("%.2f %s", r.P50, r.Unit)
	}
	return ours, bare
}

// show prints results, as text or as JSON.
func show(w io.Writer, rs []*Result, isJSON bool) error {
	for _, r := range rs {
		if isJSON {
			if err := cli.Print(w, r); err != nil {
				return err
			}
			continue
		}
		ours, bare := r.figures()
		text := fmt.Sprintf("%s: %s; %s: %s; ratio %.2f", r.name(), ours, r.What, bare, r.Ratio)
		if r.Place != unknown {
			text += "; processors " + string(r.Place)
		}
		for _, l := range r.Limits {
			text += fmt.Sprintf("\n  %s: %s, is %s", l.Verdict, l.text(), number(l.Is))
		}
		if r.Extra != "" {
			text += "\n" + r.Extra
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}

// A tally counts the verdicts of limits.
type tally map[string]int

func (t tally) add(rs []*Result) {
	for _, r := range rs {
		for _, l := range r.Limits {
			t[l.Verdict]++
		}
	}
}

func (t tally) String() string {
	return fmt.Sprintf("%d limits: %d met, of these %d with their goal; %d missed;\n%d not decided, because the processors were not near",
		t[met]+t[goalMet]+t[missed]+t[undecided], t[met]+t[goalMet], t[goalMet], t[missed], t[undecided])
}

// markdownHead prints the day, the machine and the head of the table.
func markdownHead(w io.Writer, m Machine) error {
	_, err := fmt.Fprintf(w, "%s: %s, %d cores, %s, %s.\n\n| what | rocl | bare | what the bare figure is | ratio | processors | must reach | is | allocations a message |\n|---|---|---|---|---|---|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), m.CPU, m.Cores, m.Kernel, m.Go)
	return err
}

// markdownRows prints the rows of results.
func markdownRows(w io.Writer, rs []*Result) error {
	for _, r := range rs {
		ours, bare := r.figures()
		if r.Extra != "" {
			ours += "; " + r.Extra
		}
		allocs := ""
		if r.Bench == "rtt" || r.Bench == "call" || r.Bench == "rate" || strings.HasPrefix(r.Bench, "rpc ") {
			allocs = fmt.Sprintf("%.2f", r.Allocs)
		}
		var musts, is []string
		for _, l := range r.Limits {
			musts, is = append(musts, l.text()), append(is, number(l.Is)+", "+l.Verdict)
		}
		if _, err := fmt.Fprintf(w, "| `%s` | %s | %s | %s | %.2f | %s | %s | %s | %s |\n", r.name(), ours, bare, r.What, r.Ratio, r.Place,
			strings.Join(musts, "<br>"), strings.Join(is, "<br>"), allocs); err != nil {
			return err
		}
	}
	return nil
}

// Machine describes the machine on which a figure was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func machine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				m.CPU = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(b))
	}
	return m
}
