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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/tpvm"
)

// peerMain is the main function of a peer process.
func peerMain(ctx context.Context, arg string, in io.Reader, out io.Writer) error {
	var a answerer
	if err := json.Unmarshal([]byte(arg), &a.config); err != nil {
		return cli.Usagef("what a peer is: %w", err)
	}
	if a.Role == isTask {
		return tpvmTask(ctx, a.config)
	}
	ctx, cancel := context.WithCancel(ctx)
	a.ctx, a.calls = ctx, ctx
	defer a.end()
	defer cancel()
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
	err := a.serve(todo, out)
	// A parent that gives up cuts the bare connections before it ends the peer's input, and has
	// reported the reason itself.
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
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
	memory []byte // as long as a message
}

func (a *answerer) serve(todo <-chan string, out io.Writer) error {
	if err := a.open(); err != nil {
		return err
	}
	var err error
	if a.events, err = openEvents(3, 4); err != nil { // inherited
		return err
	}
	a.add(a.events.close)
	context.AfterFunc(a.ctx, a.events.close)
	fmt.Fprintln(out, "ok")
	for {
		var line string
		select {
		case line = <-todo:
		case <-a.ctx.Done():
			return nil
		}
		words := strings.Fields(line)
		n := make([]int, len(words)-1)
		for i := range n {
			if n[i], err = strconv.Atoi(words[i+1]); err != nil {
				return err
			}
		}
		answer, err := a.do(words[0], n)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "ok", answer)
	}
}

func (a *answerer) open() (err error) {
	if a.Role == isDirectory {
		if a.server, err = directory.Listen(a.sock()); err == nil {
			a.add(func() { a.server.Close() })
		}
		return err
	}
	if a.c, err = a.config.open(a.ctx); err != nil {
		return err
	}
	a.add(func() { a.c.Close() })
	switch a.Role {
	case isPeer:
		a.me, err = a.c.Register(a.ctx, rocl.Attrs{"bench": "peer"})
	case isNode:
		_, err = a.c.Register(a.ctx, rocl.Attrs{"node": strconv.Itoa(a.Number)})
	}
	return err
}

// untilLast takes the place of a number of messages to echo. It means: until shared.last is set.
const untilLast = 0

// counted returns a function that reports whether more of n messages will come. An echo calls it
// once for each message, before it sends the message back. A later call might see a change that the
// other side makes after that message.
func counted(n int) func() bool {
	return func() bool { n--; return n > 0 }
}

// do does a task. The first number is mostly that of messages.
func (a *answerer) do(task string, n []int) (answer string, err error) {
	count, size, more := n[0], max(a.Size, 1), counted(n[0])
	if count == untilLast {
		more = func() bool { return a.mem.last.Load() == 0 }
	}
	pause := func() { a.mem.pause(time.Duration(n[1])) }
	switch task {
	case "listen":
		return a.listen()
	case "connect":
		err = a.connect()
	case "udp":
		return a.udp(count, n[1] == 1)
	case "echo-polled", "echo-blocking", "echo-sleeping", "echo-unix", "echo-udp":
		request, reply := sizesOf(task, a.Size)
		err = echoRaw(a.wires[task], request, reply, more)
	case "echo-words", "echo-futex":
		err = a.mem.echo(a.ctx, more, task == "echo-futex")
	case "echo-events":
		err = a.events.echo(more, pause)
	case "echo-channel":
		err = a.chans.echo(more)
	case "recv-fixed", "recv-lengths":
		err = recvRaw(a.tcp, size, count, task == "recv-lengths")
	case "recv-ring":
		err = a.mem.recv(a.ctx, size, count)
	case intoBlock, intoMemory:
		err = a.recvStream(task, size, count, stream{isPolled: n[1] == 1, buffers: n[2]})
	case "serve-rpc":
		err = a.serveNetRPC()
	case "idle":
		err = a.openIdle(count)
	case "echo":
		if n[1] == 0 {
			pause = nil
		}
		err = a.echo(more, pause)
	case "echo-goroutine":
		err = a.echoInGoroutines(count)
	case "echo-receivers":
		err = a.echoWithReceivers(count)
	case "reply":
		err = a.reply(count)
	case "recv":
		err = a.recv(count, n[1])
	case "recv-read":
		err = a.recvRead(count, sum)
	case "recv-scan":
		err = a.recvRead(count, scan)
	case "calls-inline", "calls-goroutine":
		err = a.serveCalls(count, task == "calls-inline")
	case "fill":
		return a.fill(count)
	case "expose":
		return a.expose(count, n[1], n[2] == 1)
	case "tpvm":
		return a.enrol()
	case "tpvm-echo":
		err = tpvmReply(a.calls, a.task.Thread, tpvm.AnyTask, count)
	case "tpvm-sink":
		err = a.tpvmSink(count)
	default:
		err = fmt.Errorf("unknown task %q", task)
	}
	return "", err
}

