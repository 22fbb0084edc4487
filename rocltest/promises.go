// SPDX-License-Identifier: Apache-2.0

package rocltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// Promises is a function for [Simulate] that checks the promises of the library. Senders find
// receivers and send them messages, receivers monitor senders, and watchers watch receivers, on
// several nodes with faults. Promises checks that
//
//   - a message arrives once and in order, or is reported as undelivered
//   - Flush returns when messages are in their mailboxes
//   - a resource that lives is not denied for certain
//   - in the end, watches and listings have what lives, and nothing else
//   - a monitor tells the end of a resource behind its last message
//   - in the end, each sender reaches each receiver, and has credit for any number of messages
//   - no memory is in use when a process has ended
func Promises(w *World) {
	l := &ledger{w: w, flows: map[flowKey]*flow{}, resources: map[rocl.GID]*entry{}, views: map[*Process]map[rocl.GID]bool{}, monitors: map[flowKey]*monitor{}}
	nodes := 1 + w.Rand().IntN(3)
	w.AddNodes(nodes)
	const receivers = 2
	for i := range receivers {
		w.Start(w.Rand().IntN(nodes), fmt.Sprintf("receiver%d", i), l.receiver)
	}
	for i := range 2 {
		w.Start(w.Rand().IntN(nodes), fmt.Sprintf("sender%d", i), l.sender)
	}
	w.Start(w.Rand().IntN(nodes), "watcher", l.watcher)
	w.Run(8 * time.Second)
	l.set(func() { l.isCalm = true })
	for range 60 { // senders end what they do
		time.Sleep(time.Second)
		if read(l, func() bool { return l.finished == 2 }) {
			break
		}
	}
	time.Sleep(time.Second)
	l.check(receivers)
}

// A ledger has what the processes of Promises have done.
type ledger struct {
	w *World

	mu        sync.Mutex
	isCalm    bool
	flows     map[flowKey]*flow
	resources map[rocl.GID]*entry
	views     map[*Process]map[rocl.GID]bool // of watchers
	monitors  map[flowKey]*monitor           // from the monitored resource to the monitoring one
	finished  int                            // senders that have ended the last round
}

type flowKey struct{ from, to rocl.GID }

// A flow is what went from one resource to another.
type flow struct {
	accepted    []uint64 // tags
	received    []uint64
	undelivered map[uint64]bool
	isGone      bool // the monitor has told the end of a resource that had ended
}

// An entry is a resource.
type entry struct {
	p       *Process
	r       *rocl.Resource
	role    string
	name    string
	deleted time.Time // when it was deleted; zero if it was not
	isEnded bool      // deleted, or its process was killed or has ended
}

type monitor struct{ hasTold bool }

func (l *ledger) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// read returns what f returns with mu held.
func read[T any](l *ledger, f func() T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return f()
}

func (l *ledger) flow(from, to rocl.GID) *flow {
	f := l.flows[flowKey{from, to}]
	if f == nil {
		f = &flow{undelivered: map[uint64]bool{}}
		l.flows[flowKey{from, to}] = f
	}
	return f
}

// hasEnded reports whether a resource has ended. mu must be held.
func (l *ledger) hasEnded(id rocl.GID) bool {
	e := l.resources[id]
	return e == nil || e.isEnded || e.p.IsKilled()
}

// register registers a resource of a process, again and again until it succeeds or the process
// ends.
func (l *ledger) register(p *Process, role string) *rocl.Resource {
	for p.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(p.Context(), 30*time.Second)
		r, err := p.Rocl().Register(ctx, rocl.Attrs{"role": role, "name": p.Name()})
		cancel()
		if err == nil {
			l.set(func() { l.resources[r.ID()] = &entry{p: p, r: r, role: role, name: p.Name()} })
			return r
		}
		if p.Context().Err() == nil {
			l.w.Errorf("%s: registering: %v", p.Name(), err)
		}
	}
	return nil
}

// ended notes that a resource has ended.
func (l *ledger) ended(id rocl.GID) { l.set(func() { l.resources[id].isEnded = true }) }

// receiver receives. The first of the receivers deletes its resource now and then.
func (l *ledger) receiver(p *Process) {
	rnd := rand.New(rand.NewPCG(l.w.seed, uint64(len(p.Name()))))
	for p.Context().Err() == nil {
		r := l.register(p, "receiver")
		if r == nil {
			return
		}
		left := 50 + rnd.IntN(400)
		for ; left > 0 || p.Name() != "receiver0" || read(l, func() bool { return l.isCalm }); left-- {
			m, err := r.Recv(p.Context())
			if err != nil {
				l.ended(r.ID())
				return
			}
			l.received(p, r, m)
			m.Release()
			if rnd.IntN(10) == 0 {
				time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
			}
		}
		l.ended(r.ID())
		if err := r.Delete(p.Context()); err == nil {
			l.set(func() { l.resources[r.ID()].deleted = time.Now() })
		} else if p.Context().Err() == nil {
			l.w.Errorf("%s: deleting: %v", p.Name(), err)
		}
	}
}

