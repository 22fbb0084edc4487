// SPDX-License-Identifier: Apache-2.0

package netrocl_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"
)

// TestMain runs the tests, or the peer that a test kills, if the environment says so.
func TestMain(m *testing.M) {
	if sock := os.Getenv("NETROCL_PEER"); sock != "" {
		bePeer(sock, os.Getenv("NETROCL_OVER"))
		return
	}
	goleak.VerifyTestMain(m)
}

// The tags of the protocol.
const (
	tagDial uint64 = 0x6e6574726f636c<<8 + iota
	tagAccept
	tagRefuse
)

// transports are the transports over which every test of a connection runs.
var transports = []struct {
	name string
	opts []rocl.Option
}{
	{"inproc", nil},
	{"shm", []rocl.Option{rocl.WithTransports(shm.New())}},
	{"tcp", []rocl.Option{rocltest.TCP()}},
}

func everywhere(t *testing.T, test func(*testing.T, ...rocl.Option)) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) { test(t, tr.opts...) })
	}
}

var web = rocl.Attrs{"type": "web"}

func listen(t testing.TB, c *rocl.Context) net.Listener {
	t.Helper()
	return try.Get(netrocl.Listen(t.Context(), c, web))(t)
}

func dial(t testing.TB, c *rocl.Context) *netrocl.Conn {
	t.Helper()
	return try.Get(netrocl.Dial(t.Context(), c, rocl.Match(web)))(t).(*netrocl.Conn)
}

func accept(t testing.TB, ln net.Listener) *netrocl.Conn {
	t.Helper()
	return try.Get(ln.Accept())(t).(*netrocl.Conn)
}

// lossy opens n contexts of a node. Unlike contexts of rocltest, they may be closed before all
// accepted messages were delivered, because some tests do not read everything.
func lossy(t testing.TB, n int, opts ...rocl.Option) (cs []*rocl.Context) {
	t.Helper()
	s := directory.NewServer()
	t.Cleanup(func() { s.Close() })
	for range n {
		c := try.Get(rocl.Open(t.Context(), append([]rocl.Option{icontext.WithDirectory(s.Dialer())}, opts...)...))(t)
		t.Cleanup(func() { c.Close() })
		cs = append(cs, c)
	}
	return cs
}

// pair returns the two ends of a connection between two contexts of a node.
func pair(t testing.TB, opts ...rocl.Option) (a, b *netrocl.Conn) {
	t.Helper()
	cs := lossy(t, 2, opts...)
	ln := listen(t, cs[0])
	a, b = dial(t, cs[1]), accept(t, ln)
	t.Cleanup(func() {
		a.Close()
		b.Close()
		ln.Close()
	})
	return a, b
}

// Promise (Package netrocl): Connections of `netrocl` are `net.Conn`s over each transport, with
// half close and deadlines. Any goroutine may close them. See also TestStream.
func TestConn(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		cs := lossy(t, 2, opts...)
		ln := listen(t, cs[0])
		defer ln.Close()
		client := cs[1]
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			a, b := dial(t, client), accept(t, ln)
			return a, b, func() { a.Close(); b.Close() }, nil
		})
	})
}

// pattern returns n bytes of a stream of which no two parts are equal.
func pattern(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(p)
	return p
}

// reads checks what c reads up to the end of the stream.
func reads(t testing.TB, c net.Conn, want []byte) {
	t.Helper()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}