// listen makes what the bare loops use, and returns the addresses of the sockets.
func (a *answerer) listen() (addrs string, err error) {
	if a.mem, err = openShared(a.Dir); err != nil {
		return "", err
	}
	a.add(a.mem.close)
	if a.tl, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	a.hangUp(a.ctx, a.tl)
	if a.ul, err = net.Listen("unix", filepath.Join(a.Dir, "raw.sock")); err != nil {
		return "", err
	}
	a.hangUp(a.ctx, a.ul)
	return fmt.Sprint(a.tl.Addr(), " ", a.ul.Addr()), nil
}

// connect accepts the connections of the bare loops.
func (a *answerer) connect() error {
	nc, err := a.tl.Accept()
	if err != nil {
		return err
	}
	uc, err := a.ul.Accept()
	if err != nil {
		nc.Close()
		return err
	}
	return a.use(a.ctx, &a.cleanup, nc, uc)
}

// udp makes a socket for datagrams from and to a port of the parent, and returns its own port.
func (a *answerer) udp(port int, poll bool) (own string, err error) {
	f, n, err := newUDP()
	if err != nil {
		return "", err
	}
	err = f.connect(port, poll)
	a.hangUp(a.ctx, f)
	a.wires["echo-udp"] = f
	return strconv.Itoa(n), err
}

// accept accepts a separate connection. done closes it.
func (a *answerer) accept() (nc net.Conn, done func(), err error) {
	if a.chans != nil {
		nc = <-a.chans.conns
	} else if nc, err = a.tl.Accept(); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(a.ctx, func() { hangUp(nc) })
	return nc, func() { stop(); nc.Close() }, nil
}

// What the receiver of a bare loop reads into.
const (
	intoBlock  = "recv-block"  // always the same block
	intoMemory = "recv-memory" // memory as long as a message
)

// recvStream receives messages over a separate connection.
func (a *answerer) recvStream(task string, size, count int, s stream) error {
	memory := a.memory
	if task == intoBlock {
		memory = make([]byte, min(bulkBlock, size))
	} else if memory == nil {
		memory = make([]byte, size)
		a.memory = memory
	}
	nc, done, err := a.accept()
	if err != nil {
		return err
	}
	defer done()
	rw, close, err := s.prepare(nc)
	if err != nil {
		return err
	}
	defer close()
	return recvBulk(rw, memory, size, count)
}

// openIdle opens contexts, each with a link to the parent over which it has sent one message, until
// there are n. It closes all of them if n is 0.
func (a *answerer) openIdle(n int) error {
	if n == 0 {
		for _, c := range a.idle {
			c.Close()
		}
		a.idle = nil
		return nil
	}
	parent, err := a.c.Find(a.ctx, rocl.Match{"bench": "parent"})
	if err != nil {
		return err
	}
	for len(a.idle) < n {
		c, err := rocl.Open(a.ctx, rocl.WithSocket(a.sock()), rocl.JoinOnly(), rocl.WithTransports(transportOf(a.Transport)))
		if err != nil {
			return fmt.Errorf("context %d of %d: %w", len(a.idle), n, err)
		}
		a.idle = append(a.idle, c)
		a.add(func() { c.Close() })
		r, err := c.Register(a.ctx, rocl.Attrs{"bench": "idle"})
		if err != nil {
			return err
		}
		if err := r.SendBytes(a.ctx, parent.ID, 0, []byte{1}); err != nil {
			return err
		}
	}
	return nil
}

