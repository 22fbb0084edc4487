// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/internal/harness"
)

const testTimeout = eventually.Timeout

// A testPort is a port of a context that accepts every peer, with the refusals that it has logged.
type testPort struct {
	subsys.Port
	refused chan string // logged reasons of refusals
	joined  chan *testSink
	lines   atomic.Int32 // logged refusals above level debug
}

func listen(t testing.TB, tr subsys.Transport) *testPort {
	t.Helper()
	p := &testPort{refused: make(chan string, 10_000), joined: make(chan *testSink, 1000)}
	h := try.Get(harness.Open(tr, "", harness.Sleeping, slog.New(&catcher{p: p}), func(c subsys.Conn) subsys.Sink {
		s := newTestSink()
		s.conn = c
		p.joined <- s
		return s
	}))(t)
	p.Port = h.Port
	t.Cleanup(func() { try.OK(t, h.Close()) })
	return p
}

// dial connects and sends one frame. It returns when the frame has arrived, or the error of the
// connection.
func (p *testPort) dial(to *testPort) (near, far *testSink, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for {
		near, far, err = p.dialOnce(ctx, to)
		if err == nil || ctx.Err() != nil || !to.tookTooLong() {
			return near, far, err
		}
	}
}

// tookTooLong reports whether a peer was refused because its handshake took too long, as happens on
// a busy machine, and forgets that refusal.
func (p *testPort) tookTooLong() (tooLong bool) {
	var others []string
	for late := time.After(time.Second); !tooLong; {
		select {
		case why := <-p.refused:
			if tooLong = strings.Contains(why, os.ErrDeadlineExceeded.Error()); !tooLong {
				others = append(others, why)
			}
			continue
		case <-late:
		}
		break
	}
	for _, why := range others {
		p.refused <- why
	}
	return tooLong
}

func (p *testPort) dialOnce(ctx context.Context, to *testPort) (near, far *testSink, err error) {
	near = newTestSink()
	if near.conn, err = p.Dial(ctx, to.Addr(), near); err != nil {
		return nil, nil, err
	}
	near.conn.Start()
	if err := near.send(); err != nil {
		return nil, nil, err
	}
	select {
	case far = <-to.joined:
	case err := <-near.down:
		return nil, nil, err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	select {
	case <-far.got:
		return near, far, nil
	case err := <-far.down:
		return nil, nil, err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func (p *testPort) wantRefused(t *testing.T, n int) (why string) {
	t.Helper()
	for i := range n {
		why = eventually.Value(t, fmt.Sprintf("refusal %d of %d", i+1, n), p.refused)
	}
	return why
}

func (p *testPort) wantNone(t *testing.T) {
	t.Helper()
	select {
	case s := <-p.joined:
		t.Errorf("%s was let in", s.conn.Remote())
	default:
	}
}

type testSink struct {
	conn subsys.Conn
	got  chan subsys.Header
	down chan error
}

func newTestSink() *testSink {
	return &testSink{got: make(chan subsys.Header, 1000), down: make(chan error, 1)}
}

func (s *testSink) send() error {
	n, err := s.conn.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}})
	if err == nil && n != 1 {
		err = errors.New("the frame was not taken")
	}
	return err
}

func (s *testSink) Frames(_ subsys.Conn, fs []subsys.Frame) error {
	for i := range fs {
		s.got <- fs[i].Header
	}
	return nil
}

func (s *testSink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	return nil, fmt.Errorf("no room for %d bytes", h.Len)
}

func (s *testSink) Writable(subsys.Conn) {}

func (s *testSink) Down(_ subsys.Conn, err error) { s.down <- err }

// A catcher is a handler that keeps the reasons of refusals.
type catcher struct{ p *testPort }

func (c *catcher) Enabled(context.Context, slog.Level) bool { return true }
func (c *catcher) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *catcher) WithGroup(string) slog.Handler            { return c }
func (c *catcher) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "tls: refused") {
		if r.Level > slog.LevelDebug {
			c.p.lines.Add(1)
		}
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "err" {
				c.p.refused <- a.Value.String()
			}
			return true
		})
	}
	return nil
}
