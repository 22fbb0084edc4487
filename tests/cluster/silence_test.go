// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// Post is a series of messages to one resource, one each Every, whose tags count from 1.
type Post struct {
	To    rocl.GID
	Every time.Duration
}

// Posted is the result of a Post.
type Posted struct {
	Accepted []uint64 // tags that Send accepted
	Refused  int
	Reported []uint64 // tags for which WithUndelivered was called
}

// A poster sends the messages of a Post until it is stopped.
type poster struct {
	mu  sync.Mutex
	did Posted

	stop    context.CancelFunc
	stopped chan struct{}
}

func (p *poster) report(u rocl.Undelivered) {
	p.mu.Lock()
	p.did.Reported = append(p.did.Reported, u.Tag)
	p.mu.Unlock()
}

// Post begins a series.
func (a *Agent) Post(p Post, _ *struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	a.posts.stop, a.posts.stopped = cancel, make(chan struct{})
	go func() {
		defer close(a.posts.stopped)
		tick := time.NewTicker(p.Every)
		defer tick.Stop()
		for tag := uint64(1); ctx.Err() == nil; tag++ {
			err := a.me.SendBytes(ctx, p.To, tag, []byte("hello"))
			a.posts.mu.Lock()
			if err == nil {
				a.posts.did.Accepted = append(a.posts.did.Accepted, tag)
			} else {
				a.posts.did.Refused++
			}
			a.posts.mu.Unlock()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return nil
}

// EndPost ends the series.
func (a *Agent) EndPost(_ struct{}, _ *struct{}) error {
	a.posts.stop()
	<-a.posts.stopped
	return nil
}

// Posted returns the result so far.
func (a *Agent) Posted(_ struct{}, out *Posted) error {
	a.posts.mu.Lock()
	defer a.posts.mu.Unlock()
	*out = Posted{slices.Clone(a.posts.did.Accepted), a.posts.did.Refused, slices.Clone(a.posts.did.Reported)}
	return nil
}

// Drain receives the messages in a resource's mailbox, without waiting, and returns the tags.
func (a *Agent) Drain(id rocl.GID, tags *[]uint64) error {
	a.mu.Lock()
	r := a.rs[id]
	a.mu.Unlock()
	for {
		m, err := r.TryRecv()
		if err != nil {
			return nil
		}
		*tags = append(*tags, m.Tag())
		m.Release()
	}
}

// If a machine falls silent, and no connection ends, senders get a report of the messages that they
// had accepted. When it is back, messages move again. Each message comes at most once, in order,
// and each accepted message comes or is reported. A cut that is too short for a death loses no
// message.
func TestSilentMachine(t *testing.T) {
	parallel(t)
	for _, sealed := range []bool{true, false} {
		l := newLab(t, 2)
		if !sealed {
			l.key = ""
		}
		for _, n := range l.nodes {
			l.start(n)
		}
		l.together(l.nodes...)
		from, to := l.nodes[0].agent(), l.nodes[1].agent()
		from.register(rocl.Attrs{"who": "sender"})
		id := to.register(rocl.Attrs{"who": "receiver"})
		from.say(to, id, "hello")
		do[Post, struct{}](from, "Post", Post{id, 10 * time.Millisecond})
		posted := func() Posted { return do[struct{}, Posted](from, "Posted", struct{}{}) }
		var got []uint64
		moved := func(what string) {
			t.Helper()
			var accepted []uint64
			eventually.True(t, "a message is accepted", func() bool { accepted = posted().Accepted; return len(accepted) > 0 })
			last := accepted[len(accepted)-1]
			eventually.True(t, what, func() bool {
				got = append(got, do[rocl.GID, []uint64](to, "Drain", id)...)
				return len(got) > 0 && got[len(got)-1] > last
			})
		}
		moved("messages before a cut")

		one, other := l.nodes[:1], l.nodes[1:]
		l.cut(one, other)
		time.Sleep(500 * time.Millisecond) // the length of the cut: a machine is dead for others later
		l.heal()
		healed := time.Now()
		moved("messages after a short cut")
		short := time.Since(healed)

		l.cut(one, other)
		eventually.True(t, "senders are told of a silent machine", func() bool { p := posted(); return len(p.Reported) > 0 && p.Refused > 0 })
		l.heal()
		healed = time.Now()
		l.together(l.nodes...)
		met := time.Since(healed)
		moved("messages after a long cut")
		t.Logf("sealed %v: messages %v after a short cut; after a long one the cluster %v, messages %v", sealed, short, met, time.Since(healed))
		do[struct{}, struct{}](from, "EndPost", struct{}{})
		end := posted()
		eventually.True(t, "each message comes or is reported", func() bool {
			got = append(got, do[rocl.GID, []uint64](to, "Drain", id)...)
			end = posted()
			return !slices.ContainsFunc(end.Accepted, func(tag uint64) bool {
				return !slices.Contains(got, tag) && !slices.Contains(end.Reported, tag)
			})
		})
		for i := range got[1:] {
			if got[i+1] <= got[i] {
				t.Errorf("%d came after %d", got[i+1], got[i])
			}
		}
	}
}