// fill writes p to c until the peer's mailbox is full, and returns how many bytes were written. The
// mailbox is full when ten writes in a row have waited in vain.
func fill(t testing.TB, c *netrocl.Conn, p []byte) (n int) {
	t.Helper()
	for late := 0; late < 10; {
		try.OK(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
		k, err := c.Write(p[n:])
		n += k
		if !errors.Is(err, os.ErrDeadlineExceeded) || n == len(p) {
			t.Fatalf("%d bytes were written, %v; want a full mailbox", n, err)
		}
		if late++; k > 0 {
			late = 0
		}
	}
	return n
}

func TestStream(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		a, b := pair(t, opts...)
		want := pattern(2 << 20)
		var wg sync.WaitGroup
		for _, c := range []*netrocl.Conn{a, b} {
			wg.Go(func() {
				for rest := want; len(rest) > 0; {
					n := min(1+len(rest)%150_000, len(rest))
					if _, err := c.Write(rest[:n]); err != nil {
						t.Error(err)
						return
					}
					rest = rest[n:]
				}
				try.Check(t, c.CloseWrite())
				try.Fails(c.Write([]byte{1}))(t, syscall.EPIPE) // a write after CloseWrite
			})
			wg.Go(func() { reads(t, c, want) })
		}
		wg.Wait()
		if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() || a.LocalAddr().Network() != "rocl" {
			t.Errorf("addresses %v → %v and %v → %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
		}
	})
}

// What was written before Close arrives, followed by EOF, even if the mailbox is full and the peer
// begins to read later.
//
// Promise (Package netrocl): The peer reads what was written before `Close`, and then EOF. See also
// TestCloseThenContext.
func TestCloseDelivers(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		a, b := pair(t, opts...)
		want := pattern(4 << 20)
		n := fill(t, a, want)
		try.OK(t, a.Close())
		try.Fails(a.Write([]byte{1}))(t, net.ErrClosed)                                 // a write after Close
		try.Fails(a.Read(make([]byte, 1)))(t, net.ErrClosed)                            // a read after Close
		try.Fails(errors.Join(a.Close(), a.SetDeadline(time.Time{})))(t, net.ErrClosed) // after Close
		reads(t, b, want[:n])
	})
}

// A context that is closed after Close of a connection delivers what was written, and the end.
func TestCloseThenContext(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		c := rocltest.Cluster(t, 2)
		ln := listen(t, c.Open(0, opts...))
		client := c.Open(1, opts...)
		a, b := dial(t, client), accept(t, ln)
		defer b.Close()
		want := pattern(300_000)
		try.Get(a.Write(want))(t)
		try.OK(t, errors.Join(a.Close(), client.Close()))
		reads(t, b, want)
	})
}

// If the peer's context ends without Close, Read returns what was written before, then an error,
// and a waiting Write fails.
//
// Promise (Package netrocl): A connection whose peer ends without `Close` fails with `ErrGone`,
// behind what was written. See also TestPeerKilled.
func TestPeerGone(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		cs := lossy(t, 2, opts...)
		ln := listen(t, cs[0])
		client := cs[1]
		a, b := dial(t, client), accept(t, ln)
		defer b.Close()
		want := pattern(300_000)
		try.Get(a.Write(want))(t)
		wrote := make(chan error, 1)
		go func() {
			for {
				if _, err := b.Write(want); err != nil {
					wrote <- err
					return
				}
			}
		}()
		try.Get(io.ReadFull(b, make([]byte, 1)))(t)
		client.Close() // its error, that messages of the other end were not delivered, may or may not occur
		got, err := io.ReadAll(b)
		if !bytes.Equal(got, want[1:]) || !isReset(err) {
			t.Errorf("%d bytes of %d, %v", len(got), len(want)-1, err)
		}
		if err := <-wrote; !isReset(err) {
			t.Errorf("a write to a peer that is gone: %v", err)
		}
		try.Fails(a.Read(make([]byte, 1)))(t, net.ErrClosed, rocl.ErrClosed)  // a read in a context that was closed
		try.Fails(a.Write(make([]byte, 1)))(t, net.ErrClosed, rocl.ErrClosed) // a write in a context that was closed
		a.Close()
	})
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && errors.Is(err, syscall.ECONNRESET) && errors.Is(err, rocl.ErrGone) && !op.Timeout()
}

