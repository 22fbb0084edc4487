// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// An Open that fails says why, and leaves nothing behind. goleak checks the goroutines.
func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	try.OK(t, os.WriteFile(file, nil, 0o600))
	sock := func(name string) rocl.Option { return rocl.WithSocket(filepath.Join(dir, name)) }
	taken := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	server := directory.NewServer()
	defer server.Close()
	memory := icontext.WithDirectory(server.Dialer())
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		opts []rocl.Option
		want error // nil: any error
	}{
		"nobody to join": {[]rocl.Option{sock("a"), rocl.JoinOnly()}, directory.ErrNoDirectory},
		"a dial that fails": {[]rocl.Option{
			icontext.WithDirectory(func(context.Context) (net.Conn, error) { return nil, broken }),
		}, broken},
		"a directory that hangs up": {[]rocl.Option{
			icontext.WithDirectory(func(context.Context) (net.Conn, error) {
				near, far := net.Pipe()
				far.Close()
				return near, nil
			}),
		}, directory.ErrNoDirectory},
		"a socket below a file":   {[]rocl.Option{rocl.WithSocket(filepath.Join(file, "x", "sock"))}, nil},
		"a socket path too long":  {[]rocl.Option{sock(strings.Repeat("x", 200))}, nil},
		"an address in use":       {[]rocl.Option{memory, rocl.WithListen("tcp://" + taken.Addr().String())}, subsys.ErrUnavailable},
		"no such host":            {[]rocl.Option{memory, rocl.WithListen("tcp://256.0.0.1:0")}, nil},
		"an address without port": {[]rocl.Option{memory, rocl.WithListen("tcp://127.0.0.1")}, nil},
		"an empty host":           {[]rocl.Option{memory, rocl.WithListen("tcp://")}, nil},
		"another network":         {[]rocl.Option{memory, rocl.WithListen("inproc://elsewhere/1")}, nil},
		"one address twice": {[]rocl.Option{memory, rocl.WithTransports(tcp.New(), tcp.New()),
			rocl.WithListen("tcp://" + taken.Addr().String())}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(bg, eventually.Timeout)
			defer cancel()
			got, err := rocl.Open(ctx, c.opts...)
			if err == nil {
				got.Close()
				t.Fatal("opened")
			}
			if got != nil {
				t.Error("a context beside an error")
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if ctx.Err() != nil || !strings.HasPrefix(err.Error(), "rocl: open a context: ") {
				t.Errorf("error %q", err)
			}
		})
	}
	// The directory that some of the calls joined keeps no resources of them.
	c := try.Get(rocl.Open(bg, memory))(t)
	defer c.Close()
	if ids := idsOf(all(t, c.FindAll(bg, resource.Match{rocl.AttrKind: "context"}))); !slices.Equal(ids, []resource.GID{c.ID()}) {
		t.Errorf("left behind: %v", ids)
	}
}

// Open ends with its ctx. After Open, the end of ctx has no effect.
func TestOpenEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(bg)
	cancel(cause)
	server := directory.NewServer()
	defer server.Close()
	for name, opt := range map[string]rocl.Option{
		"memory": icontext.WithDirectory(server.Dialer()),
		"socket": rocl.WithSocket(filepath.Join(t.TempDir(), "sock")),
	} {
		if c, err := rocl.Open(ctx, opt); err == nil {
			c.Close()
			t.Errorf("%s: opened in vain", name)
		} else if !errors.Is(err, cause) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The directory does not answer.
	ctx, stop := context.WithTimeout(bg, 10*time.Millisecond)
	defer stop()
	var far net.Conn
	mute := func(context.Context) (net.Conn, error) {
		near, end := net.Pipe()
		far = end
		return near, nil
	}
	try.Fails(rocl.Open(ctx, icontext.WithDirectory(mute)))(t, context.DeadlineExceeded, "of a mute directory")
	far.Close()

	ctx, stop = context.WithCancel(bg)
	c := try.Get(rocl.Open(ctx, icontext.WithDirectory(server.Dialer())))(t)
	stop()
	me := newResource(t, c, resource.Attrs{"n": "me"})
	send(t, me, me.ID(), "hello")
	expect(t, me, "hello")
	try.Check(t, c.Close())
}

