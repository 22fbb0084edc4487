// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// Contexts link if they have one key in common, at any place on either side and whichever side
// dials. Otherwise they do not.
//
// Promise (TLS): Link keys change without cutting links or refusing contexts meanwhile. See also
// TestTermsChange.
func TestSeveralKeys(t *testing.T) {
	many := make([]string, maxKeys)
	for i := range many {
		many[i] = fmt.Sprint("key ", i)
	}
	for i, c := range []struct {
		a, b []string
		link bool
	}{
		{[]string{"old"}, []string{"old"}, true},
		{[]string{"old"}, []string{"old", "new"}, true},
		{[]string{"old"}, []string{"new", "old"}, true},
		{[]string{"old", "new"}, []string{"new", "old"}, true},
		{[]string{"old", "new"}, []string{"newer", "new"}, true},
		{many, []string{"key 7"}, true},
		{append(slices.Clone(many), "one too many"), []string{"one too many"}, false},
		{[]string{"old"}, []string{"new"}, false},
		{[]string{"old", "older"}, []string{"new", "newer"}, false},
	} {
		for _, turn := range []bool{false, true} {
			if turn {
				c.a, c.b = c.b, c.a
			}
			w := newWorld()
			tr := inproc.NewNetwork().Transport()
			reported := make(chan error, 1)
			giveUp := 20 * time.Millisecond
			if c.link { // enough for a slow machine to make the link
				giveUp = 20 * time.Second
			}
			a := w.node(t, uint64(2*i+1), tr, func(k *Config) {
				k.Trust, k.GiveUp = trusting("", c.a...), giveUp
				k.Undelivered = func(u Undelivered) { reported <- u.Err }
			})
			b := w.node(t, uint64(2*i+2), tr, func(k *Config) { k.Trust = trusting("", c.b...) })
			mb := box(t, b, 1, 0)
			ctx := soon(t)
			try.OK(t, flow(t, a, mb).SendBytes(ctx, 1, 0, []byte("x")))
			if !c.link {
				try.Fails(<-reported)(t, ErrUnreachable, "%q to %q", c.a, c.b)
				continue
			}
			m, err := mb.Recv(ctx)
			try.OK(t, err, "%q to %q", c.a, c.b)
			m.Release()
		}
	}
}

// A key is taken away while links exist. The links stay. A context that knows only the old key gets
// no new link, and a context that knows the new key does.
func TestRotation(t *testing.T) {
	var now atomic.Pointer[Trust]
	set := func(keys ...string) { tr := trusting("", keys...)(); now.Store(&tr) }
	set("old")
	w, tr := newWorld(), tcp.New()
	turning := func(c *Config) { c.Trust = func() Trust { return *now.Load() } }
	a, b := w.node(t, 1, tr, turning), w.node(t, 2, tr, turning)
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	ctx := soon(t)
	say := func(f *Flow, to *Mailbox, tag uint64) {
		t.Helper()
		try.OK(t, f.SendBytes(ctx, 1, tag, nil))
		takeTag(t, to, tag)
	}
	ab, ba := flow(t, a, mb), flow(t, b, ma)
	say(ab, mb, 1)
	lost := connsLost(a, b)
	for i, keys := range [][]string{{"old", "new"}, {"new", "old"}, {"new"}} {
		set(keys...)
		say(ab, mb, uint64(i))
		say(ba, ma, uint64(i))
	}
	try.Equal(t, connsLost(a, b), lost, "connections lost")
	reported := make(chan error, 1)
	late := w.node(t, 3, tr, func(c *Config) {
		c.Trust, c.GiveUp = trusting("", "old"), 50*time.Millisecond
		c.Undelivered = func(u Undelivered) { reported <- u.Err }
	})
	try.OK(t, flow(t, late, mb).SendBytes(ctx, 1, 9, nil))
	try.Fails(<-reported)(t, ErrUnreachable, "with the old key alone")
	say(flow(t, w.node(t, 4, tr, turning), mb), mb, 10)
}
