// SPDX-License-Identifier: Apache-2.0

package dispatch

// traffic counts the messages of a link. link.mu guards it; Dispatcher.mu guards Dispatcher.past.
type traffic struct {
	sent, received   map[string]uint64 // by transport
	sentB, receivedB uint64
	copies, copiedB  uint64 // of small payloads into batches
	resumed          uint64
	resent           uint64
	moved            uint64 // changes of transport
	stuck            uint64 // receives that failed with ErrStuck; only in Dispatcher.past
}

// add adds the counts of o to t.
func (t *traffic) add(o *traffic) {
	if t.sent == nil {
		t.sent, t.received = map[string]uint64{}, map[string]uint64{}
	}
	for k, v := range o.sent {
		t.sent[k] += v
	}
	for k, v := range o.received {
		t.received[k] += v
	}
	t.sentB += o.sentB
	t.receivedB += o.receivedB
	t.copies += o.copies
	t.copiedB += o.copiedB
	t.resumed += o.resumed
	t.resent += o.resent
	t.moved += o.moved
	t.stuck += o.stuck
}

// addRoute adds the counts of a route within the process.
func (t *traffic) addRoute(r Route) {
	t.add(&traffic{
		sent: map[string]uint64{r.Transport: r.Sent}, received: map[string]uint64{r.Transport: r.Received},
		sentB: r.SentBytes, receivedB: r.ReceivedBytes,
	})
}

// flushCountersLocked moves the counts of the present connection to traffic. mu must be held.
func (l *link) flushCountersLocked() {
	if l.conn == nil {
		return
	}
	t, name := &l.traffic, l.conn.Transport()
	if t.sent == nil {
		t.sent, t.received = map[string]uint64{}, map[string]uint64{}
	}
	t.sent[name] += l.sentNow
	got := l.got.Swap(0)
	t.received[name] += got >> gotBits
	t.receivedB += got & (1<<gotBits - 1)
	l.sentNow = 0
}
