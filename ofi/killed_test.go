// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys"
)

// killedLen is the length of payloads and of exposed memory.
const killedLen = 300_000

// A killing is one step of TestKilledAtEachStep. It has the surviving end and the process that is
// killed.
type killing struct {
	*testing.T
	provider string
	e        *end
	*subprocess.Process
	addr string // of the process
}

// The other process is killed before, in and after each step of a handshake, of a large payload and
// of a one-sided transfer. The survivor learns it, keeps nothing, and goes on with another process.
func TestKilledAtEachStep(t *testing.T) {
	steps := []struct {
		name   string
		run    func(*killing)
		isLong bool
		not    []string // providers that have no such step; see the comments
	}{
		{"it dials and says nothing", dials("none", "none"), true, nil},
		{"it dials and says a part", dials("part", "none"), true, nil},
		{"it dials and reads nothing", dials("all", "none"), false, nil},
		{"it dials and reads a part", dials("all", "part"), true, nil},
		{"it has dialled", dials("all", "all"), true, nil},
		{"it is dialled and reads nothing", isDialled("none", "none"), true, nil},
		{"it is dialled and reads a part", isDialled("part", "none"), true, nil},
		{"it is dialled and says nothing", isDialled("all", "none"), false, nil},
		{"it is dialled and says a part", isDialled("all", "part"), true, nil},
		{"it was dialled", isDialled("all", "all"), true, nil},

		{"before its payload is read", (*killing).beforeItIsRead, true, nil},
		// A stopped process may hold a lock of shm.
		{"while its payload is read", (*killing).whileItIsRead, false, []string{"shm"}},
		{"after its payload was read", (*killing).afterItWasRead, true, nil},
		{"before it reads a payload", reads("room"), true, nil},
		// sockets serves peers by a thread of its own, and over shm they need no service.
		{"while it reads a payload", (*killing).whileItReads, false, []string{"sockets", "shm"}},
		{"after it has read a payload", reads("frames"), true, nil},

		{"before its memory is read", accessed("before", opRead), true, []string{"udp;ofi_rxd"}},
		{"while its memory is read", accessed("while", opRead), false, []string{"udp;ofi_rxd", "shm"}},
		{"after its memory was read", accessed("after", opRead), true, []string{"udp;ofi_rxd"}},
		{"before its memory is written", accessed("before", opWrite), true, []string{"udp;ofi_rxd"}},
		{"while its memory is written", accessed("while", opWrite), true, []string{"udp;ofi_rxd", "shm"}},
		{"after its memory was written", accessed("after", opWrite), true, []string{"udp;ofi_rxd"}},
		{"while it reads memory", accesses("while", opRead), true, []string{"udp;ofi_rxd", "sockets", "shm"}},
		{"after it has read memory", accesses("after", opRead), true, []string{"udp;ofi_rxd"}},
		{"while it writes memory", accesses("while", opWrite), false, []string{"udp;ofi_rxd", "sockets", "shm"}},
		{"after it has written memory", accesses("after", opWrite), true, []string{"udp;ofi_rxd"}},
	}
	overEach(t, func(t *testing.T, provider string) {
		e := try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, e.close()) }()
		other := startActor(t, provider, e)
		other.does("dial", e.port.Addr())
		otherSink := eventually.Value(t, "a connection", e.accepted)
		other.says("dialled")
		before := ofi.LoadOf(e.port)
		for _, s := range steps {
			if s.isLong && !*long || slices.Contains(s.not, provider) {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				s.run(startActor(t, provider, e))
				if s.name == "while its payload is read" && provider == "udp;ofi_rxd" { // which never ends the read
					before.Reads++
				}
				eventually.True(t, "nothing of the process is left", func() bool {
					l := ofi.LoadOf(e.port)
					if provider == "udp;ofi_rxd" { // which never ends what a process that has ended has not answered
						l.Peers -= l.Unended
					}
					return l.Conns == before.Conns && l.Peers == before.Peers && l.Exposed == 0 && l.Reads == before.Reads && l.Remotes == 0
				})
				n := otherSink.frames.Load()
				other.does("send", killedLen)
				eventually.True(t, "a payload of another process", func() bool { return otherSink.frames.Load() == n+1 })
				sendTo(t, e, otherSink.conn)
				other.says("frames")
			})
		}
		other.Kill()
		try.Fails(eventually.Value(t, "the end", otherSink.down))(t, subsys.ErrPeerClosed)
	})
}