// Promise (Package netrocl): A `Write` to a connection that the peer has closed fails.
func TestWriteToClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		a, b := pair(t, opts...)
		try.OK(t, a.Close())
		if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v; want EOF", n, err)
		}
		for {
			if _, err := b.Write(make([]byte, 1000)); err != nil {
				if !isReset(err) {
					t.Errorf("a write to an end that was closed: %v", err)
				}
				return
			}
		}
	})
}

// Both resources are deleted once both ends have closed, and no message is reported as undelivered.
//
// Promise (Package netrocl): A connection that both ends have closed leaves nothing behind. See
// also TestStrangers.
func TestNothingIsLeft(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		var mu sync.Mutex
		var reports []rocl.Undelivered
		opts = append(opts, rocl.WithUndelivered(func(u rocl.Undelivered) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, u)
		}))
		c := rocltest.Cluster(t, 2)
		server, client := c.Open(0, opts...), c.Open(1, opts...)
		ln := listen(t, server)
		const n = 20
		for i := range n {
			a, b := dial(t, client), accept(t, ln)
			var wg sync.WaitGroup
			for _, c := range []*netrocl.Conn{a, b} {
				wg.Go(func() {
					_, _ = c.Write(pattern(i * 1000))
					if i%2 == 0 { // otherwise both ends close at the same time
						_ = c.CloseWrite()
					}
					_, _ = io.CopyN(io.Discard, c, int64(i*1000))
					_ = c.Close()
				})
			}
			wg.Wait()
		}
		there := 0
		for ev, err := range client.Watch(t.Context(), nil) {
			try.OK(t, err)
			switch ev.Kind {
			case rocl.Appeared:
				there++
			case rocl.Gone:
				there--
			case rocl.Synced:
				there += 1000
			}
			if there == 1001 { // one is the listener
				break
			}
		}
		try.Check(t, errors.Join(client.Close(), server.Close()))
		mu.Lock()
		defer mu.Unlock()
		if len(reports) > 0 {
			t.Errorf("%d messages were in vain: %v", len(reports), reports[0])
		}
	})
}

// A deadline may be set, moved and removed while Read and Write wait. A Write that times out
// returns the number of bytes that the peer receives.
func TestDeadlines(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		a, b := pair(t, opts...)
		read := make(chan error)
		begin := func() {
			go func() {
				_, err := a.Read(make([]byte, 10))
				read <- err
			}()
		}
		begin()
		_ = a.SetReadDeadline(time.Now().Add(time.Hour))
		_ = a.SetReadDeadline(time.Now().Add(time.Millisecond)) // moved to an earlier time
		try.Fails(<-read)(t, os.ErrDeadlineExceeded)            // a read with a deadline
		_ = a.SetReadDeadline(time.Now().Add(time.Hour))
		begin()
		_ = a.SetReadDeadline(time.Time{}) // removed
		try.Works(b.Write([]byte("hello")))(t)
		try.Check(t, <-read) // a read whose deadline was lifted
		for range 100 {      // as net/http does between requests
			begin()
			_ = a.SetReadDeadline(time.Unix(1, 0))
			try.Fails(<-read)(t, os.ErrDeadlineExceeded) // a read that was aborted
			_ = a.SetReadDeadline(time.Time{})
		}

		want := pattern(4 << 20)
		n := fill(t, a, want)
		_ = a.SetWriteDeadline(time.Now().Add(time.Hour))
		got := make([]byte, min(n+1<<19, 1<<20))
		wrote := make(chan error)
		go func() {
			k, err := a.Write(want[n : n+1<<19]) // less than the peer reads meanwhile
			n += k
			wrote <- err
		}()
		_ = a.SetWriteDeadline(time.Now().Add(2 * time.Hour))
		try.Works(io.ReadFull(b, got))(t)
		try.Check(t, <-wrote) // a write whose deadline was moved
		a.Close()
		rest, err := io.ReadAll(b)
		if got = append(got, rest...); err != nil || !bytes.Equal(got, want[:n]) {
			t.Errorf("%d bytes were received, %d written, %v", len(got), n, err)
		}
	})
}

