// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"runtime"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// A mailbox has its handler and its unit as soon as a message can come to it. Otherwise the first
// message could be stored with no goroutine to pass it to the handler, or be let in uncounted.
func TestMailboxIsCompleteWhenPublished(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	const each = 10_000
	find := func(serial uint32) *Mailbox {
		for {
			if m := d.mailbox(serial); m != nil {
				return m
			}
			runtime.Gosched()
		}
	}
	incomplete := make(chan int)
	go func() {
		n := 0
		for i := range uint32(each) {
			m := find(1 + i)
			m.mu.Lock()
			if m.handle == nil {
				n++
			}
			m.mu.Unlock()
			m = find(1 + i | Bounded)
			m.mu.Lock()
			if m.credit.Limit()%10 != 0 { // the default is no multiple of ten units
				n++
			}
			m.mu.Unlock()
		}
		incomplete <- n
	}()
	for i := range uint32(each) {
		try.Check(t, d.Serve(1+i, 0, func(*Message) bool { return true }))
		try.Check(t, errOf(d.BoundedMailbox(1+i|Bounded, 0, 10)))
		runtime.Gosched()
	}
	if n := <-incomplete; n > 0 {
		t.Errorf("%d mailboxes were found incomplete", n)
	}
}
