// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/internal/subprocess"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A bench has two processes: the parent measures, the peer answers. The peer does what the parent
// writes to the peer's standard input, so that neither side's loop runs while that of the other is
// measured. The peer ends with its input, whatever it is doing, so it does not outlive its parent.

// pair is the parent's part of a bench with a peer process.
type pair struct {
	dir    string
	other  *subprocess.Process // the peer
	c      *rocl.Context
	me     *rocl.Resource
	peer   rocl.GID // the resource of the peer
	raw    *net.TCPConn
	poll   *polled
	unix   *net.UnixConn
	words  *words
	ring   *ring
	bulk   string // the address for separate connections
	events *events
	ctx    context.Context // ends with the caller's context, or with the peer
	stop   context.CancelCauseFunc
	buf    []byte
}

// The sizes of a find's request and reply, which the bare loop moves too.
const (
	findRequest = 16 + 6 + 6 + len("bench") + len("peer")
	findReply   = 16 + 40 + 6 + 6 + len("bench") + len("peer")
)

// transportOf returns the transport between the two processes, or nil.
func transportOf(name string) subsys.Transport {
	switch name {
	case "tcp":
		return tcp.New()
	case "shm":
		return shm.New()
	}
	return nil
}

// mailbox returns an option for mailboxes that hold several messages. In a smaller one, the sender
// would ask for credit before each message.
func mailbox(size int) rocl.Option { return rocl.WithMailbox(max(16<<20, 16*size)) }

// between runs f with a pair of processes.
func between(ctx context.Context, o *options, f func(*pair) (*Result, error)) (*Result, error) {
	p, err := openPair(ctx, o)
	if err != nil {
		return nil, err
	}
	defer p.close()
	r, err := f(p)
	if err != nil {
		return nil, p.why(err)
	}
	return r, nil
}

// openPair starts the peer process, and finds its resource.
func openPair(ctx context.Context, o *options) (*pair, error) {
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	if transportOf(o.transport) == nil {
		return nil, cli.Usagef("between two processes tcp and shm can be measured, not %q", o.transport)
	}
	p := &pair{}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	if err := p.open(o, policy); err != nil {
		err = p.why(err)
		p.close()
		return nil, err
	}
	return p, nil
}

// why returns the reason for an error. The end of the peer or an interruption first shows as a
// connection that ends.
func (p *pair) why(err error) error {
	if p.other == nil { // no peer was started
		return err
	}
	if p.ctx.Err() == nil {
		select {
		case <-p.ctx.Done():
		case <-time.After(time.Second): // the peer lives: err is the reason
			return err
		}
	}
	return context.Cause(p.ctx)
}

func (p *pair) open(o *options, policy rocl.PollPolicy) (err error) {
	if p.dir, err = os.MkdirTemp("", "rocl-bench-"); err != nil {
		return err
	}
	sock := filepath.Join(p.dir, "directory.sock")
	if err := p.start(sock, o); err != nil {
		return err
	}
	hello, err := p.other.Line(p.ctx)
	if err != nil {
		return err
	}
	addrs := strings.Fields(hello) // tcp and unix
	if len(addrs) != 2 {
		return fmt.Errorf("the peer says %q", hello)
	}
	var d net.Dialer
	nc, err := d.DialContext(p.ctx, "tcp", addrs[0])
	if err != nil {
		return err
	}
	p.raw, p.bulk = nc.(*net.TCPConn), addrs[0]
	if p.poll, err = newPolled(p.raw); err != nil {
		return err
	}
	uc, err := d.DialContext(p.ctx, "unix", addrs[1])
	if err != nil {
		return err
	}
	p.unix = uc.(*net.UnixConn)
	context.AfterFunc(p.ctx, func() { hangUp(p.raw); hangUp(p.unix); p.events.close() })
	p.c, err = rocl.Open(p.ctx, rocl.WithSocket(sock), rocl.JoinOnly(), rocl.WithPoll(policy), rocl.WithTransports(transportOf(o.transport)), mailbox(o.size),
		icontext.WithoutIndex(), rocl.WithLinger(100*time.Millisecond)) // only what a dead peer has not got can be left
	if err != nil {
		return err
	}
	if p.words, err = openWords(p.dir); err != nil {
		return err
	}
	if p.ring, err = openRing(p.dir); err != nil {
		return err
	}
	if p.me, err = p.c.Register(p.ctx, rocl.Attrs{"bench": "parent"}); err != nil {
		return err
	}
	f, err := p.c.Find(p.ctx, rocl.Match{"bench": "peer"})
	if err != nil {
		return err
	}
	p.peer = f.ID
	p.buf = make([]byte, max(o.size, findReply, 1))
	return nil
}

