// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// A simulated is a network in memory whose machines have one process each.
type simulated struct {
	*simnet.Network
	processes []*simnet.Process
}

// inSimulation runs f with a network in a bubble of testing/synctest, where waiting takes no real
// time.
func inSimulation(t *testing.T, f func(t *testing.T, n *simulated)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &simulated{Network: simnet.New(1)}
		n.SetDelay(time.Millisecond, 2*time.Millisecond)
		f(t, n)
	})
}

// transport returns the transport of a process on a new machine.
func (n *simulated) transport() subsys.Transport {
	p := n.AddHost("").Start()
	n.processes = append(n.processes, p)
	return p.Transport()
}

// nowhere returns an address at which no process listens.
func (n *simulated) nowhere() string { return "sim://" + n.AddHost("").IP().String() + ":1" }

// cutAll lets nothing pass between machines until Heal. Connections do not end.
func (n *simulated) cutAll() {
	for _, a := range n.processes {
		for _, b := range n.processes {
			n.Cut(a.Host(), b.Host())
		}
	}
}

// After a cut of the network that ends no connection, messages move again over a new connection.
// Each comes once and in order, in both directions.
//
// Promise (Ends): A link that expects something notices when the peer's machine falls silent, and
// resumes when a cut ends. A stopped process is not silent. See also TestFullPeerAnswers.
func TestSilentLinkResumes(t *testing.T) { inSimulation(t, silentLinkResumes) }

func silentLinkResumes(t *testing.T, n *simulated) {
	w := newWorld()
	patient := func(c *Config) { c.GiveUp = 30 * time.Second }
	a, b := w.node(t, 1, n.transport(), patient), w.node(t, 2, n.transport(), patient)
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	talk(t, a, b, mb, 1000)
	talk(t, b, a, ma, 1000)
	const messages = 200
	var both sync.WaitGroup
	for _, direction := range []struct {
		from *Dispatcher
		to   *Mailbox
	}{{a, mb}, {b, ma}} {
		both.Go(func() {
			for i := range uint64(messages) {
				if i == messages/2 && direction.from == a {
					n.cutAll()
				}
				if err := flow(t, direction.from, direction.to).try(soon(t), i, 100); err != nil {
					t.Error(err)
					return
				}
			}
			time.Sleep(5 * time.Second) // of virtual time: the silence is noticed
			n.Heal()
			for i := range uint64(messages) {
				m, err := direction.to.Recv(soon(t))
				if err != nil || m.Tag() != i {
					t.Errorf("message %d: %v %v", i, m, err)
					return
				}
				m.Release()
			}
		})
	}
	both.Wait()
	if k, _ := ma.Len(); k > 0 {
		t.Errorf("%d messages too many", k)
	}
	if a.Stats().Resumed == 0 {
		t.Error("nothing was cut")
	}
}

// When the directory says that a silent peer's node is dead, senders are told: those that wait for
// credit, and those of accepted messages.
func TestSilentNodeIsDead(t *testing.T) { inSimulation(t, silentNodeIsDead) }

func silentNodeIsDead(t *testing.T, n *simulated) {
	w := newWorld()
	reported := make(chan Undelivered, 10)
	a := w.node(t, 1, n.transport(), func(c *Config) {
		c.GiveUp = time.Minute
		c.Undelivered = func(u Undelivered) { reported <- u }
	})
	b := w.node(t, 2, n.transport(), func(c *Config) { c.GiveUp = time.Millisecond })
	small, mb := box(t, b, 1, FirstCredit), box(t, b, 2, 0)
	f := flow(t, a, small)
	for range 2 {
		try.OK(t, f.try(soon(t), 0, FirstCredit/3))
	}
	talk(t, a, b, mb, 1)
	waiting := make(chan error, 1)
	go func() { waiting <- f.try(soon(t), 1, FirstCredit) }()
	needed(t, small)
	eventually.True(t, "all is acknowledged", f.idle)
	w.setGone(b.self, true)
	n.cutAll()
	eventually.Returns(t, "a sender that waits for credit", func() {
		if err := <-waiting; !errors.Is(err, ErrGone) {
			t.Errorf("it got %v", err)
		}
	})
	eventually.True(t, "the link that has ended is forgotten", func() bool { return a.Stats().Links == 0 })

	w.setGone(b.self, false)
	n.Heal()
	talk(t, a, b, mb, 2)
	eventually.True(t, "the message is acknowledged", flow(t, a, mb).idle)
	w.setGone(b.self, true)
	n.cutAll()
	try.OK(t, flow(t, a, mb).try(soon(t), 3, 10))
	eventually.Returns(t, "the report", func() {
		if u := <-reported; u.Tag != 3 || !errors.Is(u.Err, ErrGone) {
			t.Errorf("reported %+v", u)
		}
	})
	n.Heal()
}

// A process that is stopped keeps its connection, because its kernel answers. It is asked for
// answers while the link expects something of it.
func TestStoppedProcessIsNotSilent(t *testing.T) { inSimulation(t, stoppedProcessIsNotSilent) }

func stoppedProcessIsNotSilent(t *testing.T, n *simulated) {
	w := newWorld()
	a, b := w.node(t, 1, n.transport()), w.node(t, 2, n.transport())
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	n.processes[1].Stop()
	try.OK(t, flow(t, a, mb).try(soon(t), 2, 10))
	l, _ := onlyLink(a, b)
	probed := func() time.Time {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.liveness.probed
	}
	for range 2 {
		before := probed()
		eventually.True(t, "a probe", func() bool { return probed() != before })
	}
	time.Sleep(5 * time.Second) // of virtual time: longer than a machine may be silent
	if k := a.count.ConnsOut.Load(); k != 1 {
		t.Errorf("%d connections were dialled", k)
	}
	n.processes[1].Continue()
	take(t, mb)
}

// A link that expects nothing is not watched.
func TestIdleLinkIsNotWatched(t *testing.T) { inSimulation(t, idleLinkIsNotWatched) }

func idleLinkIsNotWatched(t *testing.T, n *simulated) {
	w := newWorld()
	a := w.node(t, 1, n.transport())
	for i := range uint64(5) {
		b := w.node(t, 2+i, n.transport())
		mb := box(t, b, 1, 0)
		talk(t, a, b, mb, 1)
	}
	none := func() bool {
		a.watched.mu.Lock()
		defer a.watched.mu.Unlock()
		return len(a.watched.links) == 0
	}
	eventually.True(t, "nothing is watched", none)
	b := w.node(t, 9, n.transport())
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	eventually.True(t, "nothing is watched", none)
	l, _ := onlyLink(a, b)
	f := flow(t, a, mb)
	n.processes[6].Stop() // b acknowledges nothing
	try.Check(t, f.try(soon(t), 2, 10))
	a.watched.mu.Lock()
	if got := a.watched.links; len(got) != 1 || got[0] != l {
		t.Errorf("after a message, %d links are watched", len(got))
	}
	a.watched.mu.Unlock()
	n.processes[6].Continue()
	take(t, mb)
}
