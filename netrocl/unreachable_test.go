// SPDX-License-Identifier: Apache-2.0

package netrocl_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/subsys"
)

// nobody is a transport with a port at which no process listens.
type nobody struct{ addr string }

func (n nobody) Name() string                                      { return "tcp" }
func (n nobody) Listen(string, subsys.Config) (subsys.Port, error) { return n, nil }
func (n nobody) Addr() string                                      { return n.addr }
func (n nobody) Reaches(string) bool                               { return false }
func (n nobody) Close() error                                      { return nil }
func (n nobody) Dial(context.Context, string, subsys.Sink) (subsys.Conn, error) {
	return nil, subsys.ErrNoPeer
}

// Dial to a listener whose context cannot be dialled ends within WithGiveUp. Its error is that of a
// refused connection, and has the reason and the address.
func TestDialUnreachable(t *testing.T) {
	addr := try.Get(freeaddr.Loopback())(t)
	sock := rocl.WithSocket(filepath.Join(t.TempDir(), "s"))
	far := try.Get(rocl.Open(t.Context(), sock, rocl.WithTransports(nobody{"tcp://" + addr})))(t)
	defer far.Close()
	var attempts atomic.Int32
	near := try.Get(rocl.Open(t.Context(), sock, rocl.WithGiveUp(300*time.Millisecond), rocl.WithUndelivered(func(rocl.Undelivered) { attempts.Add(1) })))(t)
	defer near.Close()
	for range 3 {
		it := try.Get(netrocl.Listen(t.Context(), far, rocl.Attrs{"name": "far"}))(t)
		defer it.Close()
	}
	_, err := netrocl.Dial(eventually.Context(t), near, rocl.Attrs{"name": "far"})
	var none *rocl.NoConnectionError
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, rocl.ErrUnreachable) || !errors.As(err, &none) ||
		!strings.Contains(err.Error(), addr) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial: %v", err)
	}
	near.Close() // after the reports of undelivered messages
	try.Equal(t, attempts.Load(), 1, "waits of Dial for a connection to one context")
}
