// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/tpvm"
)

// peerMain is the main function of a peer process.
func peerMain(ctx context.Context, arg string, in io.Reader, out io.Writer) error {
	var a answerer
	if err := json.Unmarshal([]byte(arg), &a.config); err != nil {
		return usage.Errorf("what a peer is: %w", err)
	}
	runtime.GOMAXPROCS(a.Procs)
	ctx, cancel := context.WithCancel(ctx)
	a.ctx, a.calls = ctx, ctx
	defer a.end()
	defer cancel()
	if a.Role == isTask {
		return attempt(a.obey)
	}
	todo := make(chan string)
	go func() { // notices the end of the input even in the middle of a task
		defer cancel()
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case todo <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	err := attempt(func() { a.serve(todo, out) })
	// A parent that gives up cuts the bare connections and closes its context before it ends the
	// peer's input, and has reported the reason itself.
	for _, cut := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET, rocl.ErrGone} {
		if ctx.Err() != nil || errors.Is(err, cut) {
			return nil
		}
	}
	return err
}

// An answerer is the side of a bench that answers.
type answerer struct {
	config
	cleanup
	means
	ctx    context.Context
	calls  context.Context // of messages: ctx, or one that does not end
	c      *rocl.Context
	me     *rocl.Resource
	server *directory.Server // the directory without a context
	task   *tpvm.Task
	tl, ul net.Listener
	idle   []*rocl.Context
	memory []byte // of a stream, or that the parent reads
	ep     *bulk.Endpoint

	unwatch func() // ends watch
}

func (a *answerer) serve(todo <-chan string, out io.Writer) {
	a.open()
	fmt.Fprintln(out, "ok")
	for {
		select {
		case line := <-todo:
			words := strings.Fields(line)
			var n []int
			for _, w := range words[1:] {
				n = append(n, must(strconv.Atoi(w)))
			}
			fmt.Fprintln(out, "ok", a.do(words[0], n))
		case <-a.ctx.Done():
			return
		}
	}
}

func (a *answerer) open() {
	if a.Role == isDirectory {
		a.server = must(directory.Listen(a.sock()))
		a.add(func() { a.server.Close() })
		return
	}
	a.c = a.config.open(a.ctx)
	a.add(func() { a.c.Close() })
	switch a.Role {
	case isPeer:
		a.me = must(a.c.Register(a.ctx, rocl.Attrs{"bench": "peer"}))
	case isNode:
		must(a.c.Register(a.ctx, rocl.Attrs{"node": strconv.Itoa(a.Number)}))
	}
}

// untilLast takes the place of a number of messages to echo. It means: until shared.last is set.
const untilLast = 0

// do does a task. The first number is mostly that of messages.
func (a *answerer) do(task string, n []int) (answer string) {
	count, size, left := n[0], max(a.Size, 1), n[0]
	// An echo calls more once for each message, before it sends the message back. A later call
	// might see a change that the other side makes after that message.
	more := func() bool { left--; return left > 0 }
	if count == untilLast {
		more = func() bool { return a.mem.last.Load() == 0 }
	}
	switch task {
	case "listen":
		return a.listen()
	case "connect":
		nc := must(a.tl.Accept())
		a.use(a.ctx, &a.cleanup, nc, must(a.ul.Accept()), a.Size)
	case "udp":
		f, port := newUDP()
		f.connect(count, waiting(n[1]))
		a.hangUp(a.ctx, f)
		a.wires["echo-udp"] = newRaw(f, datagram, datagram, 0)
		return strconv.Itoa(port)
	case "recv-fixed", "recv-lengths":
		recvRaw(a.tcp, size, count, task == "recv-lengths")
	case "recv-ring":
		a.mem.recv(a.ctx, size, count)
	case "recv-stream":
		a.resize(n[4])
		a.accepted(func(nc net.Conn) {
			streamOf(n[1:]).run(nc, func(rw io.ReadWriter) { recvBulk(rw, a.memory, size, count) })
		})
	case "echo-stream":
		s := streamOf(n[1:])
		a.accepted(func(nc net.Conn) {
			s.run(nc, func(rw io.ReadWriter) { newRaw(rw, size, size, s.part).echo(more) })
		})
	case "memory":
		a.resize(count)
		return fmt.Sprint(uintptr(unsafe.Pointer(&a.memory[0])))
	case "serve-rpc":
		a.accepted(serveNetRPC)
	case "idle":
		a.openIdle(count)
	case "echo":
		a.echo(more)
	case "echo-goroutine":
		a.echoInGoroutines(count)
	case "echo-receivers":
		a.echoWithReceivers(count)
	case "reply":
		a.reply(count)
	case "recv-recv", "recv-messages":
		a.recv(count, n[1], task == "recv-messages")
	case "recv-read":
		a.recvRead(count, sum)
	case "recv-scan":
		a.recvRead(count, scan)
	case "calls-inline", "calls-goroutine", "calls-bulk":
		a.serveCalls(count, task)
	case "watch":
		a.watch()
	case "unwatch":
		a.unwatch()
	case "flow":
		return a.flow(n)
	case "work":
		a.work()
	case "hold", "hold-unique":
		a.hold(task)
	case "fill":
		return a.fill(count)
	case "expose":
		return a.expose(count, n[1], n[2] == 1)
	case "tpvm":
		a.task = enrolled(a.ctx, &a.cleanup, a.c)
		return a.task.ID().String()
	case "tpvm-echo":
		tpvmReply(a.calls, a.task.Thread, tpvm.AnyTask, count)
	case "fabric-open", "fabric-connect", "fabric-recv":
		return a.fabric(task, n)
	case "tpvm-sink":
		a.tpvmSink(count)
	default:
		a.wires[task].echo(more)
	}
	return ""
}

