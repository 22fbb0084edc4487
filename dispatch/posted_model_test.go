// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/dispatch/internal/session"
)

// Posted memory, messages, cancellations, ends of origins and of the mailbox, in any order, have
// the outcome that a model says.
func TestPostedModel(t *testing.T) {
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			pm := &postedModel{t: t, a: w.node(t, 1, tr), b: w.node(t, 2, tr), serial: 10}
			rapid.Check(t, func(rt *rapid.T) {
				pm.begin()
				defer pm.end(rt)
				rt.Repeat(map[string]func(*rapid.T){
					"post":    pm.post,
					"send":    pm.send,
					"send2":   pm.send, // as often as post
					"wait":    pm.wait,
					"cancel":  pm.cancel,
					"race":    pm.race,
					"receive": pm.receive,
					"die":     pm.die,
					"close":   pm.close,
				})
			})
		})
	}
}

// A postedModel has a mailbox, the origins of its messages, and what the model says about them.
type postedModel struct {
	t      *testing.T
	a, b   *Dispatcher // of the origins, and of the mailbox
	serial uint32      // the last one given to a mailbox
	number byte        // of the last message

	soon     context.Context // ends when a case takes too long
	release  context.CancelFunc
	mb       *Mailbox
	origins  []*modelOrigin
	posts    []*modelPost // in order, without those whose Wait has returned
	stored   []modelMessage
	held     []heldMessage
	spoiled  []modelMemory // memory that belongs to the program again
	isClosed bool
}

type modelOrigin struct {
	mb     *Mailbox
	to     *Flow
	isDead bool
}

type modelMessage struct {
	from *modelOrigin
	tag  uint64
	data []byte
}

type modelPost struct {
	p    *Posted
	from *modelOrigin
	tag  uint64
	dst  []byte
	msg  *modelMessage // nil: none has come
}

// A heldMessage was returned by Wait and is not released yet.
type heldMessage struct {
	msg  *Message
	data []byte
}

// A modelMemory must keep its bytes.
type modelMemory struct{ mem, want []byte }

func (pm *postedModel) box(d *Dispatcher) *Mailbox {
	pm.serial++
	return box(pm.t, d, pm.serial, 64<<20)
}

func (pm *postedModel) begin() {
	pm.soon, pm.release = context.WithTimeout(context.Background(), 5*time.Minute)
	pm.mb, pm.isClosed = pm.box(pm.b), false
	pm.origins, pm.posts, pm.stored, pm.held, pm.spoiled = nil, nil, nil, nil, nil
	for range 2 {
		pm.origins = append(pm.origins, &modelOrigin{mb: pm.box(pm.a), to: flow(pm.t, pm.a, pm.mb)})
	}
}

// end checks the messages that are left, and that nothing is written to the memory of Posteds that
// have ended.
func (pm *postedModel) end(rt *rapid.T) {
	defer pm.release()
	for len(pm.posts) > 0 {
		pm.waitFor(rt, 0, true)
	}
	for len(pm.stored) > 0 {
		pm.receive(rt)
	}
	for _, h := range pm.held {
		if !bytes.Equal(h.msg.Bytes(), h.data) {
			rt.Error("a message has changed")
		}
		h.msg.Release()
	}
	for _, m := range pm.spoiled {
		if !bytes.Equal(m.mem, m.want) {
			rt.Error("bytes were written to memory that was taken back")
		}
	}
	if pm.mb.posts != nil || pm.mb.posted.Load() != 0 {
		rt.Errorf("%d posts are left", pm.mb.posted.Load())
	}
	pm.mb.Close()
	for _, o := range pm.origins {
		o.mb.Close()
	}
}

func (pm *postedModel) drawKey(rt *rapid.T) (*modelOrigin, uint64) {
	return rapid.SampledFrom(pm.origins).Draw(rt, "origin"), rapid.Uint64Range(1, 2).Draw(rt, "tag")
}

// modelSizes are the sizes of messages and of posted memory. Small ones are more frequent.
var modelSizes = []int{0, 1, 50, 50, 51, 52, 3000, 3001, 20_000, session.WholeLen - 1, session.WholeLen, session.PieceLen + 1, 2*session.PieceLen + 5}

