// SPDX-License-Identifier: Apache-2.0

package rocltest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// Simulate runs f with a [World] in a bubble of testing/synctest. It fails the test if f has called
// [World.Errorf] or leaves a goroutine. [World.Run] brings faults, which are drawn from the seed.
// When the run fails, Simulate runs f again with fewer faults. It prints the seed with the smallest
// schedule of faults that still fails, and the last lines that the library has logged with it.
//
// One seed always draws the same faults at the same times. The order in which goroutines run at one
// instant is not drawn, so a rare failure may need several runs of its seed.
//
//	func TestMine(t *testing.T) {
//		for seed := range uint64(100) {
//			rocltest.Simulate(t, seed, func(w *rocltest.World) {
//				w.AddNodes(2)
//				w.Start(0, "server", func(p *rocltest.Process) { … })
//				w.Start(1, "client", func(p *rocltest.Process) { … })
//				w.Run(20 * time.Second)
//				// check what the processes have done
//			})
//		}
//	}
func Simulate(t *testing.T, seed uint64, f func(w *World)) {
	t.Helper()
	w := simulate(t, &World{seed: seed}, f)
	if len(w.wrong) == 0 {
		return
	}
	fails := func(s []Fault) bool { return len(simulate(t, &World{seed: seed, given: &s}, f).wrong) > 0 }
	schedule := shrink(w.schedule, fails)
	last := simulate(t, &World{seed: seed, given: &schedule, keepsLog: true}, f)
	var text strings.Builder
	for _, e := range schedule {
		fmt.Fprintf(&text, "\n\t%v", e)
	}
	t.Errorf("seed %d: %s\nwith the faults:%s\nwhich has logged:\n\t%s", seed, strings.Join(w.wrong[:min(len(w.wrong), 10)], "\n\t"), &text, strings.Join(last.lines, "\n\t"))
}

// shrink returns the smallest part of a schedule for which fails returns true, as far as it finds
// one with a limited number of runs.
func shrink(schedule []Fault, fails func([]Fault) bool) []Fault {
	runs := 60
	for size := (len(schedule) + 1) / 2; size > 0 && runs > 0; {
		isSmaller := false
		for at := 0; at < len(schedule) && runs > 0; {
			part := slices.Concat(schedule[:at], schedule[min(at+size, len(schedule)):])
			if runs--; fails(part) {
				schedule, isSmaller = part, true
			} else {
				at += size
			}
		}
		if size == 1 && !isSmaller {
			break
		}
		size = max(size/2, min(size, 1))
	}
	return schedule
}

// simulate runs f once with a new world, and returns the world.
func simulate(t *testing.T, w *World, f func(w *World)) (same *World) {
	same = w
	w.rnd = rand.New(rand.NewPCG(w.seed, 1))
	defer func() {
		if e := recover(); e != nil { // all goroutines of the bubble wait for ever
			w.Errorf("%v", e)
		}
	}()
	synctest.Test(t, func(*testing.T) { w.run(f) })
	return same
}

// A World is a network of nodes in memory, with processes that can be killed. [Simulate] makes it.
// Any goroutine may call Errorf, Log, Context and Process. The other methods belong to the
// goroutine that runs the function of Simulate.
type World struct {
	seed     uint64
	rnd      *rand.Rand
	net      *simnet.Network
	log      *slog.Logger
	nodes    []*node
	keepsLog bool
	given    *[]Fault // the faults to bring; nil: those of the seed
	schedule []Fault  // the faults that Run has brought
	begun    time.Time
	agenda   []action        // in order
	life     context.Context // ends when the world ends
	end      context.CancelFunc
	busy     sync.WaitGroup

	mu        sync.Mutex
	processes []*Process
	wrong     []string
	lines     []string // the last lines of the log
}

// A node is a machine with a directory.
type node struct {
	w              *World
	host           *simnet.Host
	id             *directory.Identity
	process        *simnet.Process
	server         *directory.Server
	member         *cluster.Cluster
	disturbedSince time.Time // see World.mayDeny; World.mu guards it
	disturbed      time.Time // see World.mayDeny; World.mu guards it
	isUp           bool      // the directory runs
	isDown         bool      // the machine has crashed
}

const (
	worldTime  = 10 * time.Minute // limits the virtual time of a world
	leastDelay = 100 * time.Microsecond
	mostDelay  = 2 * time.Millisecond
)

