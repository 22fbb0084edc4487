// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func searches(t *testing.T, c *Cluster, w Variant, k Case, n int) Cost {
	t.Helper()
	cost := try.Get(c.Searches(w, k, n))(t)
	if cost.Wrong > 0 {
		t.Errorf("%d nodes, %s, %+v: %d wrong answers", c.Nodes, w.Name, k, cost.Wrong)
	}
	return cost
}

func cluster(t *testing.T, nodes, resources, searches int) *Cluster {
	t.Helper()
	return try.Get(NewCluster(nodes, resources, searches))(t)
}

// A search among 10,000 nodes with a million resources stays within its limits of time and
// messages.
//
// Promise (Cluster searches): In simulation of 10,000 nodes, a definite "no" takes at most 10 ms
// and no answer is wrong. See also TestWays.
func TestSearchTargets(t *testing.T) {
	if testing.Short() {
		t.Skip("10,000 nodes")
	}
	const n = 10_000
	c := cluster(t, n, Resources, 50)
	no := searches(t, c, Auto, Case{}, 3)
	if no.P99 > 10*time.Millisecond || no.Definite != no.Searches {
		t.Errorf("a definite no takes %v: %+v", no.P99, no)
	}
	without := searches(t, c, Auto, Case{Exists: true}, 3)
	if without.Most > 2*n {
		t.Errorf("a search takes %d messages without filters", without.Most)
	}
	with := searches(t, c, Auto, Case{Exists: true, Filters: true}, 50)
	if with.Most > 20 {
		t.Errorf("a search takes %d messages with filters", with.Most)
	}
	t.Logf("no: %v; found by %.0f messages without filters, by %.1f, at most %d, with: %.0f times as many",
		no.P99, without.Messages, with.Messages, with.Most, without.Messages/with.Messages)
	denied := searches(t, c, Auto, Case{Filters: true}, 3)
	if denied.Definite != denied.Searches || denied.Most > 2*n+20 {
		t.Errorf("a no with filters: %+v", denied)
	}
	if lossy := searches(t, c, Auto, Case{Loss: 0.05}, 2); lossy.Messages > 3*n {
		t.Errorf("a no at 5 %% loss takes %.0f messages", lossy.Messages)
	}
}

// All variants give true answers, whatever is lost or dies, and cost what the formulas say.
func TestWays(t *testing.T) {
	sizes, variants := []int{10, 100, 1000}, allVariants()
	if short.Form(t) {
		sizes, variants = sizes[:2], []Variant{Broadcast, Unicast, Tree16}
	}
	for _, n := range sizes {
		c := cluster(t, n, 20_000, 20)
		for _, w := range variants {
			no := searches(t, c, w, Case{}, 5)
			if no.Most != w.Messages(n) || no.Definite != no.Searches {
				t.Errorf("%d nodes, %s: %+v", n, w.Name, no)
			}
			if f := w.Time(n); no.P99 > f || no.P99 < f*9/10 {
				t.Errorf("%d nodes, %s: a no takes %v, by the formula %v", n, w.Name, no.P99, f)
			}
			if found := searches(t, c, w, Case{Exists: true}, 20); found.Definite != 20 || found.Most > max(2*n, w.Messages(n)) {
				t.Errorf("%d nodes, %s: %+v", n, w.Name, found)
			}
			if found := searches(t, c, w, Case{Exists: true, Filters: true}, 20); found.Definite != 20 || found.Most > 16 || found.P99 > 2*time.Millisecond {
				t.Errorf("%d nodes, %s: %+v", n, w.Name, found)
			}
			if no := searches(t, c, w, Case{Loss: 0.01}, 20); no.Definite != no.Searches {
				t.Errorf("%d nodes, %s: a no at 1 %% loss is not definite: %+v", n, w.Name, no)
			}
			for _, k := range []Case{
				{Exists: true, Loss: 0.05}, {Exists: true, Filters: true, Loss: 0.05}, {Filters: true, Loss: 0.05}, {Loss: 0.05},
				{Dying: true}, {Exists: true, Dying: true}, {Exists: true, Filters: true, Dying: true},
			} {
				if r := searches(t, c, w, k, 10); r.Messages > float64(4*n+40) {
					t.Errorf("%d nodes, %s, %+v: %.0f messages", n, w.Name, k, r.Messages)
				}
			}
		}
	}
}

