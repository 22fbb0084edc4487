// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
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
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/tpvm"
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
	isAlone     role = "alone"     // has no peer; its context serves the directory
	isWorker    role = "worker"    // works for queues, as the peer does
	isWatcher   role = "watcher"   // takes views, as rocl top does
	isTask      role = "task"      // a task of package tpvm, which answers to the one that has spawned it
)

// A config says what a process of a bench is. The parent passes it to the other processes.
type config struct {
	Role            role
	Dir             string // its directory's socket is here, and what the processes share
	Transport, Poll string
	Size            int    // of a message
	Procs           int    // GOMAXPROCS; 0: as many as there are processors
	Number          int    // of a node
	Mailbox         int    // bytes of a mailbox; 0: many
	Join, Key       string // of a node: the address of another, and the path of the key file
}

// args returns the arguments of the process.
func (c config) args() []string { return []string{"bench-peer", string(must(json.Marshal(c)))} }

func (c config) sock() string { return filepath.Join(c.Dir, "directory.sock") }

// spin is how long members that poll do so.
const spin = 200 * time.Microsecond

// open opens the context of the process.
func (c config) open(ctx context.Context) *rocl.Context {
	opts := []rocl.Option{rocl.WithSocket(c.sock())}
	if c.Role == isNode {
		m := cluster.Member{Bind: "127.0.0.1:0", KeyFile: c.Key, Join: strings.Fields(c.Join)}
		if c.Poll == "always" {
			m.Poll = spin
		}
		return must(rocl.Open(ctx, append(opts, rocl.WithCluster("bench"), rocl.WithMember(m))...))
	}
	opts = append(opts, rocl.WithPoll(must(policyOf(c.Poll))))
	if c.Role != isFinder { // in a mailbox that does not hold several messages, the sender would ask for credit before each
		opts = append(opts, rocl.WithTransports(transportOf(c.Transport)), rocl.WithMailbox(cmp.Or(c.Mailbox, max(16<<20, 16*c.Size))))
	}
	if c.Role != isPeer && c.Role != isAlone {
		opts = append(opts, rocl.JoinOnly())
	}
	if c.Role == isParent || c.Role == isTask { // only what a dead process has not got can be left
		opts = append(opts, icontext.WithoutIndex(), rocl.WithLinger(100*time.Millisecond))
	}
	return must(rocl.Open(ctx, opts...))
}

// transportOf returns the transport between the two sides.
func transportOf(name string) subsys.Transport {
	switch name {
	case "shm":
		return shm.New()
	case "inproc":
		return inproc.New()
	}
	if t := fabricTransport(name); t != nil {
		return t
	}
	return tcp.New()
}

// means are what the bare loops of one side use.
type means struct {
	tcp   net.Conn
	wires map[string]wire // by the peer's task
	mem   *shared
	chans *channels // within a process
}

// use makes the bare loops use two connections, until ctx ends, and messages of size bytes.
func (m *means) use(ctx context.Context, done *cleanup, nc, uc net.Conn, size int) {
	done.hangUp(ctx, nc)
	done.hangUp(ctx, uc)
	n := dup(nc.(*net.TCPConn))
	done.add(func() { _ = fd{n: n}.Close() })
	m.tcp, size = nc, max(size, 1)
	m.wires = map[string]wire{
		"echo-blocking": newRaw(nc, size, size, 0),
		"echo-polled":   newRaw(fd{n, polls}, size, size, 0),
		"echo-sleeping": newRaw(fd{n, sleeps}, size, size, 0),
		"echo-unix":     newRaw(uc, 16+6+6+len("bench")+len("peer"), 16+40+6+6+len("bench")+len("peer"), 0), // as many as of a find
		"echo-words":    &words{m.mem, ctx, false},
		"echo-futex":    &words{m.mem, ctx, true},
		"echo-channel":  m.chans,
	}
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

	senders []*rocl.Resource // me, and further ones
	best    *stream          // the fastest bare loop of large messages
	ep      *bulk.Endpoint
	reads   bool          // whether process_vm_readv is allowed
	summed  atomic.Uint64 // makes the compiler keep reads of memory
	task    *tpvm.Task    // this process, and
	child   tpvm.TID      // the peer
	crewed  []*peer       // the workers of queues
}

// withPair runs f with a pair.
func withPair(ctx context.Context, o *options, with role, f func(*pair)) error {
	p := &pair{o: o, config: config{Role: cmp.Or(with, isPeer), Transport: o.transport, Poll: o.poll, Size: o.size, Procs: o.procs, Mailbox: o.mailbox}}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	p.free = context.Background() // WithoutCancel allocates at each look for a value
	if p.msg = p.ctx; o.transport == "inproc" {
		p.msg = p.free
	}
	defer p.end()
	defer p.stop(context.Canceled)
	err := attempt(func() { p.open(); f(p) })
	if err != nil && p.peer != nil && p.here == nil {
		// The end of the peer or an interruption first shows as a connection that ends.
		select {
		case <-p.ctx.Done():
		case <-time.After(10 * time.Second): // the peer lives: err is the reason
		}
	}
	if err != nil && p.ctx.Err() != nil {
		err = context.Cause(p.ctx)
	}
	return err
}