func (w *World) run(f func(w *World)) {
	w.begun = time.Now()
	w.net = simnet.New(w.seed)
	w.net.SetDelay(leastDelay, mostDelay)
	w.log = slog.New(slog.DiscardHandler)
	if w.keepsLog {
		w.log = slog.New(slog.NewTextHandler(logTo{w}, nil))
	}
	w.life, w.end = context.WithTimeoutCause(context.Background(), worldTime, fmt.Errorf("rocltest: the world has lasted for %v", worldTime))
	f(w)
	w.mu.Lock()
	all := slices.Clone(w.processes)
	w.mu.Unlock()
	for _, p := range all {
		p.stop()
	}
	w.end()
	for _, n := range w.nodes {
		if n.isUp {
			n.stop()
		}
	}
	w.busy.Wait()
	time.Sleep(time.Minute) // timers that have nothing to do any more fire
	synctest.Wait()
	if left := goroutines(); len(left) > 0 {
		w.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
		time.Sleep(time.Hour) // the bubble must not end before those that only sleep
	}
}

// goroutines returns the stacks of the goroutines of the bubble, without those of the caller and of
// package testing.
func goroutines() (left []string) {
	b := make([]byte, 1<<20)
	all := strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n")
	first, _, _ := strings.Cut(all[0], "\n")
	_, bubble, ok := strings.Cut(first, "synctest bubble ")
	if !ok {
		return nil
	}
	bubble = "synctest bubble " + bubble
	for _, g := range all[1:] {
		head, body, _ := strings.Cut(g, "\n")
		if strings.Contains(head, bubble) && !strings.Contains(body, "synctest.Run(") && !strings.Contains(body, "testingSynctestTest(") {
			left = append(left, g)
		}
	}
	return left
}

// logTo writes log lines to World.Log.
type logTo struct{ w *World }

func (l logTo) Write(b []byte) (int, error) {
	l.w.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

var _ io.Writer = logTo{}

// Process returns the latest process of a program, or nil if there is none with that name.
func (w *World) Process(name string) *Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(w.processes, func(p *Process) bool { return p.name == name }); i >= 0 {
		return w.processes[i]
	}
	return nil
}

// live returns the processes that run.
func (w *World) live() []*Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.processes), func(p *Process) bool { return !p.isLive })
}

// mostLines limits the lines of the log that are kept.
const mostLines = 200

// Log adds a line, with the virtual time, to the log that Simulate prints if a promise is broken.
func (w *World) Log(a ...any) {
	if !w.keepsLog {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == mostLines {
		w.lines = w.lines[1:]
	}
	w.lines = append(w.lines, fmt.Sprintf("%v: %s", time.Since(w.begun), fmt.Sprint(a...)))
}

// Errorf records that a promise was broken. The run goes on.
func (w *World) Errorf(format string, a ...any) {
	text := fmt.Sprintf("%v: ", time.Since(w.begun)) + fmt.Sprintf(format, a...)
	w.Log("wrong: ", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, text)
}

// Context returns a context that ends with the world, or after ten minutes of virtual time.
func (w *World) Context() context.Context { return w.life }

// Rand returns the source of what the seed draws.
func (w *World) Rand() *rand.Rand { return w.rnd }

const (
	directoryPort = "7000"
	memberPort    = "7946"
)

// AddNodes starts n machines, each with a directory. The directories are members of one cluster. It
// is called before Run.
func (w *World) AddNodes(n int) {
	first := directory.NewIdentity()
	for i := range n {
		id := first
		if i > 0 {
			id = first.Sibling()
		}
		w.nodes = append(w.nodes, &node{w: w, host: w.net.AddHost(fmt.Sprintf("node%d", i)), id: id})
	}
	for _, n := range w.nodes {
		n.start()
	}
}

// start starts the node's directory.
func (n *node) start() {
	w := n.w
	n.process = n.host.Start()
	n.server = directory.NewServer(directory.WithIdentity(n.id), directory.WithLogger(w.log), directory.WithLiving(n.awaits))
	var join []string
	for _, o := range w.nodes {
		if o != n {
			join = append(join, o.host.IP().String()+":"+memberPort)
		}
	}
	ln, err := n.process.Listen(":" + directoryPort)
	if err == nil && len(w.nodes) > 1 {
		n.member, err = cluster.Open(cluster.Config{
			Node: n.server.Node(), DB: n.server.Database(), Name: "world", Bind: ":" + memberPort, Join: join,
			Serve: n.server.ServePeer, Sure: n.server.Recovered, Follows: n.server.Follows(), Logger: w.log, Network: n.process,
		})
	}
	if err != nil {
		w.Errorf("starting the directory of %s: %v", n.host.Name(), err)
		return
	}
	if n.member != nil {
		n.server.Attach(n.member)
	}
	n.isUp, n.isDown = true, false
	server := n.server
	w.busy.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			w.busy.Go(func() { server.ServeConn(nc) })
		}
	})
}

// awaits reports whether a process of the node lives that has not joined.
func (n *node) awaits(joined func(rocl.GID) bool) bool {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return slices.ContainsFunc(n.w.processes, func(p *Process) bool {
		return p.node == n && p.isLive && p.c != nil && !joined(p.c.ID())
	})
}

