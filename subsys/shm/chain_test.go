// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// A link is one process of a chain, in the test binary: ROCL_SHM_TEST_CHAIN names its part
// and the address that it dials. A peer is a source whose memory stays as it is.
//
//	source ──► relay ──► drain     and the relay sends some back to the source
func init() {
	if part, addr, ok := strings.Cut(os.Getenv("ROCL_SHM_TEST_CHAIN"), " "); ok {
		os.Exit(chainPart(part, addr))
	}
}

// Exit codes of a link.
const (
	exitNonsense = 2 // a payload was damaged
	exitLeft     = 3 // a descriptor, a mapping or memory was leaked
)

// chainPart plays a part until its input ends.
func chainPart(part, addr string) int {
	n, err := open("")
	if err != nil {
		println(err.Error())
		return 1
	}
	var r *relay
	var s *sink
	if part == "relay" {
		r = newRelay(n)
	}
	if addr != "" {
		if s, err = n.dial(addr); err != nil {
			println(err.Error())
			return 1
		}
		s.conn.(subsys.Admitter).Admit()
		s.keep(5)
	}
	fmt.Println(n.Port.Addr())
	ended := make(chan struct{})
	var running sync.WaitGroup
	check := func(s *sink) {
		for {
			if _, err := s.release(); err != nil {
				println(part, err.Error())
				os.Exit(exitNonsense)
			}
			if _, err := s.frames(); err != nil {
				println(part, err.Error())
				os.Exit(exitNonsense)
			}
			select {
			case <-ended:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	if s != nil {
		running.Go(func() { check(s) })
	}
	switch part {
	case "peer":
		running.Go(func() { _ = n.load(s, -1, uint64(os.Getpid())) })
	case "source": // overwrites its memory when no loan is out
		running.Go(func() {
			_ = n.load(s, -1, uint64(os.Getpid()))
			for i := 0; ; i++ {
				if err := overwrite(n.Pool); err != nil {
					println(err.Error())
					os.Exit(1)
				}
				if i == 1 {
					fmt.Println("overwritten")
				}
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	case "relay":
		r.to = s
		running.Go(r.run)
	case "drain":
		running.Go(func() {
			for {
				select {
				case s := <-n.taken:
					s.conn.(subsys.Admitter).Admit()
					s.keep(3)
					running.Go(func() { check(s) })
				case <-ended:
					return
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(ended)
	if s != nil {
		s.conn.Close()
		s.fell(nil)
	}
	if r != nil {
		r.stop()
	}
	running.Wait()
	if s != nil {
		_, _ = s.release()
	}
	if err := n.Close(); err != nil && !errors.Is(err, buffers.ErrLeaked) {
		println(part, err.Error())
		return exitLeft
	}
	return 0
}

// overwrite writes to all memory that a pool hands out.
func overwrite(p *buffers.Pool) error {
	var all []*buffers.Buffer
	for _, size := range []int{4096, 16_384, 65_536, 262_144} {
		for range 40 {
			b, err := p.Get(size)
			if err != nil {
				return err
			}
			clear(b.Bytes())
			all = append(all, b)
		}
	}
	for _, b := range all {
		b.Release()
	}
	return nil
}

// A relay sends on the payloads that its node receives, in turns whole and as a slice, and every
// fourth one back as well. Payloads for which it is too slow are released.
type relay struct {
	node *node
	to   *sink

	mu      sync.Mutex
	cond    *sync.Cond
	queue   []subsys.Frame
	back    []*sink // the accepted connections
	ended   bool
	relayed int
}

func newRelay(n *node) *relay {
	r := &relay{node: n}
	r.cond = sync.NewCond(&r.mu)
	n.accept = func(c subsys.Conn) subsys.Sink {
		s := newSink(c)
		c.(subsys.Admitter).Admit()
		r.mu.Lock()
		r.back = append(r.back, s)
		r.mu.Unlock()
		return &relaySink{s, r}
	}
	return r
}

type relaySink struct {
	*sink
	relay *relay
}

func (s *relaySink) Frames(c subsys.Conn, fs []subsys.Frame) error {
	err := s.sink.Frames(c, fs)
	r := s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range fs {
		if r.ended || len(r.queue) > 100 {
			break
		}
		if f.Buf != nil && len(f.Data) > inline {
			f.Buf.Retain()
		} else {
			f.Data, f.Buf = bytes.Clone(f.Data), nil
		}
		r.queue = append(r.queue, f)
	}
	r.cond.Signal()
	return err
}

// run sends payloads on until stop is called.
func (r *relay) run() {
	var next, backNext uint32
	rnd := rand.New(rand.NewPCG(uint64(os.Getpid()), 3))
	for {
		r.mu.Lock()
		for len(r.queue) == 0 && !r.ended {
			r.cond.Wait()
		}
		if len(r.queue) == 0 {
			r.mu.Unlock()
			return
		}
		f := r.queue[0]
		r.queue = r.queue[1:]
		var back *sink
		if len(r.back) > 0 && rnd.IntN(4) == 0 {
			back = r.back[0]
		}
		r.mu.Unlock()
		if err := verify(f.Data, f.Tag); err != nil {
			println("relay: a held message:", err.Error())
			os.Exit(exitNonsense)
		}
		part := f
		if n := len(f.Data); f.Buf != nil && rnd.IntN(2) == 0 {
			off := rnd.IntN(n)
			part.Data = f.Data[off : off+1+rnd.IntN(n-off)]
			part.Len, part.Tag = uint32(len(part.Data)), sum(part.Data)
		}
		if sendFrame(r.to, part, &next) {
			r.mu.Lock()
			r.relayed++
			r.mu.Unlock()
		}
		if back != nil {
			sendFrame(back, part, &backNext)
		}
		if f.Buf != nil {
			f.Buf.Release()
		}
	}
}

// sendFrame sends a frame as the next one. It reports false if the connection has ended.
func sendFrame(s *sink, f subsys.Frame, next *uint32) bool {
	f.Seq = *next
	for {
		k, err := s.conn.Send([]subsys.Frame{f})
		if err != nil {
			return false
		}
		if k == 1 {
			*next++
			return true
		}
		select {
		case <-s.writable:
		case err := <-s.down:
			s.fell(err)
			return false
		}
	}
}

// stop ends run, and releases payloads that were not sent.
func (r *relay) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, f := range r.queue {
		if f.Buf != nil {
			f.Buf.Release()
		}
	}
	r.queue = nil
	for _, s := range r.back {
		s.conn.Close()
		s.fell(nil)
	}
	r.cond.Signal()
}

// A chained is a process that plays a part.
type chained struct {
	*subprocess.Process
	addr string
}

// spawnPart starts a link, which is killed when the test ends.
func spawnPart(t testing.TB, part, addr string) *chained {
	t.Helper()
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), "ROCL_SHM_TEST_CHAIN="+part+" "+addr)
	c := &chained{Process: try.Get(subprocess.Start(cmd))(t)}
	t.Cleanup(c.Kill)
	c.addr = c.line(t)
	return c
}

// line waits for the next line that the process prints.
func (c *chained) line(t testing.TB) string {
	t.Helper()
	return try.Get(c.Line(t.Context()))(t)
}

// end kills the process, or lets it end by itself; then it must have found no fault.
func (c *chained) end(t testing.TB, isKilled bool) {
	t.Helper()
	if isKilled {
		c.Kill()
	}
	c.CloseInput()
	_ = c.Wait()
	if code := c.Cmd.ProcessState.ExitCode(); code > 0 {
		t.Fatalf("a process of the chain ended by itself, with %d", code)
	}
}

// rounds calls round n times. In the end node has no more descriptors and mappings than after the
// first round, besides its own arenas.
func rounds(t *testing.T, node *node, n int, round func(i int)) {
	t.Helper()
	var fds, maps int
	for i := range n {
		round(i)
		if i == 0 {
			fds, maps = resources()
		}
	}
	wantBack(t, node)
	eventually.True(t, "the connections are gone", func() bool { return conns(node) == 0 })
	eventually.True(t, "descriptors and mappings are as before", func() bool {
		arenas := node.Pool.Stats().Arenas
		f, m := resources()
		return f <= fds+arenas && m <= maps+arenas
	})
}

// shortly waits for a short random time.
func shortly() {
	time.Sleep(time.Duration(rand.IntN(12_000)) * time.Microsecond) // the moment of a kill varies
}

// This process is the last of three in a chain. The first or the second is killed at any moment.
// Payloads that this process holds do not change, whatever the first does with its memory. In the
// end no descriptor and no mapping is left.
//
// Promise (Shared memory): When processes that pass a message on are killed or close, what others
// hold stays as it was. See also TestAbandonedArena.
func TestChainHeld(t *testing.T) {
	n, held := start(t), 0
	rounds(t, n, chainKills(t), func(i int) {
		r := spawnPart(t, "relay", n.Port.Addr())
		s := n.accepted(t)
		s.conn.(subsys.Admitter).Admit()
		s.keep(2)
		a := spawnPart(t, "source", r.addr)
		eventually.True(t, "frames come", func() bool { got, _ := s.frames(); return got > 10 })
		shortly()
		switch i % 3 {
		case 0: // the relay: the source lives, and overwrites the memory that it may
			r.end(t, true)
			if l := a.line(t); l != "overwritten" {
				t.Fatalf("the source says %s", l)
			}
			_ = s.wantDown(t)
		case 1: // the source
			a.end(t, true)
			shortly()
		case 2: // the relay closes
			r.end(t, false)
			if l := a.line(t); l != "overwritten" {
				t.Fatalf("the source says %s", l)
			}
			_ = s.wantDown(t)
		}
		try.Get(s.frames())(t, "round %d", i)
		k := try.Get(s.release())(t, "round %d", i)
		held += k
		switch i % 3 {
		case 0, 2:
			a.end(t, false)
		case 1:
			r.end(t, false)
			_ = s.wantDown(t)
			if _, err := s.release(); err != nil { // payloads that arrived meanwhile
				t.Fatalf("round %d: %v", i, err)
			}
		}
	})
	if held == 0 {
		t.Error("nothing was held")
	}
}

// This process is the first of three in a chain. The second or the last is killed at any moment.
// Lent memory comes back, or is not used again.
func TestChainLent(t *testing.T) {
	n := start(t)
	rounds(t, n, chainKills(t), func(i int) {
		c := spawnPart(t, "drain", "")
		r := spawnPart(t, "relay", c.addr)
		s := try.Get(n.dial(r.addr))(t)
		s.conn.(subsys.Admitter).Admit()
		s.keep(7)
		var sending sync.WaitGroup
		sending.Go(func() { _ = n.load(s, -1, uint64(i)) })
		eventually.True(t, "some comes back", func() bool { got, _ := s.frames(); return got > 10 })
		shortly()
		switch i % 3 {
		case 0:
			r.end(t, true)
		case 1: // the relay goes on
			c.end(t, true)
			shortly()
			r.end(t, false)
		case 2:
			c.Signal(syscall.SIGSTOP) // it reads nothing while the relay dies
			r.end(t, true)
		}
		_ = s.wantDown(t)
		s.fell(nil)
		sending.Wait()
		if i%3 == 2 {
			try.OK(t, overwrite(n.Pool))
			c.Signal(syscall.SIGCONT)
		}
		if i%3 != 1 {
			shortly()
			c.end(t, false)
		}
		try.Get(s.frames())(t, "round %d", i)
		try.Get(s.release())(t, "round %d", i)
	})
}

// This process is the second of three in a chain. The first or the last is killed at any moment.
func TestChainBetween(t *testing.T) {
	n, relayed := start(t), 0
	rounds(t, n, chainKills(t), func(i int) {
		c := spawnPart(t, "drain", "")
		r := newRelay(n)
		to := try.Get(n.dial(c.addr))(t)
		r.to = to
		var running sync.WaitGroup
		running.Go(r.run)
		a := spawnPart(t, "source", n.Port.Addr())
		eventually.True(t, "frames are sent on", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.relayed > 10
		})
		shortly()
		first, second := a, c
		if i%2 > 0 {
			first, second = c, a
		}
		first.end(t, true)
		shortly()
		r.stop()
		to.conn.Close()
		to.fell(nil)
		running.Wait()
		second.end(t, false)
		r.mu.Lock()
		relayed += r.relayed
		for _, s := range r.back {
			try.Get(s.frames())(t, "round %d", i)
		}
		r.mu.Unlock()
	})
	t.Logf("%d frames were sent on", relayed)
}

// chainKills is how many processes a test of the chain ends.
func chainKills(t *testing.T) int {
	if short.Form(t) {
		return 6
	}
	return max(*kills/3, 6)
}