const goneTag = 1 << 40

// received notes a message to r.
func (l *ledger) received(p *Process, r *rocl.Resource, m *rocl.Message) {
	key := flowKey{m.From(), r.ID()}
	if m.IsGone() {
		l.set(func() {
			l.monitors[key].hasTold = true
			l.flow(key.from, key.to).isGone = l.hasEnded(m.From())
		})
		return
	}
	monitors := false
	l.set(func() {
		f := l.flow(key.from, key.to)
		if k := len(f.received); k > 0 && f.received[k-1] >= m.Tag() {
			l.w.Errorf("%s received message %d of %v behind message %d", p.Name(), m.Tag(), m.From(), f.received[k-1])
		}
		f.received = append(f.received, m.Tag())
		if f.isGone {
			l.w.Errorf("%s received message %d of %v behind the message of the monitor", p.Name(), m.Tag(), m.From())
		}
		monitors = l.monitors[key] == nil
		if monitors {
			l.monitors[key] = new(monitor)
		}
	})
	if monitors {
		if _, err := r.Monitor(p.Context(), m.From(), goneTag); err != nil {
			l.set(func() { l.monitors[key].hasTold = true })
			if p.Context().Err() == nil && !errors.Is(err, rocl.ErrGone) && !errors.Is(err, rocl.ErrUnreachable) {
				l.w.Errorf("%s: monitoring %v: %v", p.Name(), m.From(), err)
			}
		}
	}
}

// sender finds receivers and sends them messages. In the end it sends to each.
func (l *ledger) sender(p *Process) {
	rnd := rand.New(rand.NewPCG(l.w.seed, uint64(p.Rocl().ID().Ctx())))
	p.OnUndelivered(func(u rocl.Undelivered) {
		l.set(func() { l.flow(u.From, u.To).undelivered[u.Tag] = true })
	})
	r := l.register(p, "sender")
	if r == nil {
		return
	}
	defer l.ended(r.ID())
	next := uint64(0)
	for p.Context().Err() == nil && !read(l, func() bool { return l.isCalm }) {
		if to, ok := l.find(p, fmt.Sprintf("receiver%d", rnd.IntN(2))); ok {
			for range 1 + rnd.IntN(30) {
				next++
				if l.send(p, r, to, next, l.size(rnd), 5*time.Second) != nil {
					break
				}
			}
			if rnd.IntN(2) == 0 {
				l.flush(p, r, to)
			}
		}
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
	}
	for id, e := range read(l, func() map[rocl.GID]*entry { return maps.Clone(l.resources) }) {
		if e.role != "receiver" || read(l, func() bool { return l.hasEnded(id) }) {
			continue
		}
		for range 40 { // more than a mailbox holds
			next++
			if err := l.send(p, r, id, next, 4<<10, 20*time.Second); err != nil && p.Context().Err() == nil {
				l.w.Errorf("%s, in the end: sending to %v: %v", p.Name(), id, err)
				break
			}
		}
		l.flush(p, r, id)
	}
	if p.Context().Err() == nil {
		l.set(func() { l.finished++ })
	}
	<-p.Context().Done()
}

// find finds a receiver by its name, and checks that none is denied that lives.
func (l *ledger) find(p *Process, name string) (id rocl.GID, ok bool) {
	before := read(l, func() map[rocl.GID]*entry { return maps.Clone(l.resources) })
	begun := time.Now()
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Second)
	defer cancel()
	found, err := p.Rocl().Find(ctx, rocl.Match{"role": "receiver", "name": name})
	if errors.Is(err, rocl.ErrNotFound) && !errors.Is(err, rocl.ErrPartial) {
		l.set(func() {
			for id, e := range before {
				if e.role == "receiver" && e.name == name && !l.hasEnded(id) && !p.IsKilled() && !l.w.mayDeny(p.node, e.p, begun) {
					l.w.Errorf("%s: %s was denied, and %v lives: %v", p.Name(), name, id, err)
				}
			}
		})
	}
	return found.ID, err == nil
}

// payload is what messages consist of. They are told apart by their tags.
var payload [320 << 10]byte

// size draws the size of a message. Few messages are so large that they travel in pieces.
func (l *ledger) size(rnd *rand.Rand) int {
	if rnd.IntN(200) == 0 {
		return 256<<10 + rnd.IntN(len(payload)-256<<10)
	}
	return rnd.IntN(1 << (1 + rnd.IntN(15)))
}