// listen makes what the bare loops use, and returns the addresses of the sockets.
func (a *answerer) listen() (addrs string) {
	a.mem = openShared(a.Dir)
	a.add(a.mem.close)
	a.tl = must(net.Listen("tcp", "127.0.0.1:0"))
	a.hangUp(a.ctx, a.tl)
	a.ul = must(net.Listen("unix", filepath.Join(a.Dir, "raw.sock")))
	a.hangUp(a.ctx, a.ul)
	return fmt.Sprint(a.tl.Addr(), " ", a.ul.Addr())
}

// resize makes the memory have n bytes.
func (a *answerer) resize(n int) {
	if len(a.memory) != n {
		a.memory = fillCounting(make([]byte, n))
	}
}

// accepted runs f with a separate connection of the parent.
func (a *answerer) accepted(f func(net.Conn)) {
	if a.chans != nil {
		using(a.ctx, <-a.chans.conns, f)
		return
	}
	using(a.ctx, must(a.tl.Accept()), f)
}

// openIdle opens contexts, each with a link to the parent over which it has sent one message, until
// there are n. It closes all of them if n is 0.
func (a *answerer) openIdle(n int) {
	if n == 0 {
		for _, c := range a.idle {
			c.Close()
		}
		a.idle = nil
		return
	}
	parent := must(a.c.Find(a.ctx, rocl.Match{"bench": "parent"}))
	for len(a.idle) < n {
		c := must(rocl.Open(a.ctx, rocl.WithSocket(a.sock()), rocl.JoinOnly(), rocl.WithTransports(transportOf(a.Transport))))
		a.add(func() { c.Close() })
		a.idle = append(a.idle, c)
		check(must(c.Register(a.ctx, rocl.Attrs{"bench": "idle"})).SendBytes(a.ctx, parent.ID, 0, []byte{1}))
	}
}

// echo sends each message back.
func (a *answerer) echo(more func() bool) {
	for again := true; again; {
		m := must(a.me.Recv(a.calls))
		again = more()
		a.echoOne(m)
	}
}

// echoOne answers m in a new buffer, as a server would.
func (a *answerer) echoOne(m *rocl.Message) {
	b := must(a.c.Buffer(m.Len()))
	to, tag := m.From(), m.Tag()
	m.Release()
	check(a.me.Send(a.calls, to, tag, b))
}

// echoInGoroutines is echo with a new goroutine for each of n messages.
func (a *answerer) echoInGoroutines(n int) {
	var busy sync.WaitGroup
	var failed atomic.Pointer[error]
	for range n {
		m := must(a.me.Recv(a.calls))
		busy.Go(func() {
			if err := attempt(func() { a.echoOne(m) }); err != nil {
				failed.Store(&err)
			}
		})
	}
	busy.Wait()
	if err := failed.Load(); err != nil {
		check(*err)
	}
}

// receivers is how many goroutines of a server receive at one resource.
const receivers = 4

// echoWithReceivers is echo with several goroutines that receive and answer.
func (a *answerer) echoWithReceivers(n int) {
	ctx, cancel := context.WithCancel(a.calls)
	defer cancel()
	var answered atomic.Int64
	concurrently(receivers, func(int) {
		for {
			m, err := a.me.Recv(ctx)
			if answered.Load() == int64(n) {
				return
			}
			check(err)
			if answered.Add(1) == int64(n) { // before the answer, because afterwards the next task could have begun
				cancel()
			}
			a.echoOne(m)
		}
	})
}

// reply replies to n requests in a loop, with a new buffer for each.
func (a *answerer) reply(n int) {
	for range n {
		m := must(a.me.Recv(a.calls))
		check(a.me.Reply(a.calls, m, must(a.c.Buffer(m.Len()))))
		m.Release()
	}
}

// recv receives n messages of some senders, in a loop over Messages or by Recv, checks the order of
// those of each sender, and answers once.
func (a *answerer) recv(n, senders int, iterates bool) {
	var last rocl.GID
	next := make([]uint64, senders) // by the sender's number in the upper bits of the tag; a map would cost as much as the message
	left := n
	take := func(m *rocl.Message) (more bool) {
		sender, k := m.Tag()>>40, m.Tag()&(1<<40-1)
		if next[sender] != k {
			check(fmt.Errorf("message %d of sender %d came in place of %d", k, sender, next[sender]))
		}
		next[sender]++
		last = m.From()
		m.Release()
		left--
		return left > 0
	}
	if iterates {
		for m, err := range a.me.Messages(a.calls) {
			check(err)
			if !take(m) {
				break
			}
		}
	} else {
		for take(must(a.me.Recv(a.calls))) {
		}
	}
	check(a.me.SendBytes(a.calls, last, 0, []byte{1}))
}

// recvRead receives n messages, reads every byte of them, and answers once.
func (a *answerer) recvRead(n int, read func([]byte) uint64) {
	var last rocl.GID
	var all uint64
	for range n {
		m := must(a.me.Recv(a.calls))
		all += read(m.Bytes())
		last = m.From()
		m.Release()
	}
	check(a.me.SendBytes(a.calls, last, all, []byte{1}))
}

// scan reads every byte of b, if none is 1.
func scan(b []byte) uint64 { return uint64(bytes.IndexByte(b, 1)) }
