// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// long means that the run may take its time and that nothing else runs on the machine. All faults
// then have their full lengths, run one after another, and must reach the targets, which are only
// printed otherwise.
var long = os.Getenv("ROCL_LONG") != ""

// hour returns the length of a fault that shall last an hour in a long run. ROCL_LONG may give a
// shorter time.
func hour() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ROCL_LONG")); err == nil {
		return d
	}
	return time.Hour
}

// parallel lets tests that mostly wait run at the same time.
func parallel(t *testing.T) {
	if !long {
		t.Parallel()
	}
}

// one waits until all nodes see all nodes, and keep seeing them for a while: a node that was
// suspected before a cut healed may be taken for dead just after it.
func (l *lab) one(when string, since time.Time) {
	l.t.Helper()
	for {
		l.together(l.nodes...)
		began := time.Now()
		if !eventually.Within(1500*time.Millisecond, func() bool { return !l.whole(l.nodes...) }) {
			l.reach(when+": one view", began.Sub(since), 5*time.Second)
			return
		}
	}
}

// up starts n nodes with a daemon each, which are given the addresses of the first two, and waits
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

// calm checks that no node was taken for dead.
func (l *lab) calm() {
	l.t.Helper()
	for _, n := range l.nodes {
		if d := n.deaths(); d > 0 {
			l.t.Errorf("node %d took %d live nodes for dead", n.i, d)
		}
	}
}

// deaths counts how often any daemon has lost another.
func (l *lab) deaths() (all int) {
	for _, n := range l.nodes {
		all += n.deaths()
	}
	return all
}

// load makes each agent ask for the resources of the other agents.
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

// Whatever part of the packets is lost, every resource is found. With 5 % loss, no node is taken
// for dead.
//
// Promise (Cluster searches): At 20 % loss everything is found. At 5 % no live node is taken for
// dead.
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
		lasts := c.short
		if long {
			lasts = c.long
		}
		time.Sleep(lasts) // while packets are lost and questions are asked
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
	t.Logf("%d times a living node was taken for dead at 20 %% loss", l.deaths())
	l.heal()
	l.together(l.nodes...)
	complete(as, own, same)
}

// A node whose daemon is killed, or that falls silent, is soon dead for all nodes. It is found
// again when it is back.
//
// Promise (Cuts and restarts): A node that dies is soon dead for all members. When it is back, its
// resources have the same identifiers. See also TestMoved.
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
		as[0].say(as[dead.i], own[dead.i], "are you there?") // it answers: only its directory is dead
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

// A cluster that is cut goes on in parts, and is one again when the parts hear each other. So do
// watches.
//
// Promise (Cuts and restarts): A cluster that is cut becomes one again by itself. Nothing is lost
// or told twice, and every watch is complete in the end. See also TestKilledInTurn.
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
						still(part, stopChurn(part))
						startChurn(part)
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
				time.Sleep(d - time.Since(began)) // the length of the cut
				healed, what := time.Now(), fmt.Sprintf("%s, cut for %v, healed", c.shape, d)
				l.heal()
				time.Sleep(300 * time.Millisecond) // resources change meanwhile
				truth := stopChurn(as)
				l.reach(what+": watches complete", time.Since(healed), 5*time.Second)
				l.one(what, healed)
				complete(as, own, same)
				still(as, truth)
				startChurn(as)
			}
		})
	}
}

// Directories are killed and come back, one after another. No other node is taken for dead,
// identifiers stay, and messages go on while a directory is away.
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
		try.Equal(t, n.id, id, "the number of node %d", i)
		l.together(l.nodes...)
		complete(as, own, same)
		to.say(as[i], own[i], "after")
		truth := stopChurn(as)
		l.reach("killed and back: watches complete", time.Since(began), 5*time.Second)
		if i == len(l.nodes)-1 {
			time.Sleep(2 * time.Second) // a resource that was not offered again would be gone by then
			still(as, truth)
		}
		startChurn(as)
	}
	l.calm()
}

// All daemons are restarted one after another while every agent asks for the others' resources. No
// question fails and no daemon is taken for dead, although packets are lost. If the machine that
// runs the test is so busy that a restart takes longer than unnoticed, the other daemons may be
// right, and the test tries again.
//
// Promise (Cuts and restarts): Directories may be killed and restarted in turn. No question fails,
// and messages go on. See also TestRestarted.
func TestRollingRestart(t *testing.T) {
	const unnoticed = time.Second / 2 // a daemon that is away for 1.1 s is dead for the others: docs/CLUSTER.md
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
			rounds := 1
			if long {
				rounds = 20
			}
			for attempt, before := 1, 0; ; attempt++ {
				load(as, own, 20*time.Millisecond)
				longest := l.restartAll(rounds)
				r, all := ended(as), l.deaths()
				t.Logf("%v", &r)
				lost := all - before
				if lost > 0 && longest > unnoticed && attempt < 4 {
					before = all
					continue
				}
				for _, f := range slices.Compact(r.Failed) {
					t.Errorf("failed: %s", f)
				}
				if lost > 0 {
					t.Errorf("%d daemons were taken for dead; the longest restart took %v", lost, longest)
				}
				if r.Asked < 200 {
					t.Errorf("only %d questions", r.Asked)
				}
				break
			}
			complete(as, own, same)
		})
	}
}

// restartAll restarts all daemons one after another, and returns how long the longest restart took.
func (l *lab) restartAll(rounds int) (longest time.Duration) {
	for range rounds {
		for _, n := range l.nodes {
			time.Sleep(500 * time.Millisecond) // of questions while all daemons serve
			began := time.Now()
			n.stop()
			l.start(n)
			longest = max(longest, time.Since(began))
			l.together(l.nodes...)
		}
	}
	time.Sleep(500 * time.Millisecond) // of questions after the last restart
	return longest
}

// A daemon that is stopped for a while, as on a busy machine, is not taken for dead, and takes no
// other for dead when it goes on. If the machine that runs the test is too busy, the daemon is
// stopped for longer: the test tries again. Then several daemons at a time are stopped for so long
// that they are taken for dead, while every agent asks for the others' resources. All are one
// cluster again when they go on.
func TestPaused(t *testing.T) {
	parallel(t)
	l := up(t, 6)
	as, own, same := l.populate()
	for attempt := 1; ; attempt++ {
		before := l.deaths()
		for _, d := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
			for _, n := range l.nodes[:3] {
				n.pause()
				time.Sleep(d) // the length of the pause
				n.resume()
				time.Sleep(d) // the other daemons suspect it, or have begun to believe it again
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
	rounds := 3
	if long {
		rounds = 100
	}
	load(as, own, 200*time.Millisecond) // questions wait for stopped daemons, and are repeated
	for range rounds {
		down := rand.Perm(len(l.nodes))[:1+rand.IntN(4)]
		for _, i := range down {
			l.nodes[i].pause()
		}
		time.Sleep(time.Second + rand.N(4*time.Second)) // some are suspected, some are dead for the others
		for _, i := range down {
			l.nodes[i].resume()
			time.Sleep(rand.N(500 * time.Millisecond)) // they go on one after another
		}
		l.one("several went on", time.Now())
	}
	r := ended(as)
	t.Logf("%v", &r)
	complete(as, own, same)
}
