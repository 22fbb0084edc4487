// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The guarantees that hold over TCP hold too if messages lie in the memory of the killed process.
func TestCrashOverShm(t *testing.T) { crashOverShm(t, "adaptive") }

// The same holds if the survivor sleeps on a futex, which no dead process wakes.
func TestCrashBesideSleeper(t *testing.T) { crashOverShm(t, "never") }

func crashOverShm(t *testing.T, how string) {
	t.Setenv("ROCL_TEST_SHM", how)
	t.Run("Sender", TestCrashSender)
	t.Run("Receiver", TestCrashReceiver)
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

// A sender is killed in the middle of large messages. The receiver gets an unbroken beginning of
// them: at least what the sender knew to be delivered, and no part of a message. Then the receiver
// goes on working.
//
// Promise (Delivery): If a sender is killed, its receiver gets the first messages, each of them
// whole. See also TestCrashMonitoredIdle.
func TestCrashSender(t *testing.T) {
	rounds := 5
	if short.Form(t) {
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
		from := try.Get(c.Find(ctx, lib.Match{"peer": name}))(t)
		next := uint64(0) // message expected
		take := func(m *lib.Message, err error) {
			t.Helper()
			try.OK(t, err)
			if err := bigCheck(m.Bytes(), next); err != nil || m.Tag() != next || m.From() != from.ID {
				t.Fatalf("%v; tag %d from %v", err, m.Tag(), m.From())
			}
			m.Release()
			next++
		}
		for range 3 + 2*round {
			take(r.Recv(ctx, lib.From(from.ID)))
		}
		f.Kill() // it has been sending all the time
		delivered := uint64(0)
		for l := range f.Lines {
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
		try.Fails(c.Find(ctx, lib.Match{"peer": name}))(t, lib.ErrNotFound, "the dead sender is found")
	}
	// Another sender is served as if nothing had happened.
	ctx := eventually.Context(t)
	f := peer(t, "flood", sock, "last")
	for i := range uint64(5) {
		m := try.Get(r.Recv(ctx))(t)
		try.Check(t, bigCheck(m.Bytes(), i))
		m.Release()
	}
	f.Kill()
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
			target := try.Get(c.Find(ctx, lib.Match{"peer": "full"}))(t)
			other := try.Get(c.Find(ctx, lib.Match{"peer": "other"}))(t)
			talk := func(tag uint64) {
				t.Helper()
				try.OK(t, me.SendBytes(ctx, other.ID, tag, []byte("hello")))
				m, err := me.Recv(ctx, lib.From(other.ID), lib.Tag(tag))
				if err != nil || string(m.Bytes()) != "hello" {
					t.Fatal(m, err)
				}
				m.Release()
			}
			talk(1)
			send := func(ctx context.Context) error { return me.SendBytes(ctx, target.ID, 0, make([]byte, 10_000)) }
			try.OK(t, errors.Join(send(ctx), c.Flush(ctx)))
			accepted := 0
			for n := 1; n > 0; accepted += n { // on a busy machine the peer may be late to give credit
				if n = fill(ctx, t, send); accepted+n > 1000 {
					t.Fatalf("%d messages were accepted", accepted+n)
				}
				try.OK(t, c.Flush(ctx))
			}
			failed := make(chan error, 1)
			go func() { failed <- send(ctx) }()
			talk(2) // the waiting sender delays no other
			select {
			case err := <-failed:
				t.Fatalf("the send did not wait: %v", err)
			default:
			}
			full.Kill()
			if err := <-failed; !errors.Is(err, lib.ErrGone) && !errors.Is(err, lib.ErrUnreachable) {
				t.Errorf("the waiting send failed with %v", err)
			}
			if err := me.SendBytes(ctx, target.ID, 0, nil); !errors.Is(err, lib.ErrGone) && !errors.Is(err, lib.ErrUnreachable) {
				t.Errorf("another send: %v", err)
			}
			talk(3)
			// A reply may overtake the acknowledgement of its request. The process that owes that
			// acknowledgement is killed before c is closed.
			try.Check(t, c.Flush(ctx), "flush")
		})
	}
}

// Close returns, and the flusher sleeps, even if very much was queued while the link was made.
func TestCrashBacklog(t *testing.T) {
	sock := socket(t)
	p := peer(t, "mint", sock, "many")
	for range mints {
		p.until(t, "minted")
	}
	rounds, before, after := 15, 30_000, 100_000 // it depends on which goroutine writes when
	if short.Form(t) {
		rounds, after = 3, 10_000
	}
	for range rounds {
		// There is no cleanup: it would hang, as Close does.
		ctx := eventually.Context(t)
		// On a busy machine the peer takes longer than usual to receive everything.
		c := try.Get(lib.Open(ctx, lib.WithSocket(sock), lib.WithLinger(60*time.Second)))(t)
		me := register(t, c, lib.Attrs{"me": "yes"})
		var ids []lib.GID
		for f, err := range c.FindAll(ctx, lib.Match{"peer": "many"}) {
			try.OK(t, err)
			ids = append(ids, f.ID)
		}
		// A stopped peer answers no handshake.
		p.signal(t, posix.SIGSTOP)
		for n := range before + after {
			if n == before {
				p.signal(t, posix.SIGCONT)
			}
			try.OK(t, me.SendBytes(ctx, ids[n%len(ids)], 0, nil))
		}
		try.Check(t, c.Close())
	}
}
