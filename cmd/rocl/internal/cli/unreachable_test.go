// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// closed is a transport with a port at which no process listens.
type closed struct{ addr string }

func (c closed) Name() string                                      { return "tcp" }
func (c closed) Listen(string, subsys.Config) (subsys.Port, error) { return c, nil }
func (c closed) Addr() string                                      { return c.addr }
func (c closed) Reaches(string) bool                               { return false }
func (c closed) Close() error                                      { return nil }
func (c closed) Dial(context.Context, string, subsys.Sink) (subsys.Conn, error) {
	return nil, subsys.ErrNoPeer
}

// 'rocl call' and 'rocl send' to a resource that cannot be dialled say so, with the reason,
// whether --timeout ends before the library gives the resource's context up, or later. They advise
// no longer time-out. 'rocl routes' prints links that dial, with the reason.
func TestUnreachable(t *testing.T) {
	sock := node(t)
	addr := try.Get(freeaddr.Loopback())(t)
	far := open(t, sock, rocl.WithTransports(closed{"tcp://" + addr}))
	it := try.Get(far.Register(t.Context(), rocl.Attrs{"name": "far"}))(t)
	for _, name := range []string{"call", "send"} {
		isEarly := func(_, errOut string) bool { return !strings.Contains(errOut, "unreachable") }
		_, _, errOut, code := withinMore(t, 700*time.Millisecond, "hello\n", isEarly, name, "--socket", sock, "name=far")
		if code == 0 || !strings.Contains(errOut, "unreachable") || !strings.Contains(errOut, "dial tcp "+addr) || !strings.Contains(errOut, "connection refused") || strings.Contains(errOut, "more time") {
			t.Errorf("%s: exit code %d, %q", name, code, errOut)
		}
	}
	soon := open(t, sock, rocl.WithUndelivered(func(rocl.Undelivered) {}), rocl.WithGiveUp(200*time.Millisecond))
	from := try.Get(soon.Register(t.Context(), nil))(t)
	try.OK(t, from.SendBytes(t.Context(), it.ID(), 1, nil))
	n, err := undelivered(t.Context(), Globals{Timeout: eventually.Timeout}, from, it.ID(), nil)
	if n != 1 || !errors.Is(err, rocl.ErrUnreachable) || !strings.Contains(err.Error(), "dial tcp "+addr) || strings.Contains(err.Error(), "no connection within") {
		t.Errorf("a time-out above WithGiveUp: %d undelivered, %v", n, err)
	}
	near := open(t, sock, rocl.WithUndelivered(func(rocl.Undelivered) {}), rocl.WithLinger(1), rocl.WithGiveUp(eventually.Timeout))
	me := try.Get(near.Register(t.Context(), nil))(t)
	try.OK(t, me.SendBytes(t.Context(), it.ID(), 1, nil))
	eventually.True(t, "the link is printed with its reason", func() bool {
		out, errOut, _ := execute(t.Context(), nil, "routes", "--socket", sock, "--timeout", "300ms") // far answers no question
		return strings.Contains(out, "dialling") && strings.Contains(errOut, "dial tcp "+addr)
	})
}