func startActor(t *testing.T, provider string, e *end) *killing {
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), "ROCL_OFI_ACTOR=1", "ROCL_OFI_PROVIDER="+provider)
	p := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(func() {
		p.Kill()
		for _, left := range try.Get(filepath.Glob(fmt.Sprintf("/dev/shm/%d:*", p.Cmd.Process.Pid)))(t) { // by the provider shm
			try.OK(t, os.Remove(left))
		}
	})
	return &killing{t, provider, e, p, try.Get(p.Line(eventually.Context(t)))(t)}
}

// does gives the process a task.
func (k *killing) does(words ...any) {
	k.Helper()
	try.OK(k, k.WriteLine(words...))
}

// says waits for a line of the process that begins with a word, and returns the rest of the line.
func (k *killing) says(word string) string {
	k.Helper()
	line := try.Get(k.Line(eventually.Context(k)))(k)
	first, rest, _ := strings.Cut(line, " ")
	if first != word {
		k.Fatalf("the process said %q, want %q", line, word)
	}
	return rest
}

// connect lets the process dial, and exchanges a frame, which connects the providers.
func (k *killing) connect() *sink {
	k.Helper()
	k.does("dial", k.e.port.Addr())
	s := eventually.Value(k, "a connection", k.e.accepted)
	k.says("dialled")
	k.does("send", 1)
	eventually.True(k, "a frame", func() bool { return s.frames.Load() == 1 })
	try.Get(s.conn.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}}))(k)
	k.says("frames")
	return s
}

// stop stops the process with all its threads.
func (k *killing) stop() {
	k.Helper()
	k.Signal(posix.SIGSTOP)
	eventually.True(k, "the process is stopped", func() bool {
		stat := try.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", k.Cmd.Process.Pid)))(k)
		return bytes.Contains(stat, []byte(") T "))
	})
}

func (k *killing) isDown(s *sink) {
	k.Helper()
	try.Fails(eventually.Value(k, "the end", s.down))(k, subsys.ErrPeerClosed)
}

// sendTo sends a large payload.
func sendTo(t testing.TB, e *end, c subsys.Conn) {
	t.Helper()
	b := try.Get(e.pool.Get(killedLen))(t)
	defer b.Release()
	try.Equal(t, try.Get(c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16, Len: killedLen}, Data: b.Bytes(), Buf: b}}))(t), 1, "frames")
}

// between accepts a connection and passes it on to the port at addr: of the first greeting, and of
// the answer, nothing, a part or all. It returns its own address. passed receives when so much of
// both has passed.
func (k *killing) between(addr, first, answer string) (own string, passed <-chan struct{}) {
	scheme, host, _ := strings.Cut(addr, "://")
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(k)
	k.Cleanup(func() { ln.Close() })
	done := make(chan struct{}, 1)
	pass := func(to, from net.Conn, what string, then func()) {
		defer to.Close()
		defer from.Close()
		b := make([]byte, 20)
		if _, err := io.ReadFull(from, b); err != nil {
			return
		}
		rest := make([]byte, int(b[9])+int(binary.LittleEndian.Uint16(b[10:])))
		if _, err := io.ReadFull(from, rest); err != nil {
			return
		}
		switch what {
		case "part":
			_, _ = to.Write(b)
		case "all":
			_, _ = to.Write(append(b, rest...))
		}
		if then(); what == "all" {
			_, _ = io.Copy(to, from)
		} else {
			_, _ = io.Copy(io.Discard, from)
		}
	}
	go func() {
		a, err := ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", host)
		if err != nil {
			a.Close()
			return
		}
		signal := func() { done <- struct{}{} }
		nothing := func() {}
		if first == "all" {
			go pass(a, b, answer, signal)
			pass(b, a, first, nothing)
			return
		}
		go func() { // no answer comes
			_, _ = io.Copy(io.Discard, b)
			a.Close()
		}()
		pass(b, a, first, signal)
	}()
	return scheme + "://" + ln.Addr().String(), done
}

