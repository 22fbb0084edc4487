// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
)

// wall is a transport over which no connection can be made.
type wall struct {
	dial func(ctx context.Context, addr string) error
}

type wallPort struct {
	dial func(ctx context.Context, addr string) error
}

const wallAddr = "tcp://10.0.0.7:4711"

func (w *wall) Name() string { return "tcp" }

func (w *wall) Listen(string, subsys.Config) (subsys.Port, error) { return wallPort{w.dial}, nil }

func (p wallPort) Addr() string        { return wallAddr }
func (p wallPort) Reaches(string) bool { return true }
func (p wallPort) Close() error        { return nil }

func (p wallPort) Dial(ctx context.Context, addr string, _ subsys.Sink) (subsys.Conn, error) {
	return nil, p.dial(ctx, addr)
}

// refuses fails as the kernel does if no process listens at an address.
func refuses(_ context.Context, addr string) error {
	return fmt.Errorf("%w: %w", subsys.ErrNoPeer, &net.OpError{Op: "dial", Net: "tcp",
		Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 4711}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
}

// drops fails as the kernel does if packets to an address are dropped: as late as ctx allows.
func drops(ctx context.Context, addr string) error {
	<-ctx.Done()
	return fmt.Errorf("tcp: dialling %s: %w", addr, ctx.Err()) // a net.Error matches context.DeadlineExceeded too
}

const (
	giveUp  = 10 * time.Second
	refusal = "dial tcp 10.0.0.7:4711: connect: connection refused"
)

// apart opens two contexts that do not reach each other, and calls f with a resource of each.
func apart(t *testing.T, dial func(context.Context, string) error, f func(t *testing.T, me *rocl.Resource, it resource.GID), opts ...rocl.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		tr := rocl.WithTransports(&wall{dial})
		a := cl.Open(0, append([]rocl.Option{tr, rocl.WithGiveUp(giveUp), rocl.WithUndelivered(func(dispatch.Undelivered) {})}, opts...)...)
		b := cl.Open(0, tr)
		f(t, newResource(t, a, nil), newResource(t, b, nil).ID())
	})
}

// isClean checks that an error shows no timer of the library.
func isClean(t *testing.T, what string, err error) {
	t.Helper()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || err == nil || strings.Contains(err.Error(), "context deadline exceeded") {
		t.Errorf("%s: a timer of the library is seen: %v", what, err)
	}
}