// stop ends the node's directory. If its process was killed, no other one hears of that.
func (n *node) stop() {
	n.isUp = false
	server, member, process := n.server, n.member, n.process
	n.member = nil
	n.id = n.id.Successor()
	n.w.busy.Go(func() {
		server.Close()
		if member != nil {
			member.Close()
		}
		process.Kill()
	})
}

// A Process is one run of a program of [World.Start]. When it is killed, its program runs again
// after a while, as another Process.
type Process struct {
	w       *World
	node    *node
	name    string
	main    func(*Process)
	proc    *simnet.Process
	c       *rocl.Context
	ctx     context.Context
	cancel  context.CancelFunc
	ended   chan struct{}
	isLive  bool      // World.mu guards it
	stopped time.Time // until when the process is stopped; World.mu guards it
	killed  time.Time // when the process was killed; zero: it was not; World.mu guards it
	lost    func(rocl.Undelivered)
}

// Start starts a program on a node: main runs in a goroutine of its own, with a context of its own
// process. When the process is killed, Process.Context ends and main must return; main is called
// again when the process is started again. When main returns, the process ends in order.
func (w *World) Start(node int, name string, main func(p *Process)) {
	p := &Process{w: w, node: w.nodes[node], name: name, main: main}
	w.mu.Lock()
	w.processes = append(w.processes, p)
	w.mu.Unlock()
	p.start()
}

// start begins a run of the program.
func (p *Process) start() {
	p.proc = p.node.host.Start()
	p.ctx, p.cancel = context.WithCancel(p.w.life)
	p.ended = make(chan struct{})
	p.w.busy.Go(p.run)
}

func (p *Process) run() {
	defer close(p.ended)
	defer p.cancel()
	at := net.JoinHostPort(p.node.host.IP().String(), directoryPort)
	open := func() (*rocl.Context, error) {
		return rocl.Open(p.ctx,
			icontext.WithDirectory(func(ctx context.Context) (net.Conn, error) {
				nc, err := p.proc.DialContext(ctx, at)
				if err != nil {
					return nil, fmt.Errorf("%w: %w", rocl.ErrNoDirectory, err)
				}
				return nc, nil
			}),
			rocl.WithTransports(p.proc.Transport()), rocl.WithLogger(p.w.log), rocl.WithMailbox(64<<10), rocl.WithMemory(64<<20),
			rocl.WithUndelivered(func(u rocl.Undelivered) {
				p.w.mu.Lock()
				lost := p.lost
				p.w.mu.Unlock()
				if lost != nil {
					lost(u)
				}
			}))
	}
	c, err := open()
	for ; err != nil; c, err = open() { // the directory may be away
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	p.w.mu.Lock()
	p.c, p.isLive = c, p.killed.IsZero()
	p.w.mu.Unlock()
	p.main(p)
	err = c.Close()
	if n := c.Stats().Buffers.InUse; n > 0 {
		p.w.Errorf("%s has ended, and %d buffers are in use", p.name, n)
	}
	p.w.mu.Lock()
	p.isLive = false
	p.w.mu.Unlock()
	p.w.Log("process ", p.name, " has ended: ", err)
	p.proc.Kill()
}

// kill ends the process as a kill does. The program runs again after a time.
func (p *Process) kill(restart time.Duration) {
	w := p.w
	w.mu.Lock()
	p.killed, p.isLive = time.Now(), false
	w.mu.Unlock()
	p.proc.Kill()
	p.cancel()
	w.later(restart, p.restart)
}

// restart starts the program of a killed process again.
func (p *Process) restart() {
	w := p.w
	select {
	case <-p.ended:
	default:
		w.later(time.Millisecond, p.restart)
		return
	}
	if p.node.isDown {
		w.later(10*time.Millisecond, p.restart)
		return
	}
	again := &Process{w: w, node: p.node, name: p.name, main: p.main}
	w.mu.Lock()
	w.processes[slices.Index(w.processes, p)] = again
	w.mu.Unlock()
	again.start()
}

// stop ends the process in order, and waits for its end.
func (p *Process) stop() {
	if p.ended == nil {
		return
	}
	p.cancel()
	<-p.ended
}

// Rocl returns the process's context for communication.
func (p *Process) Rocl() *rocl.Context { return p.c }

// Context returns a context that ends when the process is killed, or is to end.
func (p *Process) Context() context.Context { return p.ctx }

// World returns the world of the process.
func (p *Process) World() *World { return p.w }

// Name returns the name of the program.
func (p *Process) Name() string { return p.name }

// IsKilled reports whether the process was killed.
func (p *Process) IsKilled() bool { return !p.wasKilled().IsZero() }

// wasKilled returns when the process was killed, or the zero time.
func (p *Process) wasKilled() time.Time {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.killed
}

// OnUndelivered sets the function to which messages are reported that could not be delivered, see
// [rocl.WithUndelivered].
func (p *Process) OnUndelivered(f func(rocl.Undelivered)) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.lost = f
}