func (p *pair) open() {
	p.Dir = must(os.MkdirTemp("", "rocl-bench-"))
	p.add(func() { os.RemoveAll(p.Dir) })
	own := p.config
	switch own.Role {
	case isNode:
		p.openNodes()
	case isAlone:
		p.join(own)
		return
	case isDirectory:
		p.peer, own.Role = p.start(own), isFinder
	default:
		p.peer, own.Role = p.start(own), isParent
	}
	p.connect()
	if p.c == nil {
		p.join(own)
	}
	if p.Role == isPeer {
		p.me = must(p.c.Register(p.ctx, rocl.Attrs{"bench": "parent"}))
		p.senders = append(p.senders, p.me)
		p.to = must(p.c.Find(p.ctx, rocl.Match{"bench": "peer"})).ID
	}
}

// join opens the context of this process.
func (p *pair) join(own config) {
	p.c = own.open(p.ctx)
	context.AfterFunc(p.ctx, func() { p.c.Close() })
	p.add(func() { p.c.Close() })
}

// start starts a peer.
func (p *pair) start(c config) *peer {
	if c.Transport == "inproc" {
		p.chans = &channels{make(chan *[64]byte), make(chan *[64]byte), make(chan net.Conn, 1)}
		q := &peer{here: &answerer{config: c, means: means{chans: p.chans}, ctx: p.ctx, calls: p.free}}
		p.add(q.here.end)
		q.here.open()
		context.AfterFunc(p.ctx, func() { q.here.c.Close() })
		p.add(func() { close(p.chans.there); q.busy.Wait() })
		return q
	}
	cmd := subprocess.Self(c.args()...)
	q := &peer{Process: must(subprocess.Start(cmd))}
	p.add(func() { _ = q.Stop() })
	go func() { p.stop(fmt.Errorf("the peer: %w", q.End())) }()
	p.wait(q)
	return q
}

// connect makes what the bare loops use.
func (p *pair) connect() {
	var path string
	p.addr, path, _ = strings.Cut(p.ask(p.peer, "listen", 0), " ")
	p.mem = openShared(filepath.Dir(path))
	p.add(p.mem.close)
	p.begin(p.peer, "connect", 0)
	var d net.Dialer
	nc := must(d.DialContext(p.ctx, "tcp", p.addr))
	p.use(p.ctx, &p.cleanup, nc, must(d.DialContext(p.ctx, "unix", path)), p.Size)
	p.wait(p.peer)
}

// begin starts a task of a peer. wait waits until the task is done, and returns the answer.
func (p *pair) begin(q *peer, task string, n ...int) {
	if q.here == nil {
		check(q.WriteLine(task, strings.Trim(fmt.Sprint(n), "[]")))
		return
	}
	q.done = make(chan error, 1)
	q.busy.Go(func() {
		err := attempt(func() { q.answer = q.here.do(task, n) })
		if err != nil {
			p.stop(err) // ends what waits for an answer
		}
		q.done <- err
	})
}

func (p *pair) wait(q *peer) (answer string) {
	if q.here != nil {
		check(<-q.done)
		return q.answer
	}
	s := must(q.Line(p.ctx))
	answer, ok := strings.CutPrefix(s, "ok")
	if !ok {
		check(fmt.Errorf("the peer says %q", s))
	}
	return strings.TrimSpace(answer)
}

// ask makes a peer do a task, and returns the answer.
func (p *pair) ask(q *peer, task string, n ...int) (answer string) {
	p.begin(q, task, n...)
	return p.wait(q)
}

// dialled runs f with a separate connection to the peer, which the next task accepts.
func (p *pair) dialled(f func(net.Conn)) {
	if p.here != nil {
		nc, other := net.Pipe()
		p.chans.conns <- other
		using(p.ctx, nc, f)
		return
	}
	var d net.Dialer
	using(p.ctx, must(d.DialContext(p.ctx, "tcp", p.addr)), f)
}

// using runs f with a connection, which it closes.
func using(ctx context.Context, nc net.Conn, f func(net.Conn)) {
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { hangUp(nc) })()
	f(nc)
}

// with returns a loop meanwhile the peer does a task with as many messages.
func (p *pair) with(task string, l loop, args ...int) loop {
	return func(n int, t *times) {
		p.begin(p.peer, task, append([]int{n}, args...)...)
		l(n, t)
		p.wait(p.peer)
	}
}

// trips returns a loop of round trips f, which the peer answers by a task.
func (p *pair) trips(task string, f func()) loop {
	return p.with(task, func(n int, t *times) {
		if p.here != nil {
			t.batch(p.ctx, n, f)
		} else {
			t.round(n, f)
		}
	})
}

// trip sends a message of size bytes, and receives the answer.
func (p *pair) trip(size int) func() {
	return func() {
		check(p.me.Send(p.msg, p.to, 0, must(p.c.Buffer(size))))
		p.recv()
	}
}

// recv receives a message.
func (p *pair) recv() { must(p.me.Recv(p.msg)).Release() }