// send sends a message, and notes that it was accepted.
func (l *ledger) send(p *Process, r *rocl.Resource, to rocl.GID, tag uint64, size int, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer cancel()
	// It may be received before SendBytes returns.
	l.set(func() {
		f := l.flow(r.ID(), to)
		f.accepted = append(f.accepted, tag)
	})
	err := r.SendBytes(ctx, to, tag, payload[:size])
	if err != nil {
		l.set(func() {
			f := l.flow(r.ID(), to)
			f.accepted = f.accepted[:len(f.accepted)-1]
		})
	}
	return err
}

// flush calls Flush, and checks that what was sent to a receiver is in its mailbox or was reported.
func (l *ledger) flush(p *Process, r *rocl.Resource, to rocl.GID) {
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Second)
	defer cancel()
	if err := r.Flush(ctx, to); err != nil {
		return
	}
	for range 2 {
		if l.isDelivered(p, r.ID(), to) {
			return
		}
		time.Sleep(time.Nanosecond) // a receiver that has the message in its hand notes it first
	}
	l.w.Errorf("%s has flushed what it sent to %v, and the last message is not in the mailbox", p.Name(), to)
}

// isDelivered reports whether the last message of a flow is in its mailbox or was received, if both
// ends live and nothing was reported.
func (l *ledger) isDelivered(p *Process, from, to rocl.GID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flow(from, to)
	if len(f.accepted) == 0 || p.IsKilled() || l.hasEnded(to) || len(f.undelivered) > 0 {
		return true
	}
	last := f.accepted[len(f.accepted)-1]
	_, err := l.resources[to].r.Peek(rocl.From(from), rocl.Tag(last))
	return err == nil || slices.Contains(f.received, last)
}

// watcher keeps a view of the receivers.
func (l *ledger) watcher(p *Process) {
	view := map[rocl.GID]bool{}
	l.set(func() { l.views[p] = view })
	for e, err := range p.Rocl().Watch(p.Context(), rocl.Match{"role": "receiver"}) {
		if err != nil {
			if p.Context().Err() == nil {
				l.w.Errorf("%s: watching: %v", p.Name(), err)
			}
			return
		}
		l.set(func() {
			switch e.Kind {
			case rocl.Appeared, rocl.Changed:
				view[e.ID] = true
			case rocl.Gone:
				delete(view, e.ID)
			}
		})
	}
}

// check checks what the processes have done, in the end.
func (l *ledger) check(receivers int) {
	w := l.w
	lives := map[rocl.GID]bool{}
	l.set(func() {
		for id, e := range l.resources {
			if e.role == "receiver" && !l.hasEnded(id) {
				lives[id] = true
			}
		}
		for key, f := range l.flows {
			l.checkFlow(key, f)
		}
		for p, view := range l.views {
			if !p.IsKilled() && !maps.Equal(view, lives) {
				w.Errorf("%s sees %v, and %v live", p.Name(), slices.Collect(maps.Keys(view)), slices.Collect(maps.Keys(lives)))
			}
		}
		for key, m := range l.monitors {
			if !m.hasTold && l.hasEnded(key.from) && !l.hasEnded(key.to) {
				w.Errorf("%v has ended, and the monitor of %v has not told", key.from, key.to)
			}
		}
		if l.finished != 2 {
			w.Errorf("%d senders of 2 have finished", l.finished)
		}
	})
	if len(lives) != receivers {
		w.Errorf("in the end %d receivers live, not %d", len(lives), receivers)
	}
	live := w.live()
	if len(live) != receivers+3 {
		w.Errorf("%d processes live in the end", len(live))
	}
	for _, p := range live {
		found := map[rocl.GID]bool{}
		for r, err := range p.Rocl().FindAll(w.Context(), rocl.Match{"role": "receiver"}) {
			if err != nil {
				w.Errorf("%s: listing in the end: %v", p.Name(), err)
				break
			}
			found[r.ID] = true
		}
		if !maps.Equal(found, lives) {
			w.Errorf("%s finds %v, and %v live", p.Name(), slices.Collect(maps.Keys(found)), slices.Collect(maps.Keys(lives)))
		}
	}
}

// checkFlow checks that each message was received or reported. A message in the mailbox of a killed
// process is neither, nor is one for which a process was about to send the report when it was
// killed.
func (l *ledger) checkFlow(key flowKey, f *flow) {
	if l.hasEnded(key.from) || l.resources[key.to] == nil {
		return
	}
	to := l.resources[key.to]
	if killed := to.p.wasKilled(); l.hasEnded(key.to) && (to.deleted.IsZero() || !killed.IsZero() && killed.Sub(to.deleted) < 5*time.Second) {
		return
	}
	got := map[uint64]bool{}
	for _, tag := range f.received {
		got[tag] = true
	}
	for _, tag := range f.accepted {
		if !got[tag] && !f.undelivered[tag] {
			l.w.Errorf("message %d from %v to %v was neither received nor reported: %d of %d were received", tag, key.from, key.to, len(f.received), len(f.accepted))
			return
		}
	}
}
