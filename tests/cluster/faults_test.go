// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/eventually"
)

// long says that there is time, and nothing else beside: the full lengths of all
// faults, one after another, and the targets held to instead of printed.
var long = os.Getenv("ROCL_LONG") != ""

// hour is what a long run takes for one: ROCL_LONG may say less.
func hour() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ROCL_LONG")); err == nil {
		return d
	}
	return time.Hour
}

// parallel lets tests that mostly wait do so together.
func parallel(t *testing.T) {
	if !long {
		t.Parallel()
	}
}

// reach says how long something took, and in a long run, in which nothing else
// runs beside, what it must reach.
func (l *lab) reach(what string, took, most time.Duration) {
	l.t.Helper()
	l.t.Logf("%s: %v (to reach: %v)", what, took.Round(time.Millisecond), most)
	if long && took > most {
		l.t.Errorf("%s: %v, more than %v", what, took, most)
	}
}

// one waits until all see all and go on doing so: what was suspected before a
// cut healed may be taken for dead just after it.
func (l *lab) one(when string, since time.Time) {
	l.t.Helper()
	for {
		l.together(l.nodes...)
		began := time.Now()
		for time.Since(began) < 1500*time.Millisecond && l.whole(l.nodes...) {
			time.Sleep(5 * time.Millisecond)
		}
		if l.whole(l.nodes...) {
			l.reach(when+": one view", began.Sub(since), 5*time.Second)
			return
		}
	}
}

// up starts n nodes with a daemon each, all told of the first two, and waits
// for one view.
func up(t *testing.T, n int) *lab {
	t.Helper()
	l := newLab(t, n)
	for _, m := range l.nodes {
		l.start(m)
	}
	l.together(l.nodes...)
	return l
}

func (l *lab) start(m *node) {
	l.t.Helper()
	m.serve(l.nodes[:2]...)
}

// calm checks that nobody was taken for dead.
func (l *lab) calm() {
	l.t.Helper()
	for _, n := range l.nodes {
		if d := n.deaths(); d > 0 {
			l.t.Errorf("node %d took %d live nodes for dead", n.i, d)
		}
	}
}

// deaths counts how often a daemon has lost another.
func (l *lab) deaths() (all int) {
	for _, n := range l.nodes {
		all += n.deaths()
	}
	return all
}

// load lets each agent ask for what the others have.
func load(as []*agent, own []rocl.GID, every time.Duration) {
	for i, a := range as {
		ld := Load{Every: every}
		for j := range as {
			if j != i {
				ld.Find, ld.Want = append(ld.Find, at(as[j].node.i)), append(ld.Want, own[j])
			}
		}
		do[Load, struct{}](a, "Begin", ld)
	}
}

func ended(as []*agent) (sum Report) {
	for _, a := range as {
		sum.add(do[struct{}, Report](a, "End", struct{}{}))
	}
	return sum
}

// Whatever part of the packets is lost, everything is found, and at 5 % nobody
// is taken for dead.
func TestLoss(t *testing.T) {
	parallel(t)
	l := up(t, 8)
	as, own, same := l.populate()
	for _, c := range []struct {
		percent     int
		short, long time.Duration
	}{{0, time.Second, hour() / 60}, {1, 2 * time.Second, hour() / 60}, {5, 30 * time.Second, hour()}, {20, 4 * time.Second, hour() / 6}} {
		l.lose(c.percent)
		load(as, own, 100*time.Millisecond)
		if long {
			time.Sleep(c.long)
		} else {
			time.Sleep(c.short)
		}
		r := ended(as)
		t.Logf("%d %% loss: %v", c.percent, &r)
		for _, f := range r.Failed {
			t.Errorf("%d %% loss: %s", c.percent, f)
		}
		if c.percent <= 5 {
			l.calm()
			l.reach(fmt.Sprintf("remote find, p99 at %d %% loss", c.percent), r.quantile(0.99), 50*time.Millisecond)
		}
		complete(as, own, same)
	}
	deaths := 0
	for _, n := range l.nodes {
		deaths += n.deaths()
	}
	t.Logf("%d times somebody was taken for dead at 20 %% loss", deaths)
	l.heal()
	l.together(l.nodes...)
	complete(as, own, same)
}