func dials(first, answer string) func(*killing) {
	return func(k *killing) {
		addr, passed := k.between(k.e.port.Addr(), first, answer)
		k.does("dial", addr)
		eventually.Value(k, "so much of the handshake", passed)
		if first != "all" {
			k.Kill()
			return
		}
		s := eventually.Value(k, "a connection", k.e.accepted)
		if answer == "all" {
			k.says("dialled")
		}
		k.Kill()
		k.isDown(s)
	}
}

func isDialled(first, answer string) func(*killing) {
	return func(k *killing) {
		addr, passed := k.between(k.addr, first, answer)
		dialled := make(chan error, 1)
		s := newSink()
		go func() {
			c, err := k.e.port.Dial(eventually.Context(k), addr, s)
			if err == nil {
				c.Start()
			}
			dialled <- err
		}()
		eventually.Value(k, "so much of the handshake", passed)
		if answer == "all" {
			try.OK(k, eventually.Value(k, "a connection", dialled))
			k.Kill()
			k.isDown(s)
			return
		}
		k.Kill()
		if err := eventually.Value(k, "the end of Dial", dialled); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			k.Errorf("Dial of a process that was killed: %v", err)
		}
	}
}

func (k *killing) beforeItIsRead() { k.isRead(k.Kill, nil) }

func (k *killing) whileItIsRead() {
	k.isRead(k.stop, func() {
		eventually.True(k, "a read", func() bool { return ofi.LoadOf(k.e.port).Reads == 1 })
		k.Kill()
	})
}

// isRead calls before when the payload of the process is about to be read, and then during.
func (k *killing) isRead(before, during func()) {
	s := k.connect()
	asked, goOn := make(chan struct{}), make(chan struct{})
	k.e.progress.Lock()
	s.onRoom = func() { asked <- struct{}{}; <-goOn }
	k.e.progress.Unlock()
	k.does("send", killedLen)
	eventually.Value(k, "a payload", asked)
	before()
	if close(goOn); during != nil {
		during()
	}
	k.isDown(s)
	try.Equal(k, s.frames.Load(), 1, "frames")
}

func (k *killing) afterItWasRead() {
	s := k.connect()
	read, goOn := make(chan struct{}), make(chan struct{})
	k.e.progress.Lock()
	s.onFrames = func([]subsys.Frame) { read <- struct{}{}; <-goOn }
	k.e.progress.Unlock()
	k.does("send", killedLen)
	eventually.Value(k, "the payload", read)
	k.Kill()
	close(goOn)
	k.isDown(s)
}

// reads kills the process in a call of its sink.
func reads(call string) func(*killing) {
	return func(k *killing) {
		s := k.connect()
		k.does("stop", call)
		k.says("stops")
		sendTo(k, k.e, s.conn)
		k.says(call)
		k.Kill()
		k.isDown(s)
	}
}

func (k *killing) whileItReads() {
	s := k.connect()
	k.e.progress.Lock() // the provider serves nothing
	sendTo(k, k.e, s.conn)
	k.does("reading")
	k.says("reading")
	k.Kill()
	k.e.progress.Unlock()
	k.isDown(s)
}

const (
	opRead  = "read"
	opWrite = "write"
)

// begin begins a one-sided transfer.
func begin(c subsys.Conn, op string, mem, key []byte, done func(error)) error {
	if op == opRead {
		return c.(subsys.OneSided).ReadMemory(mem, key, 0, done)
	}
	return c.(subsys.OneSided).WriteMemory(mem, key, 0, done)
}

