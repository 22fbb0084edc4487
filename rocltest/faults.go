// SPDX-License-Identifier: Apache-2.0

package rocltest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A Fault is one entry of a schedule.
type Fault struct {
	At   time.Duration // since World.Run began
	Kind FaultKind
	A, B int           // numbers of nodes, or of a process
	For  time.Duration // how long it lasts, or until the restart
	N    int64         // bytes, or a part in a thousand
}

// A FaultKind says what a Fault does.
type FaultKind uint8

// The kinds of faults.
const (
	BreakConnections FaultKind = iota // those from node A to node B, behind N bytes
	CutPath                           // nothing passes from node A to node B
	CutPaths                          // nothing passes between the nodes A and B
	StopNode                          // node A stands still
	CrashNode                         // node A loses power, and is started again
	KillDirectory                     // that of node A; it is started again
	KillProcess                       // process A; it is started again
	StopProcess                       // process A receives nothing
	SlowNetwork                       // delays are up to For/20
	LoseDatagrams                     // N of a thousand
	faultKinds
)

var faultNames = [...]string{"break connections", "cut path", "cut paths", "stop node", "crash node", "kill directory", "kill process", "stop process", "slow network", "lose datagrams"}

// String returns the fault as text.
func (f Fault) String() string {
	return fmt.Sprintf("%v: %s A=%d B=%d for %v N=%d", f.At, faultNames[f.Kind], f.A, f.B, f.For, f.N)
}

// drawFaults draws the faults of d.
func drawFaults(rnd *rand.Rand, d time.Duration) (all []Fault) {
	for range 3 + rnd.IntN(17) {
		kind := FaultKind(rnd.IntN(int(faultKinds) + 4))
		if kind >= faultKinds { // the most frequent one
			kind = BreakConnections
		}
		f := Fault{
			At: time.Duration(rnd.Int64N(int64(d))), Kind: kind, A: rnd.IntN(64), B: rnd.IntN(64),
			For: time.Duration(rnd.Int64N(int64(3 * time.Second))), N: rnd.Int64N(1000),
		}
		switch f.Kind {
		case BreakConnections:
			f.N = rnd.Int64N(1 << (1 + rnd.IntN(16)))
		case CrashNode: // it takes long until others notice
			f.For += time.Duration(rnd.IntN(2)) * 12 * time.Second
		case LoseDatagrams:
			f.N /= 3
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return all
}

// An action is something that Run does at a time.
type action struct {
	at time.Time
	do func()
}

// later lets Run do something after d.
func (w *World) later(d time.Duration, do func()) {
	w.agenda = append(w.agenda, action{time.Now().Add(d), do})
	slices.SortStableFunc(w.agenda, func(a, b action) int { return a.at.Compare(b.at) })
}

// Run lets the faults of the seed begin within d of virtual time. When all of them have ended, and
// what was down runs again, it waits for settling and returns. It returns the faults.
func (w *World) Run(d time.Duration) []Fault { return w.RunFaults(d, drawFaults(w.rnd, d)) }

// RunFaults is [World.Run] with faults that the caller has chosen, in order. When Simulate looks
// for the fewest faults that still fail, RunFaults brings only some of them. It returns those.
func (w *World) RunFaults(d time.Duration, faults []Fault) []Fault {
	const settling = 10 * time.Second
	w.schedule = faults
	if w.given != nil {
		w.schedule = *w.given
	}
	for _, f := range w.schedule {
		w.later(f.At, func() {
			w.Log("fault: ", f)
			w.bring(f)
		})
	}
	w.later(d, func() {})
	for len(w.agenda) > 0 {
		next := w.agenda[0]
		w.agenda = w.agenda[1:]
		time.Sleep(time.Until(next.at))
		next.do()
	}
	w.Log("calm")
	time.Sleep(settling)
	return slices.Clone(w.schedule)
}

// suspicion is the least time after which a member that falls silent is dead for the others.
const suspicion = 700 * time.Millisecond

// recovery is how long after a fault other nodes may take the node for dead.
const recovery = 15 * time.Second

// mayDeny reports whether the directory of a node may say, to a question that was put at the time
// t, that there is no resource of a process that lives. It may if a fault may have led one of the
// two nodes to take the other one for dead, and if the process is stopped: a directory that follows
// another one waits two seconds for it.
func (w *World) mayDeny(a *node, p *Process, t time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.stopped.Add(time.Second).After(t) {
		return true
	}
	for _, n := range []*node{a, p.node} {
		if a != p.node && n.disturbed.After(t) && time.Since(n.disturbedSince) > suspicion {
			return true
		}
	}
	return false
}

// bring lets a fault happen, and arranges its end.
func (w *World) bring(f Fault) {
	a, b := w.nodes[f.A%len(w.nodes)], w.nodes[f.B%len(w.nodes)]
	w.mu.Lock()
	for _, n := range w.nodes {
		if f.Kind == SlowNetwork || f.Kind == LoseDatagrams || n == a && f.Kind != BreakConnections && f.Kind != KillProcess && f.Kind != StopProcess || n == b && (f.Kind == CutPath || f.Kind == CutPaths) {
			if now := time.Now(); !n.disturbed.After(now) {
				n.disturbedSince = now
			}
			n.disturbed = time.Now().Add(f.For + recovery)
		}
	}
	w.mu.Unlock()
	switch f.Kind {
	case BreakConnections:
		w.net.Break(a.host, b.host, f.N)
	case CutPath, CutPaths:
		if a == b {
			return
		}
		w.net.Cut(a.host, b.host)
		if f.Kind == CutPaths {
			w.net.Cut(b.host, a.host)
		}
		w.later(f.For, w.net.Heal)
	case StopNode:
		a.host.Stop()
		w.later(f.For, a.host.Continue)
	case CrashNode:
		w.crash(a, f.For)
	case KillDirectory:
		if a.isUp {
			a.process.Kill()
			a.stop()
			w.restart(a, f.For)
		}
	case KillProcess:
		if all := w.live(); len(all) > 0 {
			all[f.A%len(all)].kill(f.For)
		}
	case StopProcess:
		if all := w.live(); len(all) > 0 {
			p := all[f.A%len(all)]
			p.proc.Stop()
			w.later(f.For, p.proc.Continue)
			w.mu.Lock()
			p.stopped = time.Now().Add(f.For)
			w.mu.Unlock()
		}
	case SlowNetwork:
		w.net.SetDelay(0, f.For/20)
		w.later(f.For, func() { w.net.SetDelay(leastDelay, mostDelay) })
	case LoseDatagrams:
		w.net.SetLoss(float64(f.N) / 1000)
		w.later(f.For, func() { w.net.SetLoss(0) })
	}
}

// crash lets a node lose power for a time.
func (w *World) crash(n *node, d time.Duration) {
	if n.isDown {
		return
	}
	n.isDown = true
	n.host.Crash()
	w.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(w.processes), func(p *Process) bool { return p.node != n || !p.killed.IsZero() })
	w.mu.Unlock()
	for _, p := range all {
		p.kill(d + 10*time.Millisecond)
	}
	if n.isUp {
		n.stop()
	}
	w.restart(n, d)
}

// restart starts a node's directory after a time.
func (w *World) restart(n *node, d time.Duration) {
	w.later(d, func() {
		if !n.isUp {
			n.start()
		}
	})
}