// A node whose daemon is killed, or that falls silent, is soon dead for all,
// and found again when it is back.
func TestDeath(t *testing.T) {
	l := up(t, 8)
	as, own, same := l.populate()
	rounds := 2
	if long {
		rounds = 10
	}
	for i := range rounds {
		dead := l.nodes[2+i%6]
		as[0].say(as[dead.i], own[dead.i], "hello")
		began := time.Now()
		dead.kill()
		first, last := l.deathSeen(dead, began)
		l.reach("killed: dead for the first", first, 2*time.Second)
		l.reach("killed: dead for all", last, 2*time.Second)
		if got := as[0].find(at(dead.i)); got.How != definite {
			t.Errorf("what a dead node has: %+v", got)
		}
		if got := as[0].all(rocl.Match{"type": "same"}); got.How != "" || len(got.IDs) != 7 {
			t.Errorf("all that is there without the dead node's: %+v", got)
		}
		as[0].say(as[dead.i], own[dead.i], "are you there?") // it is: only its directory is dead
		l.start(dead)
		l.one("back", time.Now())
		complete(as, own, same)

		began = time.Now()
		l.cut([]*node{dead}, l.nodes)
		first, last = l.deathSeen(dead, began)
		l.reach("silent: dead for the first", first, 2*time.Second)
		l.reach("silent: dead for all", last, 2*time.Second)
		began = time.Now()
		l.heal()
		l.one("heard again", began)
		complete(as, own, same)
	}
}

// A cluster that is parted goes on in parts, and is one again when the parts
// hear each other; and so do watches.
func TestPartition(t *testing.T) {
	parallel(t)
	lengths := []time.Duration{time.Second, 20 * time.Second}
	if long {
		lengths = append(lengths, time.Minute, 10*time.Minute)
	}
	for _, c := range []struct {
		shape       string
		nodes, left int
		oneWay      bool
	}{{"halves", 6, 3, false}, {"one node alone", 6, 1, false}, {"one way", 6, 3, true}} {
		t.Run(c.shape, func(t *testing.T) {
			parallel(t)
			l := up(t, c.nodes)
			as, own, same := l.populate()
			parts := [][]*node{l.nodes[:c.left], l.nodes[c.left:]}
			watch(as)
			for _, d := range lengths {
				began := time.Now()
				if c.oneWay {
					deafen(parts[1], parts[0])
				} else {
					l.cut(parts[0], parts[1])
				}
				if d >= 20*time.Second {
					for _, p := range parts {
						l.together(p...)
					}
					t.Logf("each part has a view of its own after %v", time.Since(began).Round(time.Millisecond))
					for _, part := range [][]*agent{as[:c.left], as[c.left:]} {
						still(part, settle(part))
						stir(part)
					}
					for i := range l.nodes {
						for j := range l.nodes {
							got := as[i].find(at(j))
							if near := i < c.left == (j < c.left); near && (got.How != "" || got.IDs[0] != own[j]) || !near && got.How != definite {
								t.Errorf("cut for %v: node %d finds of node %d: %+v", d, i, j, got)
							}
						}
						if got := as[i].all(rocl.Match{"type": "same"}); got.How != "" || len(got.IDs) != len(parts[0]) && i < c.left || len(got.IDs) != len(parts[1]) && i >= c.left {
							t.Errorf("cut for %v: all that node %d finds: %+v", d, i, got)
						}
					}
				}
				time.Sleep(d - time.Since(began))
				healed, what := time.Now(), fmt.Sprintf("%s, cut for %v, healed", c.shape, d)
				l.heal()
				time.Sleep(300 * time.Millisecond) // things go on
				truth := settle(as)
				l.reach(what+": watches complete", time.Since(healed), 5*time.Second)
				l.one(what, healed)
				complete(as, own, same)
				still(as, truth)
				stir(as)
			}
		})
	}
}

// Directories are killed and come back, one after another: nobody is taken for
// dead, identifiers stay, and messages go on while a directory is away.
func TestKilledInTurn(t *testing.T) {
	l := up(t, 6)
	as, own, same := l.populate()
	watch(as)
	for i, n := range l.nodes {
		to := as[(i+1)%len(as)]
		as[i].say(to, own[to.node.i], "before")
		to.say(as[i], own[i], "before")
		id := n.id
		n.kill()
		to.say(as[i], own[i], "while its directory is dead")
		as[i].say(to, own[to.node.i], "while its own directory is dead")
		began := time.Now()
		l.start(n)
		if n.id != id {
			t.Errorf("node %d was %s and is %s", i, id, n.id)
		}
		l.together(l.nodes...)
		complete(as, own, same)
		to.say(as[i], own[i], "after")
		truth := settle(as)
		l.reach("killed and back: watches complete", time.Since(began), 5*time.Second)
		if i == len(l.nodes)-1 {
			time.Sleep(2 * time.Second) // what was not offered again would be gone
			still(as, truth)
		}
		stir(as)
	}
	l.calm()
}

// All daemons are restarted one after another while everybody asks for what
// others have: no question fails, though packets are lost.
func TestRollingRestart(t *testing.T) {
	for _, loss := range []int{0, 5} {
		t.Run(fmt.Sprintf("%d %% loss", loss), func(t *testing.T) {
			if loss > 0 {
				parallel(t)
			}
			l := up(t, 5)
			as, own, same := l.populate()
			if loss > 0 {
				l.lose(loss)
			}
			load(as, own, 20*time.Millisecond)
			rounds := 1
			if long {
				rounds = 20
			}
			for range rounds {
				for _, n := range l.nodes {
					time.Sleep(500 * time.Millisecond) // of questions with all there
					n.stop()
					l.start(n)
					l.together(l.nodes...)
				}
			}
			time.Sleep(500 * time.Millisecond)
			r := ended(as)
			t.Logf("%v", &r)
			for _, f := range slices.Compact(r.Failed) {
				t.Errorf("failed: %s", f)
			}
			if r.Asked < 200 {
				t.Errorf("only %d questions", r.Asked)
			}
			l.calm()
			complete(as, own, same)
		})
	}
}

