// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// The process that is killed must run this library, not a command: the test binary is started again
// as one of the peers below.
func init() {
	if len(os.Args) < 5 || os.Args[1] != "peer" {
		return
	}
	peers := map[string]func(c *lib.Context, who lib.Attrs) error{"flood": flood, "silent": silent, "echo": echo, "hello": hello, "mint": mint, "restless": restless, "parent": parent, "chatter": chatter, "replier": replier, "asker": asker, "bulk-origin": bulkOrigin, "bulk-target": bulkTarget, "crowd": crowd, "asks": asks, "hoard": hoard, "counts": counts}
	opts := overShm()
	switch refused := os.Getenv("ROCL_TEST_REFUSED"); {
	case refused != "":
		if err := refuse(refused); err != nil {
			fmt.Println("refusing:", err)
			os.Exit(1)
		}
		opts = []lib.Option{lib.WithLogger(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelWarn})))}
	case os.Getenv("ROCL_TEST_MORTAL") != "":
		var err error
		if opts, err = mortally(os.Getenv("ROCL_TEST_MORTAL")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case opts == nil:
		opts = []lib.Option{lib.WithTransports(tcp.New())}
	}
	c, err := lib.Open(context.Background(), append(opts, lib.WithSocket(os.Args[3]))...)
	if err == nil {
		err = peers[os.Args[2]](c, lib.Attrs{"peer": os.Args[4]})
	}
	fmt.Println("peer ended:", err)
	os.Exit(1)
}

// peer starts a process that plays a part under a name, and waits until the process has registered
// {peer=name}.
func peer(t *testing.T, part, sock, name string) *child {
	t.Helper()
	cmd := subprocess.Self("peer", part, sock, name)
	apart(cmd)
	return startCommand(t, "registered", cmd)
}

// overShm returns the options with which a test process opens its context under TestCrashOverShm.
func overShm() []lib.Option {
	how := lib.PollAdaptive
	switch os.Getenv("ROCL_TEST_SHM") {
	case "":
		return nil
	case "never":
		how = lib.PollNever
	}
	return []lib.Option{lib.WithTransports(shm.New()), lib.WithPoll(how)}
}

// The guarantees that hold over TCP hold too if messages lie in the memory of the killed process.
func TestCrashOverShm(t *testing.T) { crashOverShm(t, "adaptive") }

// The same holds if the survivor sleeps on a futex, which no dead process wakes.
func TestCrashBesideSleeper(t *testing.T) { crashOverShm(t, "never") }

func crashOverShm(t *testing.T, how string) {
	t.Setenv("ROCL_TEST_SHM", how)
	t.Run("Sender", TestCrashSender)
	t.Run("IdleSender", TestCrashIdleSender)
	t.Run("Receiver", TestCrashReceiver)
	t.Run("ReceiverWithRoom", TestCrashReceiverWithRoom)
}

const bigLen = 8 << 20

var table = crc64.MakeTable(crc64.ECMA)

// bigMessage fills p so that bigCheck notices every byte that does not belong to message i.
func bigMessage(p []byte, i uint64) {
	binary.LittleEndian.PutUint64(p, i)
	for at := 16; at < len(p); at += 8 {
		binary.LittleEndian.PutUint64(p[at:], i*0x9e3779b97f4a7c15+uint64(at))
	}
	binary.LittleEndian.PutUint64(p[8:], crc64.Checksum(p[16:], table))
}

func bigCheck(p []byte, i uint64) error {
	switch {
	case len(p) != bigLen:
		return fmt.Errorf("message %d has %d bytes", i, len(p))
	case binary.LittleEndian.Uint64(p) != i:
		return fmt.Errorf("message %d stands where %d is expected", binary.LittleEndian.Uint64(p), i)
	case binary.LittleEndian.Uint64(p[8:]) != crc64.Checksum(p[16:], table):
		return fmt.Errorf("message %d is damaged", i)
	}
	return nil
}

// flood sends large messages to {sink=yes} without end, and prints of each when the library has
// released it.
func flood(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	r, err := c.Register(ctx, who)
	if err != nil {
		return err
	}
	sink, err := c.Find(ctx, lib.Match{"sink": "yes"})
	if err != nil {
		return err
	}
	fmt.Println("registered")
	var under []*lib.Buffer // way, in order
	delivered := 0
	for i := uint64(0); ; i++ {
		b, err := c.Buffer(bigLen)
		if err != nil {
			return err
		}
		bigMessage(b.Bytes(), i)
		under = append(under, b.Retain())
		if err := r.Send(ctx, sink.ID, i, b); err != nil {
			b.Release()
			return err
		}
		for len(under) > 0 && under[0].Done() {
			fmt.Println("delivered", delivered)
			delivered++
			under[0].Release()
			under = under[1:]
		}
	}
}

