// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/internal/harness"
)

// mute is a transport whose connections write nothing.
type mute struct{}

func (mute) Name() string { return "mute" }

func (mute) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	return Listen(addr, cfg, Protocol{
		Scheme:   "mute",
		Rounds:   1,
		Dialled:  func(context.Context, *net.TCPConn) (Writer, error) { return muteWriter{}, nil },
		Accepted: func(p *Port, nc *net.TCPConn) error { return p.Join(nc, muteWriter{}) },
	})
}

type muteWriter struct{}

func (muteWriter) Send(*Conn, []subsys.Frame) (int, bool, error) { return 0, false, nil }
func (muteWriter) Resume(*Conn) (bool, error)                    { return false, nil }
func (muteWriter) Free()                                         {}

// A downSink counts the calls of Down.
type downSink struct{ downs atomic.Int32 }

func (*downSink) Frames(subsys.Conn, []subsys.Frame) error { return nil }
func (*downSink) Room(subsys.Conn, *subsys.Header) (*buffers.Buffer, error) {
	return nil, nil
}
func (*downSink) Writable(subsys.Conn)          {}
func (s *downSink) Down(_ subsys.Conn, _ error) { s.downs.Add(1) }

// If Close comes before a failure, Down is not called. If the failure comes first, Down is called
// once.
func TestCloseRacesFailure(t *testing.T) {
	open := func() *harness.Harness {
		h := must.Get(harness.Open(mute{}, "", harness.Sleeping, nil, func(subsys.Conn) subsys.Sink { return new(downSink) }))
		t.Cleanup(func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
		return h
	}
	a, b := open(), open()
	for range 300 {
		s := new(downSink)
		sc := must.Get(a.Port.Dial(t.Context(), b.Port.Addr(), s))
		c := sc.(*Conn) // not started, so only this test calls fail
		var isClosedFirst bool
		var wg sync.WaitGroup
		wg.Go(func() { isClosedFirst = c.end() })
		wg.Go(func() { c.fail(errors.New("a failure")) })
		wg.Wait()
		want := int32(1)
		if isClosedFirst {
			want = 0
		}
		if n := s.downs.Load(); n != want {
			t.Fatalf("%d calls of Down, want %d", n, want)
		}
	}
}