// start starts the peer. p.ctx ends when the peer ends.
func (p *pair) start(sock string, o *options) (err error) {
	cmd := subprocess.Self("bench-peer", sock, o.poll, strconv.Itoa(o.size), o.transport)
	if p.events, err = newEvents(cmd); err != nil {
		return err
	}
	p.other, err = subprocess.Start(cmd)
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	if err != nil {
		return err
	}
	go func() { p.stop(fmt.Errorf("the peer: %w", p.other.End())) }()
	return nil
}

// begin starts a task of the peer. wait waits until the task is done.
func (p *pair) begin(what string, n ...int) error {
	return p.other.WriteLine(what, strings.Trim(fmt.Sprint(n), "[]"))
}

func (p *pair) wait() error { return p.other.Expect(p.ctx, "ok") }

func (p *pair) close() {
	p.stop(context.Canceled)
	if p.other != nil {
		_ = p.other.Stop()
	}
	if p.c != nil {
		p.c.Close()
	}
	if p.poll != nil {
		p.poll.Close()
	}
	if p.raw != nil {
		p.raw.Close()
	}
	if p.unix != nil {
		p.unix.Close()
	}
	if p.events != nil {
		p.events.close()
	}
	if p.words != nil {
		p.words.close()
	}
	if p.ring != nil {
		p.ring.close()
	}
	if p.dir != "" {
		os.RemoveAll(p.dir)
	}
}

// hangUp ends reads and writes of a socket, including those of its duplicates, which closing it
// would not end.
func hangUp(c interface {
	CloseRead() error
	CloseWrite() error
}) {
	_ = c.CloseRead()
	_ = c.CloseWrite()
}

