// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/subprocess"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/tpvm"
	"golang.org/x/sys/unix"
)

// A bench has two sides: the parent measures, the peer answers. The peer does the tasks that the
// parent begins, so that neither side's loop runs while that of the other is measured. The peer is
// another process, which ends with its input, whatever it is doing, so it does not outlive its
// parent. Over the transport inproc it is a goroutine of this process.

// A role is what a process of a bench is.
type role string

const (
	isPeer      role = "peer"      // answers; its context serves the directory
	isParent    role = "parent"    // measures
	isDirectory role = "directory" // serves the directory, without a context
	isFinder    role = "finder"    // measures finds in a directory
	isNode      role = "node"      // one node of a cluster
	isOrigin    role = "origin"    // has memory, which the parent pulls
	isTask      role = "task"      // a task of package tpvm, which answers to the one that has spawned it
)

// A config says what a process of a bench is. The parent passes it to the other processes.
type config struct {
	Role            role
	Dir             string // its directory's socket is here, and what the processes share
	Transport, Poll string
	Size            int    // of a message
	Number          int    // of a node
	Join, Key       string // of a node: the address of another, and the path of the key file
}

func (c *config) sock() string { return filepath.Join(c.Dir, "directory.sock") }

// spin is how long members that poll do so.
const spin = 200 * time.Microsecond

// open opens the context of the process.
func (c *config) open(ctx context.Context) (*rocl.Context, error) {
	policy, err := policyOf(c.Poll)
	if err != nil {
		return nil, err
	}
	opts := []rocl.Option{rocl.WithSocket(c.sock())}
	// In a mailbox that does not hold several messages, the sender would ask for credit before each.
	mailbox := rocl.WithMailbox(max(16<<20, 16*c.Size))
	switch c.Role {
	case isPeer:
		opts = append(opts, rocl.WithPoll(policy), rocl.WithTransports(transportOf(c.Transport)), mailbox)
	case isParent: // the linger is for a dead peer: only what it has not got can be left
		opts = append(opts, rocl.WithPoll(policy), rocl.WithTransports(transportOf(c.Transport)), mailbox,
			rocl.JoinOnly(), icontext.WithoutIndex(), rocl.WithLinger(100*time.Millisecond))
	case isFinder:
		opts = append(opts, rocl.WithPoll(policy), rocl.JoinOnly())
	case isOrigin, isTask:
		opts = append(opts, rocl.WithPoll(policy), rocl.WithTransports(transportOf(c.Transport)), rocl.JoinOnly())
	case isNode:
		m := cluster.Member{Bind: "127.0.0.1:0", KeyFile: c.Key}
		if c.Join != "" {
			m.Join = []string{c.Join}
		}
		if c.Poll == "always" {
			m.Poll = spin
		}
		opts = append(opts, rocl.WithCluster("bench"), rocl.WithMember(m))
	}
	return rocl.Open(ctx, opts...)
}

// transportOf returns the transport between the two sides.
func transportOf(name string) subsys.Transport {
	switch name {
	case "shm":
		return shm.New()
	case "inproc":
		return inproc.New()
	}
	return tcp.New()
}

// means are what the bare loops of one side use.
type means struct {
	tcp    *net.TCPConn
	wires  map[string]io.ReadWriter // by the peer's task
	mem    *shared
	events *events
	chans  *channels // within a process
}

// use makes the bare loops use two connections, until ctx ends.
func (m *means) use(ctx context.Context, done *cleanup, nc, uc net.Conn) error {
	m.tcp = nc.(*net.TCPConn)
	done.hangUp(ctx, nc)
	done.hangUp(ctx, uc)
	n, err := dup(m.tcp)
	if err != nil {
		return err
	}
	done.add(func() { _ = unix.Close(n) })
	m.wires = map[string]io.ReadWriter{"echo-blocking": nc, "echo-polled": fd{n, polls}, "echo-sleeping": fd{n, sleeps}, "echo-unix": uc}
	return nil
}

// cleanup has what is to be done at the end.
type cleanup []func()

func (c *cleanup) add(f func()) { *c = append(*c, f) }

// hangUp ends what waits for the connection when ctx ends, and closes the connection at the end.
// ctx must have ended by then.
func (c *cleanup) hangUp(ctx context.Context, nc io.Closer) {
	hung := make(chan struct{})
	context.AfterFunc(ctx, func() { hangUp(nc); close(hung) })
	c.add(func() { <-hung; nc.Close() })
}

// end does what was added last first.
func (c *cleanup) end() {
	for _, f := range slices.Backward(*c) {
		f()
	}
	*c = nil
}

// A peer is a process that does tasks, or the other side within this process.
type peer struct {
	*subprocess.Process // nil within this process
	here                *answerer
	done                chan error // of the task within this process
	answer              string     // of that task
	busy                sync.WaitGroup
}

