// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/resource"
)

// A message goes to the first receiver that it is for, for any number of receivers and any
// selectors.
func TestReceiversModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l receivers
		var waiting []*waiter
		is := map[*waiter]condition{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				n := 0
				for w := l.First(); w != nil; w = w.place.Next() {
					if n == len(waiting) || waiting[n] != w {
						t.Fatal("the list is out of order")
					}
					n++
				}
				if n != len(waiting) {
					t.Fatalf("%d receivers wait, %d should", n, len(waiting))
				}
			},
			"wait": func(t *rapid.T) {
				for range rapid.IntRange(1, 30).Draw(t, "receivers") {
					sel, c := drawFrom(t, id(4).Context())
					if sel.err() != nil {
						continue
					}
					w := &waiter{sel: sel}
					is[w] = c
					l.push(w)
					waiting = append(waiting, w)
				}
			},
			"put": func(t *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(t, "messages") {
					msg := &Message{from: id(rapid.Uint32Range(4, 7).Draw(t, "from")), tag: rapid.Uint64Range(0, 15).Draw(t, "tag")}
					i := slices.IndexFunc(waiting, func(w *waiter) bool { return is[w](msg.from, msg.tag) })
					w := l.findLocked(msg)
					if i < 0 {
						if w != nil {
							t.Fatal("a message that no receiver selects has a receiver")
						}
						continue
					}
					if w != waiting[i] {
						t.Fatalf("receiver %d is found, want %d", slices.Index(waiting, w), i)
					}
					l.remove(w)
					waiting = slices.Delete(waiting, i, i+1)
				}
			},
			"cancel": func(t *rapid.T) {
				if len(waiting) > 0 {
					i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
					l.remove(waiting[i])
					waiting = slices.Delete(waiting, i, i+1)
				}
			},
			"leave": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "all") == 0 {
					l.removeAll()
					waiting = nil
				}
			},
		})
		l.removeAll()
		if len(l.queues) != 0 || l.until != nil || l.First() != nil {
			t.Fatalf("%d queues are left of receivers that have gone", len(l.queues))
		}
	})
}

func (l *receivers) removeAll() {
	for l.First() != nil {
		l.remove(l.First())
	}
}

// A message is compared with few of many receivers that wait for other messages.
func TestManyReceivers(t *testing.T) {
	var l receivers
	for i := range uint64(1000) {
		l.push(&waiter{sel: All(From(id(uint32(i))), Tag(i))})
	}
	for i := range uint64(1000) {
		tag := 999 - i
		w := l.findLocked(&Message{from: id(uint32(tag)), tag: tag})
		if w == nil || w.sel.first != tag {
			t.Fatalf("tag %d finds %v", tag, w)
		}
		l.remove(w)
	}
	if len(l.queues) != 0 || l.queues != nil {
		t.Fatalf("%d queues are left, or their memory", len(l.queues))
	}
	if l.findLocked(&Message{from: resource.GID{}}) != nil {
		t.Fatal("a receiver is left")
	}
}
