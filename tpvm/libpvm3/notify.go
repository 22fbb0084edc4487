// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/libpvm3/internal/numbers"
)

// The kinds of pvm_notify.
const (
	taskExit     = 1
	hostDelete   = 2
	hostAdd      = 3
	routeAdd     = 4
	routeDelete  = 5
	notifyCancel = 256
)

// notify requests messages for the ends of tasks, or for hosts that are lost or added, or withdraws
// such a request.
func (l *library) notify(ctx context.Context, what, tag, count int, tids []int) error {
	cancel := what&notifyCancel != 0
	what &^= notifyCancel
	if what < taskExit || what > routeDelete || tag < 0 || what != hostAdd && len(tids) == 0 {
		return badParam
	}
	switch what {
	case routeAdd, routeDelete: // rocl chooses routes, and sends no messages about them
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

// notifyEnd requests a message for the end of a task or the loss of a host. If it has ended or is
// lost already, the message comes at once. With cancel, notifyEnd withdraws the request and, as PVM
// does, sends the message too.
func (l *library) notifyEnd(ctx context.Context, n notice, cancel bool) error {
	w := l.notices[n]
	switch {
	case cancel:
		if w != nil {
			l.queueNotice(n.tag, l.context, n.tid)
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
		l.queueNotice(n.tag, l.context, n.tid)
	}
	if err != nil || !ok {
		return err
	}
	stop, err := notify(context.Background(), n.tag, id) // until the message has come or the request is withdrawn
	if err == nil {
		l.notices[n] = &watch{times: 1, stop: stop}
	}
	return err
}

// ended makes the messages that were requested for a task that has ended or a host that is lost.
func (l *library) ended(n notice, mc int) {
	w := l.notices[n]
	if w == nil { // the request was withdrawn
		return
	}
	delete(l.notices, n)
	w.stop()
	for range w.times {
		l.queueNotice(n.tag, mc, n.tid)
	}
}

// notifyAdded requests count messages for hosts that are added. 0 requests none, and a negative
// count requests all.
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

// endAdded withdraws the request for hosts that are added.
func (l *library) endAdded() {
	if l.hostsAdded.stop != nil {
		l.hostsAdded.stop()
	}
	l.hostsAdded = hostsAdded{}
}

// withdraw withdraws all requests.
func (l *library) withdraw() {
	l.endAdded()
	for _, w := range l.notices {
		w.stop()
	}
	clear(l.notices)
	l.watchesHosts = false
}

// hostEvent returns the event of a message of NotifyHosts. ok is false for any other message.
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

// takeHost makes the messages for the program that an event of a host calls for.
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
		l.queueNotice(tag, mc, 1, tid)
	}
	return nil
}