// peerMain is the main function of the peer process.
func peerMain(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	sock, size := args[0], 0
	policy, err := (&options{poll: args[1]}).policy()
	if err != nil {
		return err
	}
	if size, err = strconv.Atoi(args[2]); err != nil {
		return err
	}
	tr := transportOf(args[3])
	if tr == nil {
		return cli.Usagef("%q joins no two processes", args[3])
	}
	ctx, cancel := context.WithCancel(ctx)
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
	err = answer(ctx, todo, out, sock, policy, size, tr)
	// A parent that gives up cuts the bare connections before it ends the peer's input, and has
	// reported the reason itself.
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// answer does the tasks that arrive through todo until ctx ends.
func answer(ctx context.Context, todo <-chan string, out io.Writer, sock string, policy rocl.PollPolicy, size int, tr subsys.Transport) error {
	c, err := rocl.Open(ctx, rocl.WithSocket(sock), rocl.WithPoll(policy), rocl.WithTransports(tr), mailbox(size))
	if err != nil {
		return err
	}
	defer c.Close()
	me, err := c.Register(ctx, rocl.Attrs{"bench": "peer"})
	if err != nil {
		return err
	}
	words, err := openWords(filepath.Dir(sock))
	if err != nil {
		return err
	}
	defer words.close()
	ring, err := openRing(filepath.Dir(sock))
	if err != nil {
		return err
	}
	defer ring.close()
	var idle idlers
	defer idle.close()
	events, err := inherited()
	if err != nil {
		return err
	}
	defer events.close()
	context.AfterFunc(ctx, events.close)
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer tl.Close()
	ul, err := net.Listen("unix", filepath.Join(filepath.Dir(sock), "raw.sock"))
	if err != nil {
		return err
	}
	defer ul.Close()
	context.AfterFunc(ctx, func() { tl.Close(); ul.Close() })
	fmt.Fprintln(out, tl.Addr(), ul.Addr())
	nc, err := tl.Accept()
	if err != nil {
		return err
	}
	defer nc.Close()
	poll, err := newPolled(nc.(*net.TCPConn))
	if err != nil {
		return err
	}
	defer poll.Close()
	uc, err := ul.Accept()
	if err != nil {
		return err
	}
	var busy sync.WaitGroup
	defer busy.Wait()
	busy.Go(func() { _ = answerRaw(uc, findRequest, findReply) })
	defer uc.Close()
	context.AfterFunc(ctx, func() { hangUp(nc.(*net.TCPConn)); hangUp(uc.(*net.UnixConn)) })
	var memory []byte // of intoMemory
	for {
		var task string
		select {
		case task = <-todo:
		case <-ctx.Done():
			return nil
		}
		var what string
		n := []int{0, 1, 0} // numbers of messages and of senders
		if k, err := fmt.Sscan(task, &what, &n[0], &n[1], &n[2]); k < 2 {
			return err
		}
		more := counted(n[0])
		if n[0] == untilLast {
			more = func() bool { return words.last.Load() == 0 }
		}
		switch what {
		case "echo-polled":
			err = echoRaw(poll, size, more)
		case "echo-words", "echo-futex":
			err = words.echo(ctx, more, what == "echo-futex")
		case "echo-events":
			err = words.echoEvents(events, n[0], time.Duration(n[1]))
		case "echo-blocking":
			err = echoRaw(nc, size, more)
		case "recv-fixed":
			err = recvRaw(nc, max(size, 1), n[0], false)
		case "recv-lengths":
			err = recvRaw(nc, max(size, 1), n[0], true)
		case "echo-sleeping":
			err = echoRaw(sleeping{poll}, size, more)
		case "recv-ring":
			err = ring.recv(ctx, max(size, 1), n[0])
		case intoBlock:
			err = answerBulk(ctx, tl, stream{isPolled: n[1] == 1, buffers: n[2]}, make([]byte, min(bulkBlock, max(size, 1))), max(size, 1), n[0])
		case intoMemory:
			if memory == nil {
				memory = make([]byte, max(size, 1))
			}
			err = answerBulk(ctx, tl, stream{isPolled: n[1] == 1, buffers: n[2]}, memory, max(size, 1), n[0])
		case "idle":
			if n[0] == 0 {
				idle.close()
				break
			}
			var parent rocl.Found
			if parent, err = c.Find(ctx, rocl.Match{"bench": "parent"}); err == nil {
				err = idle.open(ctx, n[0], sock, tr, parent.ID)
			}
		case "echo":
			err = echo(ctx, c, me, more, nil)
		case "reply":
			err = reply(ctx, c, me, n[0])
		case "serve-rpc":
			err = acceptRPC(ctx, tl)
		case "calls-inline", "calls-goroutine":
			err = serveCalls(ctx, c, n[0], strings.TrimPrefix(what, "calls-"))
		case "echo-goroutine", "echo-receivers":
			err = echoConcurrently(ctx, c, me, n[0], strings.TrimPrefix(what, "echo-"))
		case "echo-late":
			err = echo(ctx, c, me, more, func() { words.pause(time.Duration(n[1])) })
		case "recv":
			err = recv(ctx, me, n[0], n[1])
		case "recv-read":
			err = recvRead(ctx, me, n[0])
		default:
			err = fmt.Errorf("unknown task %q", what)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "ok")
	}
}

// untilLast takes the place of a number of messages to echo. It means: until words.last is set.
const untilLast = 0

// counted returns a function that reports whether more of n messages will come. echo calls it once
// for each message, before it sends the message back. A later call might see a change that the
// other side makes after that message.
func counted(n int) func() bool {
	return func() bool { n--; return n > 0 }
}

// echo sends each message back, in a new buffer as a server's answer would be. It calls first, if
// not nil, before each.
func echo(ctx context.Context, c *rocl.Context, me *rocl.Resource, more func() bool, first func()) error {
	for again := true; again; {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		again = more()
		b, err := c.Buffer(m.Len())
		if err != nil {
			return err
		}
		to, tag := m.From(), m.Tag()
		m.Release()
		if first != nil {
			first()
		}
		if err := me.Send(ctx, to, tag, b); err != nil {
			b.Release()
			return err
		}
	}
	return nil
}

// recv receives n messages of some senders, checks the order of those of each sender, and answers
// once.
func recv(ctx context.Context, me *rocl.Resource, n, senders int) error {
	var last rocl.GID
	next := make([]uint64, senders) // by the sender's number in the upper bits of the tag; a map would cost as much as the message
	for range n {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		sender, k := m.Tag()>>40, m.Tag()&(1<<40-1)
		if sender >= uint64(len(next)) {
			next = append(next, make([]uint64, sender+1-uint64(len(next)))...)
		}
		if next[sender] != k {
			return fmt.Errorf("message %d of sender %d came in place of %d", k, sender, next[sender])
		}
		next[sender]++
		last = m.From()
		m.Release()
	}
	return me.SendBytes(ctx, last, 0, []byte{1})
}

// recvRead receives n messages, reads every byte of them, and answers once.
func recvRead(ctx context.Context, me *rocl.Resource, n int) error {
	var last rocl.GID
	var all uint64
	for range n {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		all += sum(m.Bytes())
		last = m.From()
		m.Release()
	}
	return me.SendBytes(ctx, last, all, []byte{1})
}

// answerBulk receives messages over a separate connection, into memory.
func answerBulk(ctx context.Context, l net.Listener, s stream, memory []byte, size, count int) error {
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	tc := nc.(*net.TCPConn)
	defer context.AfterFunc(ctx, func() { hangUp(tc) })()
	rw, err := s.prepare(tc)
	if err != nil {
		tc.Close()
		return err
	}
	defer rw.Close()
	return recvBulk(rw, memory, size, count)
}
