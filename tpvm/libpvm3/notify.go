// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/libpvm3/numbers"
)

// Kinds of pvm_notify.
const (
	taskExit     = 1
	hostDelete   = 2
	hostAdd      = 3
	routeAdd     = 4
	routeDelete  = 5
	notifyCancel = 256
)

// notify has messages sent when tasks end, or hosts are lost or added, or withdraws that.
func (l *library) notify(ctx context.Context, what, tag, count int, tids []int) error {
	cancel := what&notifyCancel != 0
	what &^= notifyCancel
	if what < taskExit || what > routeDelete || tag < 0 || what != hostAdd && len(tids) == 0 {
		return badParam
	}
	switch what {
	case routeAdd, routeDelete: // rocl chooses routes, and tells nobody
		return notImpl
	case hostAdd:
		if cancel {
			count = 0
		}
		return l.notifyAdded(tag, count)
	case taskExit:
		for _, tid := range tids {
			if !numbers.Valid(tid) || numbers.IsHost(tid) {
				return badParam
			}
		}
	}
	for _, tid := range tids {
		if what == hostDelete && numbers.Valid(tid) {
			tid = hostOf(tid)
		}
		if err := l.notifyEnd(ctx, notice{what, tag, tid}, cancel); err != nil {
			return err
		}
	}
	return nil
}

// notifyEnd has a message sent when a task has ended or a host is lost: at once for one that is
// not there. Withdrawing it has the message sent too, as with PVM.
func (l *library) notifyEnd(ctx context.Context, n notice, cancel bool) error {
	w := l.notices[n]
	switch {
	case cancel:
		if w != nil {
			l.tell(n.tag, l.context, n.tid)
			if w.times--; w.times == 0 {
				w.stop()
				delete(l.notices, n)
			}
		}
		return nil
	case w != nil:
		w.times++
		return nil
	}
	notify, find := l.task.Notify, l.lookup
	if n.what == hostDelete {
		notify, find = l.task.NotifyHosts, l.hostWith
		l.watchesHosts = true
	}
	id, ok, err := find(ctx, n.tid)
	if err == nil && !ok {
		l.tell(n.tag, l.context, n.tid)
	}
	if err != nil || !ok {
		return err
	}
	stop, err := notify(context.Background(), n.tag, id) // until it is told or withdrawn
	if err == nil {
		l.notices[n] = &watch{times: 1, stop: stop}
	}
	return err
}

// ended tells what was asked for of a task that has ended or a host that is lost.
func (l *library) ended(n notice, mc int) {
	w := l.notices[n]
	if w == nil { // it was withdrawn
		return
	}
	delete(l.notices, n)
	w.stop()
	for range w.times {
		l.tell(n.tag, mc, n.tid)
	}
}

// notifyAdded has count messages sent when hosts are added: 0 for none, and less for all.
func (l *library) notifyAdded(tag, count int) error {
	l.endAdded()
	if count == 0 {
		return nil
	}
	stop, err := l.task.NotifyHosts(context.Background(), tag)
	if err == nil {
		l.hostsAdded = hostsAdded{tag: tag, left: count, stop: stop}
		l.watchesHosts = true
	}
	return err
}

// endAdded withdraws the notice of hosts that are added.
func (l *library) endAdded() {
	if l.hostsAdded.stop != nil {
		l.hostsAdded.stop()
	}
	l.hostsAdded = hostsAdded{}
}

// withdraw withdraws all notices.
func (l *library) withdraw() {
	l.endAdded()
	for _, w := range l.notices {
		w.stop()
	}
	clear(l.notices)
	l.watchesHosts = false
}

// hostEvent returns what a message of NotifyHosts tells. ok is false for any other.
func (l *library) hostEvent(m *tpvm.Message) (e tpvm.HostEvent, ok bool) {
	if !l.watchesHosts || m.From() != l.task.ID() {
		return e, false
	}
	begin := m.Reader
	e, err := m.HostEvent()
	if err == nil && m.Remaining() == 0 {
		return e, true
	}
	m.Reader = begin
	return e, false
}

// takeHost tells the program of a host.
func (l *library) takeHost(ctx context.Context, m *tpvm.Message, e tpvm.HostEvent) error {
	n, err := l.numbers.Host(ctx, uint64(e.ID.Node()))
	if err != nil {
		return err
	}
	tag, mc, tid := m.Tag(), int(m.Context()), numbers.HostTID(n)
	if e.IsGone {
		l.ended(notice{hostDelete, tag, tid}, mc)
		return nil
	}
	if a := &l.hostsAdded; a.left != 0 && a.tag == tag {
		if a.left--; a.left == 0 {
			l.endAdded()
		}
		l.tell(tag, mc, 1, tid)
	}
	return nil
}