// operations are all that wait for a connection to a resource.
var operations = map[string]func(ctx context.Context, me *rocl.Resource, it resource.GID) error{
	"Call": func(ctx context.Context, me *rocl.Resource, it resource.GID) error {
		_, err := me.CallBytes(ctx, it, 1, []byte("hello"))
		return err
	},
	"CallInto": func(ctx context.Context, me *rocl.Resource, it resource.GID) error {
		_, err := me.CallInto(ctx, it, 1, []byte("hello"), make([]byte, 10))
		return err
	},
	"StartCall": func(ctx context.Context, me *rocl.Resource, it resource.GID) error {
		f, err := me.StartCallBytes(ctx, it, 1, []byte("hello"))
		if err == nil {
			_, err = f.Wait(ctx)
		}
		return err
	},
	"Send without credit": func(ctx context.Context, me *rocl.Resource, it resource.GID) error {
		for {
			if err := me.SendBytes(ctx, it, 1, make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	},
	"SendAll without credit": func(ctx context.Context, me *rocl.Resource, it resource.GID) error {
		for {
			b, err := me.Context().Buffer(1 << 20)
			if err != nil {
				return err
			}
			if err := me.SendAll(ctx, []resource.GID{it}, 1, b); err != nil {
				b.Release()
				return err
			}
		}
	},
}

// An operation that needs a connection to a context that cannot be dialled fails after the time of
// WithGiveUp, not after twice that time, the first one and each later one. The error has the reason
// and the address of the last attempt, and no timer of the library.
//
// Promise (Ends): An operation waits for a connection once, as long as `WithGiveUp` says. Its error
// has the reason and address of the last attempt; so does the error of a wait that ctx ends first.
// See also TestUnreachableHasReason, TestSendToUnreachableOnce, TestReceiveSaysWhyNoConnection.
//
// Promise (Ends): An error matches `context.DeadlineExceeded` or `context.Canceled` only if the
// caller's context has ended. See also TestGiveUpWithoutDirectory.
func TestUnreachableOnce(t *testing.T) {
	for name, do := range operations {
		for how, dial := range map[string]func(context.Context, string) error{"refused": refuses, "dropped": drops} {
			t.Run(name+", "+how, func(t *testing.T) {
				apart(t, dial, func(t *testing.T, me *rocl.Resource, it resource.GID) {
					for range 3 {
						began := time.Now()
						err := do(bg, me, it)
						if d := time.Since(began); d > giveUp+giveUp/10 {
							t.Errorf("failed after %v", d)
						}
						isClean(t, name, err)
						if !errors.Is(err, dispatch.ErrUnreachable) || errors.Is(err, dispatch.ErrGone) {
							t.Errorf("the error is %v", err)
						}
						if how == "refused" && (!strings.Contains(err.Error(), refusal) || !errors.Is(err, syscall.ECONNREFUSED)) || !strings.Contains(err.Error(), "10.0.0.7:4711") {
							t.Errorf("without the reason: %v", err)
						}
					}
				})
			})
		}
	}
}

// If the caller's context ends while an operation waits for a connection, the error matches the
// cause of that end, and has the reason of the last attempt.
func TestWaitedForConnection(t *testing.T) {
	errOwn := errors.New("the caller's own reason")
	for name, do := range operations {
		for how, dial := range map[string]func(context.Context, string) error{"refused": refuses, "dropped": drops} {
			t.Run(name+", "+how, func(t *testing.T) {
				apart(t, dial, func(t *testing.T, me *rocl.Resource, it resource.GID) {
					for _, wait := range []time.Duration{time.Second, giveUp - time.Second} {
						ctx, cancel := context.WithTimeoutCause(bg, wait, errOwn)
						began := time.Now()
						err := do(ctx, me, it)
						cancel()
						var none *dispatch.NoConnectionError
						if !errors.As(err, &none) || !errors.Is(err, errOwn) || errors.Is(err, dispatch.ErrUnreachable) || none.Peer != it.Context() {
							t.Fatalf("after %v: %v", time.Since(began), err)
						}
						isClean(t, name, err)
						if how == "refused" && !strings.Contains(err.Error(), refusal) || !strings.Contains(err.Error(), "10.0.0.7:4711") {
							t.Errorf("without the reason: %v", err)
						}
						time.Sleep(2 * giveUp) // in the synctest bubble: the link has been given up
					}
				})
			})
		}
	}
}

// A link without a connection says so in the log once, after a second, and in Routes.
//
// Promise (Ends): A link without a connection for a second is logged with the reason, and `rocl
// routes` shows it. See also TestUnreachable.
func TestNoConnectionIsTold(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	log := logging(func(r slog.Record) {
		if r.Level < slog.LevelWarn {
			return
		}
		line := r.Message
		r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
		mu.Lock()
		lines = append(lines, line)
		mu.Unlock()
	})
	apart(t, refuses, func(t *testing.T, me *rocl.Resource, it resource.GID) {
		ctx, cancel := context.WithTimeout(bg, 900*time.Millisecond)
		defer cancel()
		_, _ = me.CallBytes(ctx, it, 1, nil)
		mu.Lock()
		if len(lines) > 0 {
			t.Errorf("too early: %q", lines)
		}
		mu.Unlock()
		routes := me.Context().Routes()
		if len(routes) != 1 || routes[0].Transport != "" || !strings.Contains(routes[0].Dialling, refusal) {
			t.Errorf("routes: %+v", routes)
		}
		_, _ = me.CallBytes(bg, it, 1, nil) // until the link is given up
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(lines) != 1 || !strings.Contains(lines[0], "no connection") || !strings.Contains(lines[0], refusal) || !strings.Contains(lines[0], it.Context().String()) {
			t.Errorf("the log: %q", lines)
		}
	}, log)
}

// A question to a context that cannot be dialled is no message of the program: its loss is neither
// counted nor an error of Flush.
func TestLostQuestionIsNoMessage(t *testing.T) {
	apart(t, refuses, func(t *testing.T, me *rocl.Resource, it resource.GID) {
		c := me.Context()
		try.Fails(c.RoutesOf(bg, it))(t, dispatch.ErrUnreachable)
		if err := c.Flush(bg); err != nil || c.Stats().Undelivered != 0 {
			t.Errorf("%d messages undelivered, %v", c.Stats().Undelivered, err)
		}
	})
}

// SendTo waits once for a connection to a context that cannot be dialled, although several of its
// resources match.
func TestSendToUnreachableOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl, tr := rocltest.Cluster(t, 1), rocl.WithTransports(&wall{refuses})
		me, far := newResource(t, cl.Open(0, tr, rocl.WithGiveUp(giveUp)), nil), cl.Open(0, tr)
		for range 3 {
			newResource(t, far, resource.Attrs{"is": "far"})
		}
		b, err := me.Context().Buffer(4 << 20) // waits for credit, and so for a connection
		try.OK(t, err)
		defer b.Release()
		began := time.Now()
		_, err = me.SendTo(bg, resource.Match{"is": "far"}, 1, b)
		if d := time.Since(began); d > giveUp+giveUp/10 || !errors.Is(err, dispatch.ErrUnreachable) || !strings.Contains(err.Error(), refusal) {
			t.Errorf("after %v: %v", d, err)
		}
	})
}

// One line of the log tells of all lanes that dial the same context.
func TestUnreachableLanesAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines atomic.Int32
		log := logging(func(r slog.Record) {
			if strings.Contains(r.Message, "no connection") {
				lines.Add(1)
			}
		})
		cl, tr := rocltest.Cluster(t, 1), rocl.WithTransports(&wall{refuses})
		rule := rocl.Rule{Match: resource.Match{"role": "data"}, Over: []string{"tcp"}}
		me := newResource(t, cl.Open(0, tr, rocl.WithGiveUp(giveUp), rocl.WithRules(rule), log), nil)
		far := cl.Open(0, tr)
		for _, a := range []resource.Attrs{{"role": "control"}, {"role": "data"}} {
			try.OK(t, me.SendBytes(bg, newResource(t, far, a).ID(), 1, nil))
		}
		if err := me.Context().Flush(bg); err == nil {
			t.Error("the messages are delivered")
		}
		if n := lines.Load(); n != 1 {
			t.Errorf("%d lines of the log", n)
		}
	})
}