// Promise (Package netrocl): A connection that is not read stops its own writer only. See also
// TestManyAtOnce.
func TestSlowReaderStopsNobodyElse(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		cs := lossy(t, 2, opts...)
		server, client := cs[0], cs[1]
		ln := listen(t, server)
		const n = 5
		var as, bs [n]*netrocl.Conn
		for i := range n {
			as[i], bs[i] = dial(t, client), accept(t, ln)
			defer as[i].Close()
			defer bs[i].Close()
		}
		fill(t, as[0], make([]byte, 8<<20))
		want := pattern(1 << 20)
		var wg sync.WaitGroup
		for i := 1; i < n; i++ {
			wg.Go(func() {
				_, err := as[i].Write(want)
				try.Check(t, errors.Join(err, as[i].CloseWrite()))
			})
			wg.Go(func() { reads(t, bs[i], want) })
		}
		wg.Wait()
	})
}

// More dialers than the backlog holds connect at once, and each has a stream of its own.
func TestManyAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		c := rocltest.Cluster(t, 2)
		server, client := c.Open(0, opts...), c.Open(1, opts...)
		ln := listen(t, server)
		const n = 200
		var clients, handlers sync.WaitGroup
		for i := range n {
			clients.Go(func() {
				conn, err := netrocl.Dial(t.Context(), client, rocl.Match(web))
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				want := pattern(10 * i)
				_, err = conn.Write(want)
				try.Check(t, errors.Join(err, conn.(*netrocl.Conn).CloseWrite()))
				reads(t, conn, want)
			})
		}
		for range n {
			conn := accept(t, ln)
			handlers.Go(func() {
				defer conn.Close()
				try.Works(io.Copy(conn, conn))(t)
			})
		}
		clients.Wait()
		handlers.Wait()
	})
}

// Close of a listener ends Accept and resets the connections that wait for it. Accepted connections
// stay open.
//
// Promise (Package netrocl): `Close` of a listener ends `Accept`. `Dial` tries the matching
// listeners until one accepts. See also TestAcceptEnds.
func TestCloseListener(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		c := rocltest.Cluster(t, 2)
		server, client := c.Open(0, opts...), c.Open(1, opts...)
		ln := listen(t, server)
		a, b := dial(t, client), accept(t, ln)
		waits := dial(t, client) // waits for Accept
		id := ln.Addr().(netrocl.Addr).ID
		try.OK(t, ln.Close())
		try.Fails(ln.Accept())(t, net.ErrClosed) // Accept of a closed listener
		try.Fails(ln.Close())(t, net.ErrClosed)  // Close of a closed listener
		if _, err := waits.Read(make([]byte, 1)); !isReset(err) {
			t.Errorf("a connection that was not accepted: %v", err)
		}
		waits.Close()
		try.Fails(netrocl.Dial(t.Context(), client, rocl.Match(web)))(t, rocl.ErrNotFound)        // dialing attributes that no listener has
		try.Fails(netrocl.DialID(t.Context(), client, id))(t, syscall.ECONNREFUSED, rocl.ErrGone) // dialing a closed listener
		go func() {
			_, _ = a.Write([]byte("hello"))
			a.Close()
		}()
		reads(t, b, []byte("hello"))
		b.Close()
	})
}

// A blocked Accept ends when the listener or its context is closed.
func TestAcceptEnds(t *testing.T) {
	c := rocltest.Cluster(t, 1)
	server := c.Open(0)
	first, second := listen(t, server), listen(t, server)
	ends := make(chan error)
	for _, ln := range []net.Listener{first, second} {
		go func() {
			_, err := ln.Accept()
			ends <- err
		}()
	}
	first.Close()
	try.Fails(<-ends)(t, net.ErrClosed)
	server.Close()
	try.Fails(<-ends)(t, net.ErrClosed, rocl.ErrClosed)
	try.Check(t, second.Close())
	try.Fails(netrocl.Listen(t.Context(), server, web))(t, rocl.ErrClosed) // listening in a closed context
	try.Fails(netrocl.Dial(t.Context(), server, nil))(t, rocl.ErrClosed)   // dialing in a closed context
}