func (pm *postedModel) post(rt *rapid.T) {
	from, tag := pm.drawKey(rt)
	dst := bytes.Repeat([]byte{0xee}, rapid.SampledFrom(modelSizes).Draw(rt, "memory"))
	p, err := pm.mb.Post(pm.soon, from.mb.d.self.WithSerial(from.mb.serial), tag, dst)
	if pm.isClosed {
		if !errors.Is(err, ErrClosed) {
			rt.Fatalf("post to a closed mailbox: %v", err)
		}
		return
	}
	if err != nil {
		rt.Fatal(err)
	}
	mp := &modelPost{p: p, from: from, tag: tag, dst: dst}
	if i := slices.IndexFunc(pm.stored, func(m modelMessage) bool { return m.from == from && m.tag == tag }); i >= 0 {
		m := pm.stored[i]
		mp.msg, pm.stored = &m, slices.Delete(pm.stored, i, i+1)
	}
	pm.posts = append(pm.posts, mp)
}

// sends begins to send a message of n bytes. It returns nil if that is not possible.
func (pm *postedModel) sends(from *modelOrigin, tag uint64, n int) (m *modelMessage, sent chan error) {
	if from.isDead || pm.isClosed {
		return nil, nil
	}
	pm.number++
	m, sent = &modelMessage{from, tag, bytes.Repeat([]byte{pm.number}, n)}, make(chan error, 1)
	go func() { sent <- from.to.Send(pm.soon, from.mb.serial, tag, buf(pm.t, pm.a, string(m.data))) }()
	return m, sent
}

// delivered waits until a message is delivered. The model gives it to the first memory posted for
// it, or stores it.
func (pm *postedModel) delivered(rt *rapid.T, m *modelMessage, sent chan error) {
	if err := errors.Join(<-sent, m.from.mb.Flush(pm.soon)); err != nil {
		rt.Fatal(err)
	}
	for _, mp := range pm.posts {
		if mp.from == m.from && mp.tag == m.tag && mp.msg == nil {
			mp.msg = m
			return
		}
	}
	pm.stored = append(pm.stored, *m)
}

func (pm *postedModel) send(rt *rapid.T) {
	from, tag := pm.drawKey(rt)
	if m, sent := pm.sends(from, tag, rapid.SampledFrom(modelSizes).Draw(rt, "message")); m != nil {
		pm.delivered(rt, m, sent)
	}
}

// wait waits for a Posted that does not wait for ever.
func (pm *postedModel) wait(rt *rapid.T) {
	var ready []int
	for i, mp := range pm.posts {
		if mp.msg != nil || mp.from.isDead || pm.isClosed {
			ready = append(ready, i)
		}
	}
	if len(ready) == 0 {
		rt.Skip("none ends")
	}
	pm.waitFor(rt, rapid.SampledFrom(ready).Draw(rt, "which"), false)
}

func (pm *postedModel) cancel(rt *rapid.T) {
	if len(pm.posts) == 0 {
		rt.Skip("none is posted")
	}
	pm.waitFor(rt, rapid.IntRange(0, len(pm.posts)-1).Draw(rt, "which"), true)
}

// waitFor calls Wait of a Posted, with a context that has ended if the wait is cancelled, and
// checks the outcome.
func (pm *postedModel) waitFor(rt *rapid.T, i int, isCancelled bool) {
	mp := pm.posts[i]
	pm.posts = slices.Delete(pm.posts, i, i+1)
	msg, err := mp.p.Wait(pm.ctx(isCancelled))
	switch {
	case mp.msg != nil:
		if err != nil {
			rt.Fatalf("a message of %d bytes has come: %v", len(mp.msg.data), err)
		}
		pm.got(rt, mp, msg)
	case err == nil:
		rt.Fatalf("a message of %d bytes that was not sent", msg.Len())
	case pm.isClosed && errors.Is(err, ErrClosed):
	case mp.from.isDead && errors.Is(err, ErrGone):
	case isCancelled && errors.Is(err, context.Canceled):
	default:
		rt.Fatalf("closed %v, dead %v, cancelled %v: %v", pm.isClosed, mp.from.isDead, isCancelled, err)
	}
	if mp.msg == nil {
		pm.spoiled = append(pm.spoiled, modelMemory{mp.dst, bytes.Clone(mp.dst)})
	}
}