// silent registers a resource with a small mailbox, and receives nothing.
func silent(c *lib.Context, who lib.Attrs) error {
	if _, err := c.Register(context.Background(), who, lib.MailboxLimit(256<<10)); err != nil {
		return err
	}
	fmt.Println("registered")
	select {}
}

// echo sends each message back to its sender.
func echo(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	r, err := c.Register(ctx, who)
	if err != nil {
		return err
	}
	fmt.Println("registered")
	for {
		m, err := r.Recv(ctx)
		if err != nil {
			return err
		}
		from, tag, b := m.From(), m.Tag(), m.Buffer()
		m.Release()
		if err := r.Send(ctx, from, tag, b); err != nil {
			b.Release()
			if !errors.Is(err, lib.ErrGone) {
				return err
			}
		}
	}
}

// hello sends one message to {sink=yes}, and stays.
func hello(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	r, err := c.Register(ctx, who)
	if err != nil {
		return err
	}
	sink, err := c.Find(ctx, lib.Match{"sink": "yes"})
	if err != nil {
		return err
	}
	if err := r.SendBytes(ctx, sink.ID, 0, []byte("hello")); err != nil {
		return err
	}
	fmt.Println("registered")
	select {}
}

const mints = 2000

// mint registers many resources and prints their identifiers.
func mint(c *lib.Context, who lib.Attrs) error {
	fmt.Println("registered")
	for range mints {
		r, err := c.Register(context.Background(), who)
		if err != nil {
			return err
		}
		fmt.Println("minted", r.ID())
	}
	select {}
}

// tcpConns returns the connected TCP sockets of this process.
func tcpConns(t testing.TB) (fds []int) {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range dir {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		switch a, _ := syscall.Getpeername(fd); a.(type) {
		case *syscall.SockaddrInet4, *syscall.SockaddrInet6:
			fds = append(fds, fd)
		}
	}
	return fds
}

// fill calls send until the mailbox of its target is full, and returns how many calls have
// succeeded. The mailbox is full when ten calls in a row have waited in vain.
func fill(ctx context.Context, t testing.TB, send func(context.Context) error) (accepted int) {
	t.Helper()
	for late := 0; late < 10; {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		err := send(short)
		cancel()
		switch {
		case err == nil:
			accepted++
			late = 0
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			late++
		default:
			t.Fatalf("message %d: %v", accepted, err)
		}
	}
	return accepted
}