// Dial tries each listener until one accepts. A listener that refuses, or has another version, says
// why. Dial waits for a listener that does not answer until the context ends.
func TestDialOthers(t *testing.T) {
	c := rocltest.Cluster(t, 2)
	server, client := c.Open(0), c.Open(1)
	for says, tag := range map[string]uint64{"too many connections": tagRefuse, "nonsense": tagAccept, "": tagDial} {
		r := try.Get(server.Register(t.Context(), rocl.Attrs{"type": "web", netrocl.Attr: "1", "says": says + "."}))(t)
		go func() {
			for m, err := range r.Messages(t.Context()) {
				if err == nil {
					_ = r.SendBytes(t.Context(), m.From(), tag, []byte(says))
				}
				m.Release()
			}
		}()
	}
	_, err := netrocl.Dial(t.Context(), client, rocl.Match{"says": "too many connections."})
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("dialing a listener that refuses: %v", err)
	}
	try.Rejects(netrocl.Dial(t.Context(), client, rocl.Match{"says": "nonsense."}))(t, "an answer that makes no sense is a connection")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	try.Fails(netrocl.Dial(ctx, client, rocl.Match{"says": "."}))(t, context.DeadlineExceeded) // dialing a listener that says nothing
	try.Rejects(netrocl.Dial(t.Context(), client, rocl.Match{"": "x"}))(t, "a pattern that makes no sense is dialed")
	try.Rejects(netrocl.Listen(t.Context(), client, rocl.Attrs{"": "x"}))(t, "attributes that make no sense are listened with")
	ln := try.Get(netrocl.Listen(t.Context(), server, rocl.Attrs{"type": "web", "says": "too many connections."}))(t)
	defer ln.Close()
	for range 20 {
		a := try.Get(netrocl.Dial(t.Context(), client, rocl.Match{"says": "too many connections."}))(t)
		a.Close()
		accept(t, ln).Close()
	}
}

// Messages that do not belong to the connection, or have another origin, change nothing.
func TestStrangers(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		cs := lossy(t, 2, opts...)
		server, client := cs[0], cs[1]
		ln := listen(t, server)
		stranger := try.Get(client.Register(t.Context(), nil))(t)
		a, b := dial(t, client), accept(t, ln)
		defer a.Close()
		defer b.Close()
		end := a.LocalAddr().(netrocl.Addr).ID
		for tag := tagDial; tag < tagDial+10; tag++ {
			for _, to := range []rocl.GID{end, ln.Addr().(netrocl.Addr).ID} {
				try.OK(t, stranger.SendBytes(t.Context(), to, tag, []byte("1")))
			}
		}
		try.Get(b.Write([]byte("hello")))(t)
		_ = b.CloseWrite()
		reads(t, a, []byte("hello"))
		other := dial(t, client)
		other.Close()
		accept(t, ln).Close()
	})
}

// A dialer with another version is refused.
func TestOtherVersion(t *testing.T) {
	c := rocltest.Cluster(t, 2)
	server, client := c.Open(0), c.Open(1)
	ln := listen(t, server)
	defer ln.Close()
	me := try.Get(client.Register(t.Context(), nil))(t)
	try.OK(t, me.SendBytes(t.Context(), ln.Addr().(netrocl.Addr).ID, tagDial, []byte("2")))
	m := try.Get(me.Recv(t.Context()))(t)
	if s := string(m.Bytes()); m.Tag() != tagRefuse || !strings.Contains(s, "version 1") {
		t.Errorf("the listener says %d, %q", m.Tag(), s)
	}
	m.Release()
}

