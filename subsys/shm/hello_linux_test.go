// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package shm

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// hasGroups is whether users of a group share memory on this system.
const hasGroups = true

// makeNapPage makes the page on which n naps, which stays until its Poller is closed.
func makeNapPage(t *testing.T, n *node) { try.Get(n.Poller().NapPage())(t) }

// A peer that sends nothing, or nonsense, instead of a hello is refused.
func TestInvalidHello(t *testing.T) {
	n := start(t)
	seg, p := helloParts(t)
	page, bell := n.Port.(*port).bell.page, n.Port.(*port).bell.fd
	nap := try.Get(n.Poller().NapPage())(t)
	h := hello()
	other := h
	other[8]++
	n.refuses(t, []badHello{
		{nil, nil}, {[]byte("x"), nil}, {h[:], nil}, {h[:], []int{seg, page}}, {h[:], []int{seg, page, bell}}, {h[:], []int{seg, page, nap, p[1]}},
		{h[:], []int{p[0], page, nap, bell}}, {h[:], []int{page, seg, nap, bell}}, {other[:], []int{seg, page, nap, bell}}, {append(h[:], 0), nil},
		{h[:], []int{seg, page, p[0], bell}}, {h[:], []int{seg, page, page, bell}}, {h[:], []int{seg, page, seg, bell}}, {h[:], []int{seg, page, nap, bell, p[0]}},
		{h[:], []int{seg, page, p[1], p[0], p[0], p[0], p[0], p[0], p[0], p[0], p[0], p[0]}},
	})
}