// accessed kills the process before, while or after its memory is accessed.
func accessed(when, op string) func(*killing) {
	return func(k *killing) {
		s := k.connect()
		k.does("expose")
		key := try.Get(hex.DecodeString(k.says("key")))(k)
		switch when {
		case "before":
			k.Kill()
		case "while":
			k.stop()
		}
		ended := make(chan error, 1)
		err := begin(s.conn, op, make([]byte, killedLen), key, func(err error) { ended <- err })
		if when == "while" {
			try.OK(k, err)
			eventually.True(k, "an operation", func() bool { return ofi.LoadOf(k.e.port).Remotes == 1 })
			k.Kill()
		}
		if err == nil {
			err = eventually.Value(k, "the end of the operation", ended)
		}
		if (err == nil) != (when == "after") {
			k.Errorf("%s of the memory of the process: %v", op, err)
		}
		k.Kill()
		k.isDown(s)
	}
}

// accesses kills the process while or after it accesses memory of this one.
func accesses(when, op string) func(*killing) {
	return func(k *killing) {
		s := k.connect()
		mem := make([]byte, killedLen)
		x := try.Get(k.e.port.(subsys.Exposer).Expose(mem, subsys.MayRead|subsys.MayWrite))(k)
		defer x.Close()
		if when == "while" { // the provider serves nothing
			k.e.progress.Lock()
		}
		k.does(op, hex.EncodeToString(x.Key()))
		k.says("begun")
		if when == "while" {
			k.Kill()
			k.e.progress.Unlock()
		} else {
			k.says("done")
			k.Kill()
		}
		k.isDown(s)
		x.Close()
		if when == "after" && op == opWrite && mem[0]+mem[killedLen-1] != 2 {
			k.Error("the bytes were not written")
		}
		now := bytes.Clone(mem)
		k.Cleanup(func() { // after an exchange with another process
			if !bytes.Equal(mem, now) {
				k.Error("memory was written after its exposure was closed")
			}
		})
	}
}

// act does what the lines of the standard input say, until the process is killed.
func act(provider string) {
	e := must(listen(provider, false))
	stop := make(chan string, 1)
	at := func(call string) {
		select {
		case s := <-stop:
			if s == call {
				fmt.Println(call)
				select {} // with the progress token, as long as the process lives
			}
			stop <- s
		default:
		}
	}
	set := func(c subsys.Conn, s *sink) {
		s.onRoom = func() { at("room") }
		s.onFrames = func([]subsys.Frame) { at("frames"); fmt.Println("frames") }
	}
	e.onAccept = set
	fmt.Println(e.port.Addr())
	var c subsys.Conn
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "dial":
			s := newSink()
			set(nil, s)
			c = must(e.port.Dial(context.Background(), words[1], s))
			c.Start()
			fmt.Println("dialled")
		case "send":
			var n int
			must(fmt.Sscan(words[1], &n))
			b := must(e.pool.Get(n))
			must(c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16, Len: uint32(n)}, Data: b.Bytes(), Buf: b}}))
			b.Release()
		case "stop":
			stop <- words[1]
			fmt.Println("stops")
		case "reading":
			eventually.Within(eventually.Timeout, func() bool { return ofi.LoadOf(e.port).Reads > 0 })
			fmt.Println("reading")
		case "expose":
			x := must(e.port.(subsys.Exposer).Expose(make([]byte, killedLen), subsys.MayRead|subsys.MayWrite))
			fmt.Println("key", hex.EncodeToString(x.Key()))
		case opRead, opWrite:
			key := must(hex.DecodeString(words[1]))
			mem := bytes.Repeat([]byte{1}, killedLen)
			must(0, begin(c, words[0], mem, key, func(err error) { must(0, err); fmt.Println("done") }))
			fmt.Println("begun")
		}
	}
}