// Close of a Conn may come at any moment, from several goroutines.
func TestCloseDuringEverything(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		cs := lossy(t, 2, opts...)
		server, client := cs[0], cs[1]
		ln := listen(t, server)
		for i := range 8 {
			a, b := dial(t, client), accept(t, ln)
			var wg sync.WaitGroup
			for _, c := range []*netrocl.Conn{a, b} {
				wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
				wg.Go(func() {
					for err := error(nil); err == nil; {
						_, err = c.Write(make([]byte, 30_000))
					}
				})
				wg.Go(func() {
					for err := error(nil); err == nil; {
						err = c.SetDeadline(time.Now().Add(time.Hour))
					}
				})
			}
			for range i * 20 {
				runtime.Gosched()
			}
			for _, c := range []*netrocl.Conn{a, b, a, b} {
				wg.Go(func() { _ = c.Close() })
			}
			wg.Wait()
		}
	})
}

// bePeer is the process that a test kills: it writes to the first connection, and then does
// nothing.
func bePeer(sock, transport string) {
	for _, tr := range transports {
		if tr.name == transport {
			ctx := context.Background()
			c, err := rocl.Open(ctx, append(tr.opts, rocl.WithSocket(sock))...)
			if err != nil {
				panic(err)
			}
			ln, err := netrocl.Listen(ctx, c, web)
			if err != nil {
				panic(err)
			}
			conn, err := ln.Accept()
			if err != nil {
				panic(err)
			}
			if _, err := conn.Write(pattern(300_000)); err != nil {
				panic(err)
			}
			select {}
		}
	}
}

// If the peer's process is killed, a Read and a Write that wait fail.
func TestPeerKilled(t *testing.T) {
	for _, tr := range transports {
		if tr.name == "inproc" {
			continue
		}
		t.Run(tr.name, func(t *testing.T) {
			sock := filepath.Join(t.TempDir(), "d")
			c := try.Get(rocl.Open(t.Context(), append(tr.opts, rocl.WithSocket(sock))...))(t)
			defer c.Close()
			cmd := subprocess.Self()
			cmd.Env = append(os.Environ(), "NETROCL_PEER="+sock, "NETROCL_OVER="+tr.name)
			peer := try.Get(subprocess.Start(cmd))(t)
			t.Cleanup(peer.Kill)
			for ev, err := range c.Watch(t.Context(), rocl.Match(web)) {
				try.OK(t, err)
				if ev.Kind == rocl.Appeared {
					break
				}
			}
			conn := dial(t, c)
			defer conn.Close()
			try.Get(io.ReadFull(conn, make([]byte, 300_000)))(t)
			fill(t, conn, make([]byte, 4<<20))
			_ = conn.SetDeadline(time.Time{})
			ends := make(chan error)
			go func() {
				_, err := conn.Read(make([]byte, 1))
				ends <- err
			}()
			go func() {
				_, err := conn.Write(make([]byte, 4<<20))
				ends <- err
			}()
			peer.Kill()
			for range 2 {
				if err := <-ends; !isReset(err) {
					t.Errorf("the peer was killed: %v", err)
				}
			}
			if _, err := conn.Write([]byte{1}); !isReset(err) {
				t.Errorf("a write to a peer that was killed: %v", err)
			}
		})
	}
}

// A Write waits while the context has no memory.
func TestWriteWaitsForMemory(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...rocl.Option) {
		cs := lossy(t, 2, append(opts, rocl.WithMemory(4<<20))...)
		ln := listen(t, cs[0])
		defer ln.Close()
		a, b := dial(t, cs[1]), accept(t, ln)
		defer b.Close()
		var taken []*rocl.Buffer
		for n := 1 << 20; n >= 1<<10; {
			p, err := cs[1].Buffer(n)
			if err != nil {
				n /= 2
				continue
			}
			taken = append(taken, p)
		}
		_ = a.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		if n, err := a.Write(pattern(100_000)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes were written without memory, %v", n, err)
		}
		_ = a.SetWriteDeadline(time.Time{})
		go func() {
			try.Works(a.Write(pattern(100_000)))(t)
			a.Close()
		}()
		for _, p := range taken {
			p.Release()
		}
		reads(t, b, pattern(100_000))
	})
}