func (pm *postedModel) ctx(isCancelled bool) context.Context {
	if !isCancelled {
		return pm.soon
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// got checks a message that Wait has returned.
func (pm *postedModel) got(rt *rapid.T, mp *modelPost, msg *Message) {
	want := mp.msg.data
	if !bytes.Equal(msg.Bytes(), want) || msg.Tag() != mp.tag || msg.From() != mp.from.mb.d.self.WithSerial(mp.from.mb.serial) {
		rt.Fatalf("another message: %d bytes, %d wanted", msg.Len(), len(want))
	}
	fits := len(want) <= len(mp.dst)
	if fits != lies(msg, mp.dst) && len(want) > 0 {
		rt.Fatalf("%d bytes for %d: in the memory: %v", len(want), len(mp.dst), !fits)
	}
	rest := mp.dst
	if fits {
		rest = rest[len(want):]
	}
	if !bytes.Equal(rest, bytes.Repeat([]byte{0xee}, len(rest))) {
		rt.Fatal("bytes behind the message were written")
	}
	pm.held = append(pm.held, heldMessage{msg, want})
}

// race cancels the first Posted for a message while the message is under way. Either the Posted has
// the message, or the next one, or the mailbox.
func (pm *postedModel) race(rt *rapid.T) {
	i := slices.IndexFunc(pm.posts, func(mp *modelPost) bool { return mp.msg == nil })
	if i < 0 || pm.isClosed || pm.posts[i].from.isDead {
		rt.Skip("no Posted waits")
	}
	mp := pm.posts[i]
	m, sent := pm.sends(mp.from, mp.tag, max(0, len(mp.dst)-rapid.IntRange(-1, 1).Draw(rt, "longer")))
	for range rapid.IntRange(0, 20).Draw(rt, "looks") {
		pm.b.pollOnce()
	}
	msg, err := mp.p.Wait(pm.ctx(true))
	pm.posts = slices.Delete(pm.posts, i, i+1)
	switch {
	case err == nil:
		mp.msg = m
		pm.got(rt, mp, msg)
		err = <-sent
	case errors.Is(err, context.Canceled):
		clear(mp.dst)
		pm.spoiled = append(pm.spoiled, modelMemory{mp.dst, bytes.Clone(mp.dst)})
		pm.delivered(rt, m, sent)
		err = nil
	}
	if err != nil {
		rt.Fatal(err)
	}
}

// receive takes a message from the mailbox: any, or one with a tag.
func (pm *postedModel) receive(rt *rapid.T) {
	var sel []Select
	i := 0
	if rapid.Bool().Draw(rt, "by tag") {
		tag := rapid.Uint64Range(1, 2).Draw(rt, "tag")
		sel = append(sel, Tag(tag))
		i = slices.IndexFunc(pm.stored, func(m modelMessage) bool { return m.tag == tag })
	}
	if i < 0 || len(pm.stored) == 0 {
		if msg, err := pm.mb.TryRecv(sel...); err == nil {
			rt.Fatalf("a message of %d bytes that was posted for", msg.Len())
		}
		return
	}
	want := pm.stored[i]
	pm.stored = slices.Delete(pm.stored, i, i+1)
	msg, err := pm.mb.Recv(pm.soon, sel...)
	if err != nil || !bytes.Equal(msg.Bytes(), want.data) || msg.Tag() != want.tag {
		rt.Fatalf("another message than that of %d bytes: %v", len(want.data), err)
	}
	msg.Release()
}

// die ends an origin, and its successor begins.
func (pm *postedModel) die(rt *rapid.T) {
	i := rapid.IntRange(0, len(pm.origins)-1).Draw(rt, "origin")
	o := pm.origins[i]
	if rapid.IntRange(0, 3).Draw(rt, "dies") > 0 || o.isDead {
		return
	}
	o.mb.Close()
	o.isDead = true
	if !pm.isClosed && rapid.Bool().Draw(rt, "has a successor") {
		pm.origins[i] = &modelOrigin{mb: pm.box(pm.a), to: flow(pm.t, pm.a, pm.mb)}
	}
}

// close closes the mailbox: the stored messages are gone, and those that have come to posted memory
// stay.
func (pm *postedModel) close(rt *rapid.T) {
	if rapid.IntRange(0, 9).Draw(rt, "closes") > 0 {
		return
	}
	pm.mb.Close()
	pm.isClosed, pm.stored = true, nil
}
