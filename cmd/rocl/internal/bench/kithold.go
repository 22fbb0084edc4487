// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
)

// kitHoldCases measure how long after the kill of the holder's process this process has the name,
// beside a loop that registers with Unique and monitors the holder.
var kitHoldCases = []comparison{
	takeover("kit hold kill -9", isPeer, sameNode, 50*time.Millisecond, 5*time.Millisecond, "another process of the node serves the directory"),
	takeover("kit hold kill -9 of the server", isPeer, ownNode, 50*time.Millisecond, 5*time.Millisecond, "the holder serves the directory, which this process takes over"),
	takeover("kit hold kill -9 of a node", isAlone, otherNode, 3*time.Second, 2*time.Second, "all processes of one of three nodes are killed, on the loopback interface"),
}

func takeover(name string, with role, place holderPlace, must, goal time.Duration, extra string) comparison {
	set := func(o *options) { o.count = max(o.count/2000, 1) }
	if with == isAlone {
		set = func(o *options) { o.count, o.rounds, o.poll = 1, min(o.rounds, 5), "never" }
	}
	return comparison{bench: "kit", name: name, when: inKit("hold"), role: with, set: set, what: "Unique and Monitor by hand", unit: "µs",
		limits: []Limit{atMost("p50", us(must), us(goal)), atMost("p99", us(must), us(goal))},
		bare:   takes(place, "hold-unique", takeUnique), ours: takes(place, "hold", takeHold), also: []side{ends(place)},
		finish: func(_ *pair, r *Result, t []*times) []*Result {
			r.Poll, r.Transport = "", ""
			r.Extra = fmt.Sprintf("worst of %d: %.2f ms, by hand %.2f ms; the kernel has ended the process after %.2f ms; %s",
				r.Count, t[1].quantile(100)/1e3, t[0].quantile(100)/1e3, t[2].mid()/1e3, extra)
			return nil
		}}
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// A holderPlace starts a process that will hold the name, and returns the context of the standby.
type holderPlace func(p *pair) (c *rocl.Context, q *peer, end func())

// sameNode starts the holder on the node of this process, which the peer serves.
func sameNode(p *pair) (*rocl.Context, *peer, func()) {
	own := p.config
	own.Role = isWorker
	return p.c, p.startMortal(own), func() {}
}

// ownNode starts the holder on a node of its own, which it serves.
func ownNode(p *pair) (*rocl.Context, *peer, func()) {
	own := p.config
	own.Dir = must(os.MkdirTemp(p.Dir, "node"))
	q := p.startMortal(own)
	own.Role = isAlone
	c := own.open(p.ctx)
	return c, q, func() { c.Close() }
}

// otherNode makes a cluster of three nodes: this process, a further one, and the holder. A cluster
// in which others have died lately takes longer to notice a death.
func otherNode(p *pair) (*rocl.Context, *peer, func()) {
	own := p.config
	own.Role = isNode
	own.Dir = must(os.MkdirTemp(p.Dir, "node"))
	c := own.open(p.ctx)
	own.Join = must(c.Await(p.ctx, rocl.Match{rocl.AttrKind: "node"}, 1))[0].Attrs.GetString(rocl.AttrAddr)
	var others []*peer
	for range 2 {
		own.Dir = must(os.MkdirTemp(p.Dir, "node"))
		others = append(others, p.startMortal(own))
	}
	for n := 0; n < 3; sleep(p.ctx, 20*time.Millisecond) {
		n = 0
		for _, err := range c.FindAll(p.ctx, rocl.Match{rocl.AttrKind: "node"}) {
			if n++; errors.Is(err, rocl.ErrPartial) { // they are meeting
				n = 0
			}
		}
	}
	return c, others[0], func() { others[1].Kill(); c.Close() }
}

// startMortal starts a process whose end does not end the bench.
func (p *pair) startMortal(c config) *peer {
	q := &peer{Process: must(subprocess.Start(subprocess.Self(c.args()...)))}
	p.add(func() { q.Kill() })
	p.wait(q)
	return q
}

// heldName is the name, and heldUnique the one that is held by hand.
var heldName, heldUnique = rocl.Attrs{"bench": "leader"}, rocl.Attrs{"bench": "unique"}

// takes kills the process of a holder while this process is its standby, and measures how long it
// takes until this process has the name.
func takes(place holderPlace, task string, take func(p *pair, c *rocl.Context, ready func()) (end func())) side {
	return func(p *pair) loop {
		return func(n int, t *times) {
			t.timed(n, 1, func() time.Duration {
				c, q, end := place(p)
				defer end()
				p.ask(q, task, 0)
				killed := make(chan time.Time, 1)
				give := take(p, c, func() {
					go func() {
						sleep(p.ctx, 50*time.Millisecond) // the standby stands by
						killed <- time.Now()
						q.Signal(syscall.SIGKILL)
					}()
				})
				took := time.Since(<-killed)
				give()
				_ = q.End()
				return took
			})
		}
	}
}

// ends kills the process of a holder, and measures how long it takes until its output is closed.
func ends(place holderPlace) side {
	return func(p *pair) loop {
		return func(n int, t *times) {
			t.timed(n, 1, func() time.Duration {
				_, q, end := place(p)
				defer end()
				p.ask(q, "hold", 0)
				began := time.Now()
				q.Signal(syscall.SIGKILL)
				for range q.Lines {
				}
				return time.Since(began)
			})
		}
	}
}

// takeHold takes the name by package election.
func takeHold(p *pair, c *rocl.Context, ready func()) (end func()) {
	ready()
	term := must(election.Hold(p.ctx, c, heldName))
	return func() { check(term.Close()) }
}

// takeUnique takes the name by hand: it monitors the holder, and registers again when that has
// ended.
func takeUnique(p *pair, c *rocl.Context, ready func()) (end func()) {
	me := must(c.Register(p.ctx, nil))
	defer me.Close()
	for ready(); ; {
		r, err := c.Register(p.ctx, heldUnique, rocl.Unique("bench"))
		if err == nil {
			return func() { check(r.Close()) }
		}
		f, ferr := c.Find(p.ctx, rocl.Match(heldUnique))
		switch {
		case ferr == nil:
			stop := must(me.Monitor(p.ctx, f.ID, 1))
			must(me.Recv(p.ctx, rocl.Tag(1))).Release()
			stop()
		case !errors.Is(ferr, rocl.ErrNotFound) && !errors.Is(ferr, rocl.ErrPartial):
			check(err)
		}
		sleep(p.ctx, time.Millisecond)
	}
}

// hold holds the name until the process is killed.
func (a *answerer) hold(task string) {
	if task == "hold" {
		must(election.Hold(a.ctx, a.c, heldName))
		return
	}
	must(a.c.Register(a.ctx, heldUnique, rocl.Unique("bench")))
}