// open opens a context in this process, on a node of real processes.
func open(t testing.TB, sock string, opts ...lib.Option) *lib.Context {
	t.Helper()
	c, err := lib.Open(eventually.Context(t), append(append(overShm(), lib.WithSocket(sock)), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return c
}

func register(t testing.TB, c *lib.Context, a lib.Attrs) *lib.Resource {
	t.Helper()
	r, err := c.Register(eventually.Context(t), a)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A sender is killed in the middle of large messages. The receiver gets an unbroken beginning of
// them: at least what the sender knew to be delivered, and no part of a message. Then the receiver
// goes on working.
//
// Promise (Delivery): If a sender is killed, its receiver gets the first messages, each of them
// whole. See also TestCrashIdleSender.
func TestCrashSender(t *testing.T) {
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	sock := socket(t)
	c := open(t, sock)
	r := register(t, c, lib.Attrs{"sink": "yes"})
	inUse := c.Stats().Buffers.InUse
	for round := range rounds {
		ctx := eventually.Context(t)
		name := fmt.Sprint("flood", round)
		f := peer(t, "flood", sock, name)
		from, err := c.Find(ctx, lib.Match{"peer": name})
		if err != nil {
			t.Fatal(err)
		}
		next := uint64(0) // message expected
		take := func(m *lib.Message, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			if err := bigCheck(m.Bytes(), next); err != nil || m.Tag() != next || m.From() != from.ID {
				t.Fatalf("%v; tag %d from %v", err, m.Tag(), m.From())
			}
			m.Release()
			next++
		}
		for range 3 + 2*round {
			take(r.Recv(ctx, lib.From(from.ID)))
		}
		f.kill(t) // it has been sending all the time
		delivered := uint64(0)
		for l := range f.lines {
			if strings.HasPrefix(l, "peer ended") {
				t.Fatal(l)
			}
			if strings.HasPrefix(l, "delivered") {
				delivered++
			}
		}
		// The kernel still has what the killed process wrote.
		eventually.True(t, "the connection of the dead sender is closed", func() bool { return len(tcpConns(t)) == 0 })
		// A send makes the link end, if it has not ended yet. With the link goes the last memory,
		// that of the unfinished message included.
		eventually.True(t, "a send to the dead sender fails", func() bool {
			err := r.SendBytes(ctx, from.ID, 0, nil)
			if err != nil && !errors.Is(err, lib.ErrGone) {
				t.Fatal(err)
			}
			return err != nil
		})
		eventually.True(t, "the link to the dead sender is gone", func() bool { return c.Stats().Links == 0 })
		for {
			m, err := r.TryRecv(lib.From(from.ID))
			if errors.Is(err, lib.ErrEmpty) || errors.Is(err, lib.ErrGone) {
				break
			}
			take(m, err)
		}
		if next < delivered {
			t.Errorf("round %d: %d messages were received, the sender knew of %d", round, next, delivered)
		}
		t.Logf("round %d: %d messages, the sender knew of %d", round, next, delivered)
		eventually.True(t, "the memory of the unfinished message is free", func() bool { return c.Stats().Buffers.InUse == inUse })
		if _, err := c.Find(ctx, lib.Match{"peer": name}); !errors.Is(err, lib.ErrNotFound) {
			t.Errorf("the dead sender is found: %v", err)
		}
	}
	// Another sender is served as if nothing had happened.
	ctx := eventually.Context(t)
	f := peer(t, "flood", sock, "last")
	for i := range uint64(5) {
		m, err := r.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := bigCheck(m.Bytes(), i); err != nil {
			t.Error(err)
		}
		m.Release()
	}
	f.kill(t)
}

// Nothing is kept for senders that were killed while no messages were sent.
func TestCrashIdleSender(t *testing.T) {
	sock := socket(t)
	c := open(t, sock)
	r := register(t, c, lib.Attrs{"sink": "yes"})
	for i := range 3 {
		p := peer(t, "hello", sock, fmt.Sprint(i))
		m, err := r.Recv(eventually.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		p.kill(t)
	}
	eventually.True(t, "the links to the dead are gone", func() bool { return c.Stats().Links == 0 })
}

// A receiver with a full mailbox is killed while a sender waits for credit. The sender's call fails
// in time, and the sender goes on exchanging messages with other peers.
//
// Promise (Delivery): If a receiver is killed, what was accepted and not delivered is reported.
// What lay unread in its mailbox is lost without a report. See also TestDeliveredIsNotReported.
func TestCrashReceiver(t *testing.T) {
	const giveUp = 3 * time.Second
	for _, serves := range []bool{false, true} {
		t.Run(fmt.Sprintf("serves=%v", serves), func(t *testing.T) {
			sock := socket(t)
			var c *lib.Context
			if !serves { // the first context serves the directory
				c = open(t, sock, lib.WithGiveUp(giveUp))
			}
			full := peer(t, "silent", sock, "full")
			if serves {
				c = open(t, sock, lib.WithGiveUp(giveUp))
			}
			peer(t, "echo", sock, "other")
			me := register(t, c, lib.Attrs{"me": "yes"})
			ctx := eventually.Context(t)
			target, err := c.Find(ctx, lib.Match{"peer": "full"})
			if err != nil {
				t.Fatal(err)
			}
			other, err := c.Find(ctx, lib.Match{"peer": "other"})
			if err != nil {
				t.Fatal(err)
			}
			talk := func(tag uint64) {
				t.Helper()
				if err := me.SendBytes(ctx, other.ID, tag, []byte("hello")); err != nil {
					t.Fatal(err)
				}
				m, err := me.Recv(ctx, lib.From(other.ID), lib.Tag(tag))
				if err != nil || string(m.Bytes()) != "hello" {
					t.Fatal(m, err)
				}
				m.Release()
			}
			talk(1)
			send := func(ctx context.Context) error { return me.SendBytes(ctx, target.ID, 0, make([]byte, 10_000)) }
			if err := errors.Join(send(ctx), c.Flush(ctx)); err != nil {
				t.Fatal(err)
			}
			accepted := 0
			for n := 1; n > 0; accepted += n { // on a busy machine the peer may be late to give credit
				if n = fill(ctx, t, send); accepted+n > 1000 {
					t.Fatalf("%d messages were accepted", accepted+n)
				}
				if err := c.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			failed := make(chan error, 1)
			go func() { failed <- send(ctx) }()
			talk(2) // the waiting sender delays no other
			select {
			case err := <-failed:
				t.Fatalf("the send did not wait: %v", err)
			default:
			}
			full.kill(t)
			if err := <-failed; !errors.Is(err, lib.ErrGone) && !errors.Is(err, lib.ErrUnreachable) {
				t.Errorf("the waiting send failed with %v", err)
			}
			if err := me.SendBytes(ctx, target.ID, 0, nil); !errors.Is(err, lib.ErrGone) && !errors.Is(err, lib.ErrUnreachable) {
				t.Errorf("another send: %v", err)
			}
			talk(3)
			// A reply may overtake the acknowledgement of its request. The process that owes that
			// acknowledgement is killed before c is closed.
			if err := c.Flush(ctx); err != nil {
				t.Errorf("flush: %v", err)
			}
		})
	}
}

// A receiver with room left is killed, with messages unread. The next send fails at once, or the
// message that it accepted is reported. The send after that fails.
func TestCrashReceiverWithRoom(t *testing.T) {
	const giveUp = 3 * time.Second
	reports := make(chan lib.Undelivered, 100)
	sock := socket(t)
	c := open(t, sock, lib.WithGiveUp(giveUp), lib.WithUndelivered(func(u lib.Undelivered) { reports <- u }))
	me := register(t, c, lib.Attrs{"me": "yes"})
	ctx := eventually.Context(t)
	p := peer(t, "silent", sock, "room")
	target, err := c.Find(ctx, lib.Match{"peer": "room"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := me.SendBytes(ctx, target.ID, 0, []byte("unread")); err != nil {
			t.Fatal(err)
		}
	}
	p.kill(t)
	err = me.SendBytes(ctx, target.ID, 1, []byte("too late"))
	for err == nil { // accepted: then the message is reported, perhaps with earlier ones
		select {
		case u := <-reports:
			if u.To != target.ID || !errors.Is(u.Err, lib.ErrGone) && !errors.Is(u.Err, lib.ErrUnreachable) {
				t.Fatalf("told %+v", u)
			}
			if u.Tag == 1 {
				err = me.SendBytes(ctx, target.ID, 2, nil)
			}
		case <-ctx.Done():
			t.Fatal("the message was neither refused nor reported")
		}
	}
	if !errors.Is(err, lib.ErrGone) && !errors.Is(err, lib.ErrUnreachable) {
		t.Errorf("a send to the dead: %v", err)
	}
	peer(t, "echo", sock, "other")
	other, err := c.Find(ctx, lib.Match{"peer": "other"})
	if err != nil {
		t.Fatal(err)
	}
	if err := me.SendBytes(ctx, other.ID, 9, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil || m.From() != other.ID || m.Tag() != 9 {
		t.Fatal(m, err)
	}
	m.Release()
	// What the killed process was sent may be reported only now, and a reply may overtake the
	// acknowledgement of its request. Flush makes sure that Close finds nothing.
	_ = c.Flush(ctx)
}

// Close returns, and the flusher sleeps, even if very much was queued while the link was made.
func TestCrashBacklog(t *testing.T) {
	sock := socket(t)
	p := peer(t, "mint", sock, "many")
	for range mints {
		p.until(t, "minted")
	}
	rounds := 15 // it depends on which goroutine writes when
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		// There is no cleanup: it would hang, as Close does.
		ctx := eventually.Context(t)
		// On a busy machine the peer takes longer than usual to receive everything.
		c, err := lib.Open(ctx, lib.WithSocket(sock), lib.WithLinger(60*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		me := register(t, c, lib.Attrs{"me": "yes"})
		var ids []lib.GID
		for f, err := range c.FindAll(ctx, lib.Match{"peer": "many"}) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, f.ID)
		}
		// A stopped peer answers no handshake.
		signal(t, p.cmd.Process.Pid, syscall.SIGSTOP)
		const before, after = 30_000, 100_000
		for n := range before + after {
			if n == before {
				if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			if err := me.SendBytes(ctx, ids[n%len(ids)], 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