// echo sends each message back, in a new buffer as a server's answer would be. It calls first, if
// not nil, before each.
func (a *answerer) echo(more func() bool, first func()) error {
	for again := true; again; {
		m, err := a.me.Recv(a.calls)
		if err != nil {
			return err
		}
		again = more()
		if err := a.echoOne(m, first); err != nil {
			return err
		}
	}
	return nil
}

func (a *answerer) echoOne(m *rocl.Message, first func()) error {
	b, err := a.c.Buffer(m.Len())
	if err != nil {
		return err
	}
	to, tag := m.From(), m.Tag()
	m.Release()
	if first != nil {
		first()
	}
	if err := a.me.Send(a.calls, to, tag, b); err != nil {
		b.Release()
		return err
	}
	return nil
}

// echoInGoroutines is echo with a new goroutine for each of n messages.
func (a *answerer) echoInGoroutines(n int) error {
	failed := make(chan error, 1)
	var busy sync.WaitGroup
	for range n {
		m, err := a.me.Recv(a.calls)
		if err != nil {
			return err
		}
		busy.Go(func() {
			if err := a.echoOne(m, nil); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	busy.Wait()
	close(failed)
	return <-failed
}

// receivers is how many goroutines of a server receive at one resource.
const receivers = 4

// echoWithReceivers is echo with several goroutines that receive and answer.
func (a *answerer) echoWithReceivers(n int) error {
	ctx, cancel := context.WithCancel(a.calls)
	defer cancel()
	var answered atomic.Int64
	return concurrently(receivers, func(int) error {
		for {
			m, err := a.me.Recv(ctx)
			if answered.Load() == int64(n) {
				return nil
			}
			if err != nil {
				return err
			}
			if answered.Add(1) == int64(n) { // before the answer, because afterwards the next task could have begun
				cancel()
			}
			if err := a.echoOne(m, nil); err != nil {
				return err
			}
		}
	})
}

// reply replies to n requests in a loop, with a new buffer for each.
func (a *answerer) reply(n int) error {
	for range n {
		m, err := a.me.Recv(a.calls)
		if err != nil {
			return err
		}
		b, err := a.c.Buffer(m.Len())
		if err == nil {
			if err = a.me.Reply(a.calls, m, b); err != nil {
				b.Release()
			}
		}
		m.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// recv receives n messages of some senders, checks the order of those of each sender, and answers
// once.
func (a *answerer) recv(n, senders int) error {
	var last rocl.GID
	next := make([]uint64, senders) // by the sender's number in the upper bits of the tag; a map would cost as much as the message
	for range n {
		m, err := a.me.Recv(a.calls)
		if err != nil {
			return err
		}
		sender, k := m.Tag()>>40, m.Tag()&(1<<40-1)
		if sender >= uint64(len(next)) || next[sender] != k {
			return fmt.Errorf("message %d of sender %d has come out of order", k, sender)
		}
		next[sender]++
		last = m.From()
		m.Release()
	}
	return a.me.SendBytes(a.calls, last, 0, []byte{1})
}

// recvRead receives n messages, reads every byte of them, and answers once.
func (a *answerer) recvRead(n int, read func([]byte) uint64) error {
	var last rocl.GID
	var all uint64
	for range n {
		m, err := a.me.Recv(a.calls)
		if err != nil {
			return err
		}
		all += read(m.Bytes())
		last = m.From()
		m.Release()
	}
	return a.me.SendBytes(a.calls, last, all, []byte{1})
}

// scan reads every byte of b, if none is 1.
func scan(b []byte) uint64 { return uint64(bytes.IndexByte(b, 1)) }
