// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// A HostEvent is the content of a message of NotifyHosts.
type HostEvent struct {
	Host        // as it was known last; without Tasks, Launcher and Added
	IsGone bool // the host was lost; otherwise it has joined
}

// NotifyHosts makes the library send the thread a message with a tag when a host has been lost: its
// node has left the cluster, has died, or is out of reach. With ids of hosts (Host.ID), there is
// one message for each of them, at once for a host that is lost already. Without ids, there is a
// message for each host that is lost and for each that joins, from now on.
//
// Message.HostEvent returns the content of the message. The sender of the message is the receiving
// thread itself; receive it with AnyTask. The events of one NotifyHosts come in their order.
// Messages of tasks on the host may come later. The message of Notify about a task comes after the
// task's last message.
//
// stop ends the notification of further events. So do the ends of ctx and of the thread.
func (t *Thread) NotifyHosts(ctx context.Context, tag int, ids ...TID) (stop func(), err error) {
	defer wrap(&err, "tpvm: notify of hosts")
	tg, err := t.tag(tag)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	cancel := func() { end(ErrExited) }
	unbind := context.AfterFunc(t.ctx, cancel)
	w := &hostWatch{t: t, tag: tg, ids: slices.Clone(ids), isAll: len(ids) == 0, known: map[TID]Host{}}
	synced, ended := make(chan struct{}), make(chan error, 1)
	if !t.task.work.goes(func() {
		defer unbind()
		defer cancel()
		ended <- w.run(ctx, func() { close(synced) })
		close(ended)
	}) {
		unbind()
		cancel()
		return nil, ErrExited
	}
	stop = func() {
		cancel()
		<-ended
	}
	select {
	case <-synced:
		return stop, nil
	case err := <-ended:
		select {
		case <-synced: // all events have been sent
			return stop, nil
		default:
		}
		return nil, err
	}
}

// A hostWatch turns events of a watch on nodes into messages.
type hostWatch struct {
	t     *Thread
	tag   uint64
	ids   []TID // of hosts whose loss has not been reported
	isAll bool
	known map[TID]Host // the hosts that are in the cluster
}

// run watches until ctx ends. It calls synced when the present hosts are known.
func (w *hostWatch) run(ctx context.Context, synced func()) error {
	isSynced := false
	for e, err := range w.t.task.c.Watch(ctx, rocl.Match{rocl.AttrKind: "node"}) {
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if isSynced {
				w.t.task.log.Error("tpvm: a notification of hosts ended early", "thread", w.t.String(), "err", err)
			}
			return err
		}
		was, isKnown := w.known[e.ID]
		switch e.Kind {
		case rocl.Appeared, rocl.Changed:
			w.known[e.ID] = host(e.Found)
			if isSynced && !isKnown && w.isAll {
				err = w.notify(ctx, HostEvent{Host: w.known[e.ID]})
			}
		case rocl.Gone:
			delete(w.known, e.ID)
			if was.ID = e.ID; isSynced {
				err = w.lost(ctx, was)
			}
		case rocl.Synced:
			if isSynced {
				continue
			}
			isSynced = true
			synced()
			for _, id := range slices.Clone(w.ids) {
				if _, ok := w.known[id]; !ok && err == nil {
					err = w.lost(ctx, Host{ID: id})
				}
			}
		}
		if err != nil {
			return err
		}
		if !w.isAll && isSynced && len(w.ids) == 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

// lost reports that a host was lost, if the caller of NotifyHosts asked for that.
func (w *hostWatch) lost(ctx context.Context, h Host) error {
	if w.isAll {
		return w.notify(ctx, HostEvent{Host: h, IsGone: true})
	}
	for {
		i := slices.Index(w.ids, h.ID)
		if i < 0 {
			return nil
		}
		w.ids = slices.Delete(w.ids, i, i+1)
		if err := w.notify(ctx, HostEvent{Host: h, IsGone: true}); err != nil {
			return err
		}
	}
}

// notify sends the message of an event to the thread.
func (w *hostWatch) notify(ctx context.Context, e HostEvent) error {
	b := pack.NewBuffer(pack.Default)
	isGone := int32(0)
	if e.IsGone {
		isGone = 1
	}
	if err := b.PackValues(e.ID.String(), e.Node, e.Name, e.Arch, int32(min(max(e.Cores, 0), math.MaxInt32)), isGone); err != nil {
		return err
	}
	return w.t.send(ctx, w.t.ID(), w.tag, b)
}

// HostEvent unpacks the event of a message of NotifyHosts.
func (m *Message) HostEvent() (e HostEvent, err error) {
	var id string
	var cores, isGone int32
	if err = m.UnpackValues(&id, &e.Node, &e.Name, &e.Arch, &cores, &isGone); err == nil {
		e.ID, err = rocl.ParseGID(id)
	}
	if err != nil {
		return HostEvent{}, fmt.Errorf("tpvm: unpack the event of a host: %w", err)
	}
	e.Cores, e.IsGone = int(cores), isGone != 0
	return e, nil
}
