// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
)

// Result is one measurement. Times are in microseconds, rates are per second.
type Result struct {
	Bench     string  `json:"bench"`
	Transport string  `json:"transport,omitempty"`
	Size      int     `json:"size,omitempty"`
	Poll      string  `json:"poll,omitempty"`
	Senders   int     `json:"senders,omitempty"`
	InFlight  int     `json:"in_flight,omitempty"` // goroutines that call at the same time
	Idle      int     `json:"idle,omitempty"`      // links beside the measured one
	Nodes     int     `json:"nodes,omitempty"`
	Sealed    bool    `json:"sealed,omitempty"`
	Resources int     `json:"resources,omitempty"`
	Count     int     `json:"count"`
	P50       float64 `json:"p50,omitempty"`
	P99       float64 `json:"p99,omitempty"`
	Rate      float64 `json:"rate,omitempty"`
	Raw       float64 `json:"raw"`
	RawP99    float64 `json:"raw_p99,omitempty"`
	Ratio     float64 `json:"ratio"`
	Target    float64 `json:"target,omitempty"`
	AtLeast   bool    `json:"at_least,omitempty"` // the ratio must be at least the target instead of at most
	Unit      string  `json:"unit"`
	What      string  `json:"what"`   // what the raw figure measures
	Allocs    float64 `json:"allocs"` // allocations of this process for each message sent or round trip
	Extra     string  `json:"extra,omitempty"`
	Machine   Machine `json:"machine"`
}

// result returns the row of a case.
func (p *pair) result(c *comparison, ours, bare *times) *Result {
	o := p.o
	r := &Result{Bench: cmp.Or(c.name, c.bench), Transport: p.Transport, Size: p.Size, Poll: p.Poll, InFlight: o.inFlight, Nodes: o.nodes, Sealed: o.sealed,
		Resources: o.resources, Count: o.count * o.rounds, Unit: c.unit, What: c.what, Target: c.goal, Allocs: ours.allocs}
	if o.bench == "rate" {
		r.Senders = o.senders
	}
	r.compare(ours, bare)
	return r
}

// compare sets the figures of both sides, and their ratio.
func (r *Result) compare(ours, bare *times) {
	r.Raw, r.Ratio = bare.mid(), ours.mid()/bare.mid()
	if strings.HasSuffix(r.Unit, "/s") {
		r.Rate, r.AtLeast = ours.mid(), true
		return
	}
	r.P50, r.P99, r.RawP99 = ours.mid(), ours.quantile(99), bare.quantile(99)
}

// Met reports whether the target is met.
func (r *Result) Met() bool {
	if r.AtLeast {
		return r.Ratio >= r.Target
	}
	return r.Ratio <= r.Target
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
		ours = fmt.Sprintf("p50 %.2f, p99 %.2f %s", r.P50, r.P99, r.Unit)
	default: // another quantile is compared
		ours = fmt.Sprintf("%.2f %s", r.P50, r.Unit)
	}
	return ours, bare
}

// show prints results, as text or as JSON.
func show(w io.Writer, rs []*Result, isJSON bool) error {
	for _, r := range rs {
		var err error
		if r.Machine = machine(); isJSON {
			err = cli.Print(w, r)
		} else {
			ours, bare := r.figures()
			_, err = fmt.Fprintln(w, strings.TrimSpace(fmt.Sprintf("%s: %s; %s: %s; ratio %.2f\n%s", r.name(), ours, r.What, bare, r.Ratio, r.Extra)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// markdownHead prints the day, the machine and the head of the table.
func markdownHead(w io.Writer, m Machine) error {
	_, err := fmt.Fprintf(w, "%s: %s, %d cores, %s, %s.\n\n| what | rocl | bare | what the bare figure is | ratio | must reach | met | allocations a message |\n|---|---|---|---|---|---|---|---|\n",
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
		must, met := fmt.Sprintf("≤ %.2f", r.Target), "no"
		if r.AtLeast {
			must = fmt.Sprintf("≥ %.2f", r.Target)
		}
		switch {
		case r.Target == 0: // a row for comparison only
			must, met = "", ""
		case r.Met():
			met = "yes"
		}
		if _, err := fmt.Fprintf(w, "| `%s` | %s | %s | %s | %.2f | %s | %s | %s |\n", r.name(), ours, bare, r.What, r.Ratio, must, met, allocs); err != nil {
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