// pair is the parent's part of a bench with a peer.
type pair struct {
	config
	cleanup
	means
	o *options
	*peer

	ctx  context.Context // ends with the caller's context, or with a peer
	stop context.CancelCauseFunc
	free context.Context // does not end: when ctx ends, c is closed
	msg  context.Context // of single messages: ctx, or free where ctx would cost as much as the message
	c    *rocl.Context
	me   *rocl.Resource
	to   rocl.GID // the resource of the peer
	addr string   // where the peer accepts separate connections
	buf  []byte

	senders  []*rocl.Resource // me, and further ones
	origins  []*origin
	best     *stream
	crew     crew
	computed []float64 // share of their speed that computing goroutines had, by round
	ep       *bulk.Endpoint
	task     *tpvm.Task // this process, and the peer's
	child    tpvm.TID
	reads    bool          // whether process_vm_readv is allowed
	summed   atomic.Uint64 // makes the compiler keep reads of memory
}

// The sizes of a find's request and reply, which the bare loop moves too.
const (
	findRequest = 16 + 6 + 6 + len("bench") + len("peer")
	findReply   = 16 + 40 + 6 + 6 + len("bench") + len("peer")
)

// openPair starts a peer of a role, and connects the two sides.
func openPair(ctx context.Context, o *options, with role) (*pair, error) {
	p := &pair{o: o, config: config{Role: with, Transport: o.transport, Poll: o.poll, Size: o.size}}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	p.free = context.WithoutCancel(ctx)
	if p.msg = p.ctx; o.transport == "inproc" {
		p.msg = p.free
	}
	if err := p.open(); err != nil {
		err = p.why(err)
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pair) open() (err error) {
	if p.Dir, err = os.MkdirTemp("", "rocl-bench-"); err != nil {
		return err
	}
	p.add(func() { os.RemoveAll(p.Dir) })
	own := p.config
	switch p.Role {
	case isNode:
		err = p.openNodes()
	case isDirectory:
		own.Role = isFinder
		p.peer, err = p.start(p.config)
	default:
		own.Role = isParent
		p.peer, err = p.start(p.config)
	}
	if err == nil {
		err = p.connect()
	}
	if err == nil && p.c == nil {
		err = p.join(own)
	}
	if err != nil || p.Role != isPeer {
		return err
	}
	if p.me, err = p.c.Register(p.ctx, rocl.Attrs{"bench": "parent"}); err != nil {
		return err
	}
	p.senders = append(p.senders, p.me)
	f, err := p.c.Find(p.ctx, rocl.Match{"bench": "peer"})
	p.to = f.ID
	return err
}

// join opens the context of this process.
func (p *pair) join(own config) (err error) {
	if p.c, err = own.open(p.ctx); err == nil {
		context.AfterFunc(p.ctx, func() { p.c.Close() })
		p.add(func() { p.c.Close() })
	}
	return err
}

// start starts a peer.
func (p *pair) start(c config) (q *peer, err error) {
	if c.Transport == "inproc" {
		p.chans = newChannels()
		q = &peer{here: &answerer{config: c, means: means{chans: p.chans}, ctx: p.ctx, calls: p.free}}
		p.add(q.here.end)
		if err := q.here.open(); err != nil {
			return nil, err
		}
		context.AfterFunc(p.ctx, func() { q.here.c.Close() })
		p.add(func() {
			close(p.chans.there)
			q.busy.Wait()
		})
		return q, nil
	}
	arg, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := subprocess.Self("bench-peer", string(arg))
	for range 2 {
		n, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return nil, os.NewSyscallError("eventfd", err)
		}
		f := os.NewFile(uintptr(n), "eventfd")
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	q = &peer{}
	if q.Process, err = subprocess.Start(cmd); err != nil {
		return nil, err
	}
	p.add(func() { _ = q.Stop() })
	if p.events == nil {
		if p.events, err = openEvents(int(cmd.ExtraFiles[0].Fd()), int(cmd.ExtraFiles[1].Fd())); err != nil {
			return nil, err
		}
		p.add(p.events.close)
		context.AfterFunc(p.ctx, p.events.close)
	}
	go func() { p.stop(fmt.Errorf("the peer: %w", q.End())) }()
	_, err = p.waitFor(q)
	return q, err
}

// connect makes what the bare loops use.
func (p *pair) connect() (err error) {
	if p.addr, err = p.ask(p.peer, "listen", 0); err != nil {
		return err
	}
	addr, path, _ := strings.Cut(p.addr, " ")
	p.addr, p.buf = addr, make([]byte, max(p.Size, findReply, bareDatagram, 1))
	if p.mem, err = openShared(filepath.Dir(path)); err != nil {
		return err
	}
	p.add(p.mem.close)
	if err := p.begin("connect", 0); err != nil {
		return err
	}
	var d net.Dialer
	nc, err := d.DialContext(p.ctx, "tcp", addr)
	if err != nil {
		return err
	}
	uc, err := d.DialContext(p.ctx, "unix", path)
	if err != nil {
		nc.Close()
		return err
	}
	if err := p.use(p.ctx, &p.cleanup, nc, uc); err != nil {
		return err
	}
	return p.wait()
}

// begin starts a task of the peer. wait waits until the task is done.
func (p *pair) begin(task string, n ...int) error { return p.beginWith(p.peer, task, n) }

func (p *pair) wait() error {
	_, err := p.waitFor(p.peer)
	return err
}

// ask makes a peer do a task, and returns its answer.
func (p *pair) ask(q *peer, task string, n ...int) (string, error) {
	if err := p.beginWith(q, task, n); err != nil {
		return "", err
	}
	return p.waitFor(q)
}

func (p *pair) beginWith(q *peer, task string, n []int) error {
	if q.here == nil {
		return q.WriteLine(task, strings.Trim(fmt.Sprint(n), "[]"))
	}
	q.done = make(chan error, 1)
	q.busy.Go(func() {
		var err error
		if q.answer, err = q.here.do(task, n); err != nil {
			p.stop(err) // ends what waits for an answer
		}
		q.done <- err
	})
	return nil
}

func (p *pair) waitFor(q *peer) (string, error) {
	if q.here != nil {
		return q.answer, <-q.done
	}
	s, err := q.Line(p.ctx)
	answer, ok := strings.CutPrefix(s, "ok")
	if err == nil && !ok {
		err = fmt.Errorf("the peer says %q", s)
	}
	return strings.TrimSpace(answer), err
}

// why returns the reason for an error. The end of the peer or an interruption first shows as a
// connection that ends.
func (p *pair) why(err error) error {
	if p.peer != nil && p.here == nil {
		select {
		case <-p.ctx.Done():
		case <-time.After(time.Second): // the peer lives: err is the reason
		}
	}
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return err
}

func (p *pair) close() {
	p.stop(context.Canceled)
	p.end()
}

// dial makes a separate connection to the peer, which its next task accepts. done closes it.
func (p *pair) dial() (nc net.Conn, done func(), err error) {
	if p.here != nil {
		var other net.Conn
		nc, other = net.Pipe()
		p.chans.conns <- other
	} else if nc, err = new(net.Dialer).DialContext(p.ctx, "tcp", p.addr); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(p.ctx, func() { hangUp(nc) })
	return nc, func() { stop(); nc.Close() }, nil
}

// with returns a loop meanwhile the peer does a task with as many messages.
func (p *pair) with(task string, l loop, args ...int) loop {
	return func(n int, t *times) error {
		if err := p.begin(task, append([]int{n}, args...)...); err != nil {
			return err
		}
		if err := l(n, t); err != nil {
			return err
		}
		return p.wait()
	}
}

// trips returns a loop of round trips f, which the peer answers by a task.
func (p *pair) trips(task string, f func() error) loop {
	return p.with(task, func(n int, t *times) error {
		switch {
		case p.o.pause > 0: // of both sides before each message; neither counts
			return t.timed(n, 1, func() (time.Duration, error) {
				time.Sleep(p.o.pause)
				start := time.Now()
				err := f()
				return time.Since(start) - time.Duration(p.mem.paused.Load()), err
			})
		case p.here != nil:
			return t.batch(p.ctx, n, f)
		}
		return t.round(n, f)
	}, int(p.o.pause))
}

// bare returns the bare round trip that the peer answers by a task.
func (p *pair) bare(task string) func() error {
	switch task {
	case "echo-words":
		return func() error { return p.mem.ping(p.ctx, false) }
	case "echo-futex":
		return func() error { return p.mem.ping(p.ctx, true) }
	case "echo-events":
		return p.events.ping
	case "echo-channel":
		return p.chans.ping
	}
	wire := p.wires[task]
	request, reply := sizesOf(task, p.Size)
	out, in := p.buf[:request], p.buf[:reply]
	return func() error {
		if _, err := wire.Write(out); err != nil {
			return err
		}
		_, err := io.ReadFull(wire, in)
		return err
	}
}

// bareDatagram is about the size of a question and of its answer between nodes.
const bareDatagram = 128

// sizesOf returns how many bytes go there and back in a bare loop.
func sizesOf(task string, size int) (request, reply int) {
	switch task {
	case "echo-unix":
		return findRequest, findReply
	case "echo-udp":
		return bareDatagram, bareDatagram
	}
	return max(size, 1), max(size, 1)
}

// trip sends a message of size bytes, and receives the answer.
func (p *pair) trip(size int) func() error {
	return func() error {
		b, err := p.c.Buffer(size)
		if err != nil {
			return err
		}
		if err := p.me.Send(p.msg, p.to, 0, b); err != nil {
			b.Release()
			return err
		}
		return p.recv(p.me)
	}
}

// recv receives a message.
func (p *pair) recv(r *rocl.Resource) error {
	m, err := r.Recv(p.msg)
	if err == nil {
		m.Release()
	}
	return err
}
