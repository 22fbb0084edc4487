// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"net"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a connection from an address that records its closing.
type fake struct {
	net.Conn
	from   string
	closed bool
}

func (f *fake) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", f.from)
	if err != nil {
		panic(err)
	}
	return a
}

func (f *fake) Close() error { f.closed = true; return nil }

// The oldest idle connection is closed, first of the same source, and the limits hold.
func TestOldestGivesWay(t *testing.T) {
	s := New(4, 2)
	var all []*fake
	var conns []*Conn
	add := func(from string) {
		f := &fake{from: from}
		all, conns = append(all, f), append(conns, s.Add(f))
	}
	want := func(closed ...int) {
		t.Helper()
		var got []int
		for i, f := range all {
			if f.closed {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, closed) {
			t.Errorf("closed are %v, not %v", got, closed)
		}
	}
	add("10.0.0.1:1")
	add("10.0.0.1:2")
	add("10.0.0.1:3") // the third of its source
	want(0)
	add("10.0.0.2:1")
	add("10.0.0.3:1")
	want(0)
	add("10.0.0.4:1") // the fifth of all
	want(0, 1)
	conns[2].SetBusy(true)
	add("10.0.0.5:1")
	want(0, 1, 3)
	for _, i := range []int{4, 5, 6} {
		conns[i].SetBusy(true)
	}
	conns[4].SetBusy(false) // idle since just now, and the only one
	add("10.0.0.6:1")
	want(0, 1, 3, 4)
	conns[7].SetBusy(true)
	add("10.0.0.7:1") // all are busy
	want(0, 1, 2, 3, 4)
	try.Equal(t, s.Len(), 4, "count")
	for _, c := range conns {
		c.Release()
		c.Release()
	}
	if s.Len() != 0 || len(s.sources) != 0 {
		t.Errorf("%d are left, of %v", s.Len(), s.sources)
	}
	add("[2001:db8::1]:1")
	add("[2001:db8::2]:1") // one machine may have both
	add("[2001:db8::3]:1")
	want(0, 1, 2, 3, 4, 9)
	add("[::ffff:10.0.0.8]:1")
	add("10.0.0.8:2")
	add("10.0.0.8:3")
	want(0, 1, 2, 3, 4, 9, 12)
}

func TestListener(t *testing.T) {
	inner := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := New(2, 2)
	ln := s.Listener(inner)
	defer ln.Close()
	for range 5 {
		out := try.Get(net.Dial("tcp", ln.Addr().String()))(t)
		defer out.Close()
		in := try.Get(ln.Accept())(t)
		defer in.Close()
	}
	try.Equal(t, s.Len(), 2, "connections")
}