// Several daemons at a time, whichever they are, are restarted and are back in any
// order, while everybody asks for what others have and packets are lost: nothing
// that exists is denied for certain. Where the machine that runs the test has so much
// to do that a daemon is taken for dead, it is tried again.
func TestOverlappingRestarts(t *testing.T) {
	parallel(t)
	l := up(t, 6)
	as, own, same := l.populate()
	l.lose(5)
	rounds := 4
	if long {
		rounds = 200
	}
	for attempt := 1; ; attempt++ {
		load(as, own, 200*time.Millisecond)
		before := l.deaths()
		for range rounds {
			l.overlap()
		}
		r := ended(as)
		t.Logf("%v", &r)
		if r.Asked < 100 {
			t.Errorf("only %d questions", r.Asked)
		}
		denied := slices.DeleteFunc(r.Failed, func(f string) bool { return !strings.Contains(f, ": "+definite+" after") })
		lost := l.deaths() - before
		if len(denied) == 0 || lost == 0 || attempt == 4 {
			for _, f := range denied {
				t.Errorf("denied for certain, with %d daemons taken for dead: %s", lost, f)
			}
			break
		}
		l.together(l.nodes...)
	}
	l.together(l.nodes...)
	l.heal()
	eventually.True(t, "all deny for certain", func() bool {
		return !slices.ContainsFunc(as, func(a *agent) bool { return a.find(rocl.Match{"type": "none"}).How != definite })
	})
	complete(as, own, same)
}

// overlap stops some daemons, two or more, and starts them in another order.
func (l *lab) overlap() {
	down := rand.Perm(len(l.nodes))[:2+rand.IntN(len(l.nodes)-1)]
	for _, i := range down {
		l.nodes[i].daemon.signal(syscall.SIGTERM)
	}
	rand.Shuffle(len(down), func(i, j int) { down[i], down[j] = down[j], down[i] })
	for _, i := range down {
		l.nodes[i].stop()
		time.Sleep(rand.N(300 * time.Millisecond))
		l.start(l.nodes[i])
	}
	time.Sleep(rand.N(time.Second))
}

// A daemon that stands still for a while, as on a machine with too much to do, is
// not dead, and takes nobody else for dead when it goes on. Where the machine that
// runs the test has too much to do they stand still for longer: it is tried again.
func TestPaused(t *testing.T) {
	parallel(t)
	l := up(t, 5)
	as, own, same := l.populate()
	for attempt := 1; ; attempt++ {
		before := l.deaths()
		for _, d := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
			for _, n := range l.nodes[:3] {
				n.pause()
				time.Sleep(d)
				n.resume()
				time.Sleep(d)
			}
		}
		lost := l.deaths() - before
		if lost == 0 {
			break
		}
		if attempt == 4 {
			t.Errorf("%d live nodes were taken for dead", lost)
			break
		}
		l.together(l.nodes...)
	}
	complete(as, own, same)
}

// Several daemons at a time stand still for so long that they are taken for dead, and
// go on, while everybody asks for what others have: all are one cluster again, and
// find what there is.
func TestSeveralPaused(t *testing.T) {
	parallel(t)
	l := up(t, 6)
	as, own, same := l.populate()
	load(as, own, 200*time.Millisecond) // they wait for those that stand still, and repeat themselves
	rounds := 3
	if long {
		rounds = 100
	}
	for range rounds {
		down := rand.Perm(len(l.nodes))[:1+rand.IntN(4)]
		for _, i := range down {
			l.nodes[i].pause()
		}
		time.Sleep(time.Second + rand.N(4*time.Second))
		for _, i := range down {
			l.nodes[i].resume()
			time.Sleep(rand.N(500 * time.Millisecond))
		}
		l.one("several went on", time.Now())
	}
	r := ended(as)
	t.Logf("%v", &r)
	if r.Asked < 100 {
		t.Errorf("only %d questions", r.Asked)
	}
	complete(as, own, same)
}

// Clusters of other sizes lose nobody either at 5 % loss: in small ones fewer
// confirm a suspicion, or deny it.
func TestNobodyDies(t *testing.T) {
	if !long {
		t.Skip("needs an hour: make cluster")
	}
	var ls []*lab
	for _, n := range []int{2, 3, 4, 5, 8, 16} {
		l := up(t, n)
		l.lose(5)
		ls = append(ls, l)
	}
	time.Sleep(hour())
	for _, l := range ls {
		t.Logf("%d nodes", len(l.nodes))
		l.calm()
	}
}