// Auto chooses the variant that the document says, also at the sizes where the variant changes. Up
// to these sizes, two searches of a node at once lose no packet for lack of room.
func TestAuto(t *testing.T) {
	for _, most := range []int{1, search.MostUnicast, search.MostBroadcast} {
		for _, n := range []int{most + 1, most + 2} {
			c := cluster(t, n, 10*n, 0)
			for _, w := range []Variant{Auto, AutoAlone} {
				is := searches(t, c, w, Case{}, 1)
				if as := searches(t, c, w.Takes(n), Case{}, 1); is != as {
					t.Errorf("%d nodes, %s: %+v, but %s: %+v", n, w.Name, is, w.Takes(n).Name, as)
				}
				b := try.Get(Bursts(w, n, 2))(t)
				if b.Lost > 0 || b.Took > search.DefaultHop {
					t.Errorf("%d nodes, %s: %+v", n, w.Name, b)
				}
			}
		}
	}
	if b, err := Bursts(Broadcast, 2*Queue, 1); err != nil || b.Lost == 0 {
		t.Errorf("nothing is lost where %d answer at once: %+v, %v", 2*Queue, b, err)
	}
	try.Equal(t, packet, mux.MaxPayload, "bytes of a packet")
}

// The page can be written, and the one in docs has the present constants. If it has not, run "make
// scaling".
func TestPage(t *testing.T) {
	f := &Figures{Cost: map[int]map[string]map[Case]Cost{}}
	for _, n := range Sizes {
		f.Cost[n] = map[string]map[Case]Cost{}
		for _, w := range allVariants() {
			f.Cost[n][w.Name] = map[Case]Cost{}
			for _, k := range Cases {
				f.Cost[n][w.Name][k] = Cost{Messages: 1, Searches: 1}
			}
		}
	}
	try.Get(f.Document())(t)
	page := try.Get(os.ReadFile("../../../docs/SCALING.md"))(t)
	for _, says := range []string{
		fmt.Sprintf("**%d** others (`search.MostBroadcast`)", search.MostBroadcast),
		fmt.Sprintf("**%d** others (`search.MostUnicast`)", search.MostUnicast),
		fmt.Sprintf("patient for %d ms and ask %d times", search.DefaultHop.Milliseconds(), search.DefaultTries),
		fmt.Sprintf("A socket holds %d small packets", Queue),
		fmt.Sprintf("Around each packet are %d bytes", Heads),
	} {
		if !strings.Contains(string(page), says) {
			t.Errorf("docs/SCALING.md does not say %q", says)
		}
	}
}

// The upkeep of filters stays within its limits of traffic and memory.
//
// Promise (Cluster searches): At 1,000 nodes and a million resources, summaries cost a node at most
// 16 KiB/s and 16 MiB.
func TestUpkeepTargets(t *testing.T) {
	nodes, resources, lasts := 1000, Resources, 5*time.Minute
	if short.Form(t) {
		nodes, resources = 100, 20_000
	}
	for _, loss := range []float64{0, 0.05} {
		u := try.Get(Keep(nodes, resources, loss, lasts))(t)
		if u.Rate > 16<<10 {
			t.Errorf("%.0f bytes a second are received", u.Rate)
		}
		if u.Held > 16<<20 {
			t.Errorf("%d bytes are held", u.Held)
		}
		if u.Missing > 0 {
			t.Errorf("%d resources are not known", u.Missing)
		}
		t.Logf("%+v", u)
	}
}
