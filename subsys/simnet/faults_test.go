// SPDX-License-Identifier: Apache-2.0

package simnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// A pair is two hosts with a process on each, and a connection between these.
type pair struct {
	n         *simnet.Network
	a, b      *simnet.Process
	ln        net.Listener
	near, far net.Conn
}

// between runs f with a new pair in a bubble. A packet takes 10 ms.
func between(t *testing.T, f func(t *testing.T, p pair)) {
	synctest.Test(t, func(t *testing.T) {
		p := pair{n: simnet.New(1)}
		p.n.SetDelay(10*time.Millisecond, 10*time.Millisecond)
		p.a, p.b = p.n.AddHost("a").Start(), p.n.AddHost("b").Start()
		p.ln = try.Get(p.b.Listen(""))(t)
		defer p.ln.Close()
		p.near = try.Get(p.a.DialContext(t.Context(), p.ln.Addr().String()))(t)
		defer p.near.Close()
		p.far = try.Get(p.ln.Accept())(t)
		defer p.far.Close()
		f(t, p)
	})
}

// write writes text to c.
func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	try.Get(io.WriteString(c, text))(t)
}

// read returns what c yields until its end, an error or a pause of a second.
func read(c net.Conn) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	b, err := io.ReadAll(c)
	return string(b), err
}

func TestDelay(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		begun := time.Now()
		write(t, p.near, "hello")
		var b [5]byte
		if _, err := io.ReadFull(p.far, b[:]); err != nil || time.Since(begun) != 10*time.Millisecond {
			t.Errorf("%q after %v: %v", b, time.Since(begun), err)
		}
		p.near.Close()
		try.Gives(read(p.far))(t, "", "behind the end")
		try.Fails(p.far.Write([]byte("x")))(t, syscall.EPIPE, "writing to an end that is closed")
	})
}

// A connection breaks behind the chosen byte.
func TestBreak(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		try.Equal(t, p.n.Break(p.a.Host(), p.b.Host(), 7), 1, "connections")
		write(t, p.near, "hello")
		write(t, p.near, " world")
		if text, err := read(p.far); text != "hello w" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q, %v", text, err)
		}
		try.Fails(p.near.Write([]byte("x")))(t, syscall.ECONNRESET, "writing")
	})
}

// While a path is cut in one direction, the other one carries bytes. Nothing is lost.
func TestCut(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		p.n.Cut(p.a.Host(), p.b.Host())
		write(t, p.near, "there")
		write(t, p.far, "back")
		if text, err := read(p.far); text != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("over a path that is cut: %q, %v", text, err)
		}
		if text, _ := read(p.near); text != "back" {
			t.Errorf("over the other path: %q", text)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		try.Fails(p.a.DialContext(ctx, p.ln.Addr().String()))(t, context.DeadlineExceeded, "dialling without a path")
		p.n.Heal()
		if text, _ := read(p.far); text != "there" {
			t.Errorf("when the path is healed: %q", text)
		}
	})
}

func TestStop(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		p.b.Host().Stop()
		write(t, p.near, "there")
		write(t, p.far, "back")
		if text, _ := read(p.near); text != "" {
			t.Errorf("from a machine that stands still: %q", text)
		}
		p.b.Host().Continue()
		near, _ := read(p.near)
		if far, _ := read(p.far); near != "back" || far != "there" {
			t.Errorf("afterwards: %q and %q", near, far)
		}
	})
}

// A process that is stopped reads nothing, and its kernel answers.
func TestStopProcess(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		p.b.Stop()
		write(t, p.near, "there")
		if text, err := read(p.far); text != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a process that is stopped reads %q, %v", text, err)
		}
		again := try.Get(p.a.DialContext(t.Context(), p.ln.Addr().String()))(t)
		defer again.Close()
		p.b.Continue()
		if text, _ := read(p.far); text != "there" {
			t.Errorf("afterwards: %q", text)
		}
		c := try.Get(p.ln.Accept())(t)
		c.Close()
	})
}

// A process that is killed ends its connections behind what it has sent.
func TestKill(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		write(t, p.near, "last words")
		p.a.Kill()
		try.Gives(read(p.far))(t, "last words")
		try.Fails(p.near.Write([]byte("x")))(t, simnet.ErrKilled, "the killed process writes")
		try.Fails(p.a.Listen(""))(t, simnet.ErrKilled, "the killed process listens")
		p.b.Kill()
		if _, err := p.b.Host().Start().DialContext(t.Context(), p.ln.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling a process that was killed: %v", err)
		}
	})
}

// A machine that crashes tells nobody. Its connections break when it is started again.
func TestCrash(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		p.b.Host().Crash()
		write(t, p.near, "x")
		if text, err := read(p.near); text != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("from a machine without power: %q, %v", text, err)
		}
		p.b.Host().Start()
		if text, err := read(p.near); text != "" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("from a machine that was started again: %q, %v", text, err)
		}
	})
}

// Half of the datagrams between hosts are lost, and the others may overtake each other. All of
// those within a host arrive.
func TestDatagrams(t *testing.T) {
	between(t, func(t *testing.T, p pair) {
		p.n.SetDelay(time.Millisecond, 50*time.Millisecond)
		p.n.SetLoss(0.5)
		to := try.Get(p.b.ListenPacket(""))(t)
		defer to.Close()
		count := func(from *simnet.Process) (n int, isOrdered bool) {
			out := try.Get(from.ListenPacket(""))(t)
			defer out.Close()
			for i := range byte(200) {
				try.Get(out.WriteTo([]byte{i}, to.LocalAddr()))(t)
			}
			_ = to.SetReadDeadline(time.Now().Add(time.Second))
			isOrdered = true
			for last := -1; ; n++ {
				var b [2]byte
				k, at, err := to.ReadFrom(b[:])
				if err != nil {
					return n, isOrdered
				}
				if k != 1 || at.String() != out.LocalAddr().String() {
					t.Errorf("%d bytes from %v", k, at)
				}
				isOrdered = isOrdered && int(b[0]) > last
				last = int(b[0])
			}
		}
		if n, isOrdered := count(p.a); n < 50 || n > 150 || isOrdered {
			t.Errorf("%d datagrams of 200, in order: %v", n, isOrdered)
		}
		if n, isOrdered := count(p.b); n != 200 || !isOrdered {
			t.Errorf("within the host: %d datagrams of 200, in order: %v", n, isOrdered)
		}
	})
}
