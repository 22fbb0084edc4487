// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// resourceOf returns what a snapshot has of a resource.
func resourceOf(t testing.TB, s rocl.Snapshot, id rocl.GID) rocl.ResourceSnapshot {
	t.Helper()
	for _, r := range s.Resources {
		if r.Resource == id {
			return r
		}
	}
	t.Fatalf("%v is not in the snapshot", id)
	return rocl.ResourceSnapshot{}
}

// Promise: 300 acknowledged messages that lie unread in a mailbox are seen as 300, from outside.
func TestUnreadMessagesAreSeen(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b, looker := open(), open(), open()
		from, to := newResource(t, a, nil), newResource(t, b, rocl.Attrs{"type": "shard", "id": "2"})
		for range 300 {
			send(t, from, to.ID(), "unread")
		}
		try.OK(t, from.Flush(bg))
		s := try.Get(looker.SnapshotOf(bg, b.ID()))(t)
		r := resourceOf(t, s, to.ID())
		if r.Messages != 300 || r.Bytes != 300*70 || r.Arrived != r.Bytes || r.Received != 0 || r.First.From != from.ID() || r.First.Bytes != 6 {
			t.Errorf("300 messages show as %+v", r)
		}
		if r.Name != "id=2 type=shard" && r.Name != "type=shard id=2" {
			t.Errorf("the name is %q", r.Name)
		}
	})
}