// Some meaningless values stand for the default.
func TestOpenForgives(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	for name, o := range map[string]rocl.Option{
		"no logger":         rocl.WithLogger(nil),
		"no mailbox":        rocl.WithMailbox(0),
		"negative mailbox":  rocl.WithMailbox(-1),
		"no memory":         rocl.WithMemory(0),
		"negative memory":   rocl.WithMemory(-1),
		"negative give-up":  rocl.WithGiveUp(-1),
		"no addresses":      rocl.WithListen(),
		"nobody to tell":    rocl.WithUndelivered(nil),
		"long cluster name": rocl.WithCluster(strings.Repeat("x", 1<<20)),
		"bytes of cluster":  rocl.WithCluster("\xff\x00"),
		"no budget":         rocl.WithPollBudget(0),
		"no pollers":        rocl.WithPollers(0),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := cl.Open(0, o), cl.Open(0, o)
			me, you := newResource(t, a, nil), newResource(t, b, nil)
			send(t, me, you.ID(), "hello")
			expect(t, you, "hello")
		})
	}
}

// An unknown poll policy is refused.
func TestOpenPolling(t *testing.T) {
	server := directory.NewServer()
	defer server.Close()
	for name, o := range map[string]rocl.Option{
		"unknown policy":   rocl.WithPoll(dispatch.PollPolicy(99)),
		"negative budget":  rocl.WithPollBudget(-1),
		"budget too long":  rocl.WithPollBudget(2 * time.Second),
		"negative pollers": rocl.WithPollers(-1),
	} {
		c, err := rocl.Open(bg, icontext.WithDirectory(server.Dialer()), o)
		if !errors.Is(err, dispatch.ErrPolling) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

func TestListenNowhere(t *testing.T) {
	server := directory.NewServer()
	defer server.Close()
	for _, u := range []string{"tpc://10.0.0.7:0", "10.0.0.7:0", "", "TCP://127.0.0.1:0"} {
		c, err := rocl.Open(bg, icontext.WithDirectory(server.Dialer()), rocl.WithListen(u))
		if err == nil {
			t.Errorf("%q: opened, listening at %q", u, c.Addrs())
			c.Close()
		}
	}
}

// A context without transports reaches only itself. Its messages to other contexts are given up.
func TestNoTransports(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	reported := make(reports, 1)
	a := cl.Open(0, rocl.WithTransports(), rocl.WithGiveUp(time.Millisecond), reported.option())
	b := cl.Open(0)
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	if n := a.Addrs(); len(n) != 0 {
		t.Errorf("addresses %q", n)
	}
	send(t, me, me.ID(), "hello")
	expect(t, me, "hello")
	send(t, me, you.ID(), "hello") // accepted, because a transport might come
	if u := <-reported; !errors.Is(u.Err, dispatch.ErrUnreachable) || u.Bytes != 5 {
		t.Errorf("reported %+v", u)
	}
}

// A context listens at all addresses of one transport, in order.
func TestListenTwice(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c := cl.Open(0, rocl.WithTransports(tcp.New(), inproc.NewNetwork().Transport()),
		rocl.WithListen("tcp://127.0.0.1:0", "tcp://[::1]:0"))
	a := c.Addrs()
	if len(a) != 3 || !strings.HasPrefix(a[0], "tcp://127.0.0.1:") || !strings.HasPrefix(a[1], "tcp://[::1]:") ||
		!strings.HasPrefix(a[2], "inproc://") {
		t.Errorf("addresses %q", a)
	}
	if got := registered(t, c); !slices.Equal(got, a) {
		t.Errorf("the directory has the addresses %q, want %q", got, a)
	}
}

// lacking is a transport that this machine does not have.
type lacking struct{ subsys.Transport }

func (lacking) Name() string { return "lacking" }
func (lacking) Listen(string, subsys.Config) (subsys.Port, error) {
	return nil, fmt.Errorf("lacking: %w: the kernel is too old", subsys.ErrUnavailable)
}

// A transport that the machine lacks is skipped, with one log line. If no transport remains, or if
// the program names an address of the transport, Open fails and says so.
//
// Promise (Transports): `Open` fails for a transport only if `WithListen` names its address or
// there is no other. A missing port is logged once. See also TestOpenWithoutPort.
func TestTransportUnavailable(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	var log strings.Builder
	a := cl.Open(0, rocl.WithTransports(lacking{}, tcp.New()), rocl.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	b := cl.Open(0, rocl.WithTransports(tcp.New()))
	if n := a.Addrs(); len(n) != 1 || !strings.HasPrefix(n[0], "tcp://") {
		t.Errorf("addresses %q", n)
	}
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	send(t, me, you.ID(), "hello")
	expect(t, you, "hello")
	if err := a.Close(); err != nil { // after Close the handler has all lines
		t.Error(err)
	}
	if strings.Count(log.String(), "the kernel is too old") != 1 {
		t.Errorf("logged %q", log.String())
	}
	server := directory.NewServer()
	defer server.Close()
	for name, opts := range map[string][]rocl.Option{
		"without any transport":             {rocl.WithTransports(lacking{})},
		"an address that the program names": {rocl.WithTransports(lacking{}, tcp.New()), rocl.WithListen("lacking://here")},
	} {
		c, err := rocl.Open(bg, append(opts, icontext.WithDirectory(server.Dialer()))...)
		if !errors.Is(err, subsys.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

// A buffer that can never be given is refused as too large, not only as unavailable now.
func TestBufferBeyondMemory(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0, rocl.WithMemory(8<<20))
	if b, err := c.Buffer(6 << 20); err != nil {
		t.Error(err)
	} else {
		b.Release()
	}
	if _, err := c.Buffer(6<<20 + 1); !errors.Is(err, buffers.ErrTooLarge) || !errors.Is(err, buffers.ErrLimit) {
		t.Error(err)
	}
}

// A limit that would not hold what connections need is raised.
func TestLeastMemory(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0, rocl.WithMemory(1))
	if limit := c.Stats().Buffers.Limit; limit != 1<<20 {
		t.Errorf("a limit of %d bytes", limit)
	}
}

// The default limit is a half of what the control groups allow.
func TestDefaultMemory(t *testing.T) {
	for memory, want := range map[uint64]int64{0: 0, 128 << 20: 64 << 20, math.MaxUint64: math.MaxInt64} {
		if got := rocl.DefaultMemory(cgroup.Limits{Memory: memory}); got != want {
			t.Errorf("of %d bytes: %d, want %d", memory, got, want)
		}
	}
}

// Memory is limited, and the error says so. No message that exists is lost.
func TestMemory(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c := cl.Open(0, rocl.WithMemory(8<<20))
	me := newResource(t, c, nil)
	var held []*buffers.Buffer
	for {
		b, err := c.Buffer(100_000)
		if errors.Is(err, buffers.ErrLimit) {
			break
		}
		try.OK(t, err)
		if held = append(held, b); len(held) > 80 {
			t.Fatal("more is given than there is")
		}
	}
	try.Fails(me.SendBytes(bg, me.ID(), 0, make([]byte, 100_000)))(t, buffers.ErrLimit, "sending without memory")
	if s := c.Stats().Buffers; s.Mapped > 8<<20 || s.InUse != int64(len(held)) {
		t.Errorf("%d bytes mapped, %d buffers out of %d", s.Mapped, s.InUse, len(held))
	}
	for _, b := range held {
		b.Release()
	}
	send(t, me, me.ID(), "hello")
	expect(t, me, "hello")
	if n := c.Stats().Buffers.InUse; n != 0 {
		t.Errorf("%d buffers out", n)
	}
	for _, n := range []int{-1, math.MaxInt} {
		if b, err := c.Buffer(n); err == nil {
			t.Errorf("a buffer of %d bytes: %d", n, b.Len())
		}
	}
}

// Many contexts open one socket at once. Each gets an identifier of its own and finds the others.
func TestOpenTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	const n = 8
	cs := make([]*rocl.Context, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c, err := rocl.Open(bg, rocl.WithSocket(path))
			if err != nil {
				t.Error(err)
				return
			}
			cs[i] = c
		})
	}
	wg.Wait()
	defer func() {
		for _, c := range cs {
			if c != nil {
				c.Close()
			}
		}
	}()
	if t.Failed() {
		t.FailNow()
	}
	for _, c := range cs {
		seen := slices.Compact(idsOf(all(t, c.FindAll(bg, resource.Match{rocl.AttrKind: "context"}))))
		if len(seen) != n || !slices.Contains(seen, c.ID()) {
			t.Errorf("%v sees %d contexts, want %d", c.ID(), len(seen), n)
		}
	}
}
