// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/programs"
)

// A pod is the controller of a task's threads. Every task has one: a resource that starts threads
// and programs, and ends them, when tasks anywhere in the virtual machine ask for it. Each request
// is handled by a goroutine of its own.
type pod struct {
	t     *Task
	r     *rocl.Resource
	infos *infoStore

	mu       sync.Mutex
	exports  map[string]*export
	threads  map[TID]*Thread
	contexts map[MsgContext]*rocl.Resource
	children map[*child]struct{}
	draining bool     // Exit has begun: no more programs are started
	statuses statuses // has a lock of its own
	launched launched
	streams  map[*stream]struct{} // the output that this pod passes on

	launching  sync.WaitGroup // programs that newChild has counted, until launch returns; none is added while draining
	relayEnded bool           // endRelay has begun: streams that begin from then on are handed over at once

	forker     sync.Once
	guarding   sync.Once
	guard      *programs.Guard // see guarded
	forks      chan func()
	lastStream atomic.Uint64

	spawns map[uint64]*spawned // the latest keptSpawns, by number
	last   uint64              // number of the last spawn
	turns  map[TID]int         // the balances of places, for spread

	ending bool          // no more programs are started
	asked  chan struct{} // closed when the pod is to end before its task
	ask    sync.Once     // closes asked
}

// spawned is the record of a Spawn by the pod's task.
type spawned struct {
	done chan struct{} // closed when ids is complete
	ids  []TID
}

// keptSpawns is how many spawns a pod remembers, for Siblings.
const keptSpawns = 4096

// siblings is a request for the identifiers of one of the spawns of a pod's task.
type siblings struct{ Spawn uint64 }

// beginSpawn numbers a spawn, and returns its record. The caller sets ids, and then closes done.
func (p *pod) beginSpawn() (uint64, *spawned) {
	s := &spawned{done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.spawns[p.last] = s
	delete(p.spawns, p.last-keptSpawns)
	return p.last, s
}

// siblings waits until a spawn is complete, and returns its identifiers.
func (p *pod) siblings(ctx context.Context, q siblings) ([]TID, error) {
	p.mu.Lock()
	s := p.spawns[q.Spawn]
	p.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("the spawner has spawned %d times since", keptSpawns)
	}
	select {
	case <-s.done:
		return s.ids, nil
	case <-ctx.Done():
		return nil, ErrExited
	}
}

// Tags of requests to a pod.
const (
	podThreads  = iota // spawnThreads: start threads
	podPrograms        // spawnPrograms: start programs
	podSignal          // signal: of a task or thread
	podSiblings        // siblings: of a Spawn by this task
	podStart           // spawnPrograms: start programs without waiting for their enrolment
	podWait            // waitFor: wait until a program that the pod has started has ended
	podEnrolled        // waitFor: wait until such a program has become a task
	podEnd             // endPod: end the pod, and the programs that it has started
)

// spawnThreads is the request that a pod starts threads.
type spawnThreads struct {
	parentage
	Name string
	Args []string
	N    int
}

// started is the reply to spawnThreads and spawnPrograms. It has, for each thread or program, an
// identifier or the reason why there is none.
type started struct {
	IDs    []TID
	Errors []string
}

// signal is the request that a pod signals one of its tasks or threads, or a program that it has
// started.
type signal struct {
	ID     TID
	Signal int
}

// done is the reply to requests that return only an error.
type done struct{}

// mostThreads is how many threads one request may start.
const mostThreads = 1 << 20

// startPod registers the pod of the task, and starts to handle requests.
func (t *Task) startPod(ctx context.Context) error {
	p := &pod{
		t: t, forks: make(chan func()), streams: map[*stream]struct{}{}, exports: map[string]*export{}, threads: map[TID]*Thread{},
		contexts: map[MsgContext]*rocl.Resource{}, children: map[*child]struct{}{},
		statuses: statuses{by: map[TID]*child{}}, spawns: map[uint64]*spawned{}, turns: map[TID]int{}, asked: make(chan struct{}),
	}
	p.infos = t.newInfoStore(p, t.infoTimeout)
	a := t.attrs(typePod, rocl.Attrs{attrPID: strconv.Itoa(os.Getpid()), attrServedBy: LauncherTask})
	if !t.noLaunch {
		a[attrLaunch] = "yes"
	}
	if t.isHidden {
		a[attrObserves] = "yes"
	}
	maps.Copy(a, t.podAttrs)
	r, err := t.c.Register(ctx, a)
	if err != nil {
		return err
	}
	p.r = r
	t.pod = p
	t.work.Go(func() { _ = r.Handle(t.ended, p.handle, rocl.EachInOwn()) })
	return nil
}

// handle handles one request.
func (p *pod) handle(m *rocl.Message) {
	switch m.Tag() {
	case podThreads:
		answer(p, p.r, m, p.startThreads)
	case podPrograms:
		answer(p, p.r, m, p.startPrograms)
	case podSignal:
		var act func()
		answer(p, p.r, m, func(_ context.Context, q signal) (_ done, err error) {
			act, err = p.signal(q)
			return done{}, err
		})
		if act != nil { // the signal may end this process, so the reply goes first
			_ = p.r.Flush(p.t.ended)
			go act() // act may exit the task, which waits for this goroutine
		}
	case podSiblings:
		answer(p, p.r, m, p.siblings)
	case podInfo:
		var done func()
		answer(p, p.r, m, func(ctx context.Context, q infoRequest) (a infoAnswer, err error) {
			a, done, err = p.infos.answer(ctx, q)
			return a, err
		})
		if done != nil {
			_ = p.r.Flush(p.t.ended)
			done()
		}
	case podStart:
		answer(p, p.r, m, p.startOnly)
	case podWait:
		answer(p, p.r, m, p.wait)
	case podEnrolled:
		answer(p, p.r, m, p.awaitTask)
	case podEnd:
		answer(p, p.r, m, p.endPod)
		if p.t.podAttrs[attrServedBy] == LauncherPod { // the reply must go first
			p.ask.Do(func() { close(p.asked) })
		}
	default:
		p.t.log.Warn("tpvm: pod: a request is unknown", "from", m.From(), "tag", m.Tag())
	}
}

// request is the payload that ask sends.
type request[Q any] struct {
	VM      string        // of the sender's task
	Left    time.Duration // the time after which the sender gives up; 0: it does not
	Request Q
}

// reply is the payload that answer sends.
type reply[A any] struct {
	Error string // why the request was refused or has failed; "" if it was not
	Reply A
}

// giveUpGrace is how long a request is handled after its sender has given up, so that the sender
// gets its own error and not that of the pod.
const giveUpGrace = time.Second

// allows reports whether the task allows the request m to r, by a task of virtual machine vm.
func (p *pod) allows(r *rocl.Resource, m *rocl.Message, vm string) bool {
	launches := r == p.r && (m.Tag() == podPrograms || m.Tag() == podStart)
	isOwn := m.From().Context() == r.ID().Context()
	return vm == p.t.vm && (isOwn || !launches || !p.t.noLaunch)
}

// answer decodes a request to r, and replies with the result of f. The context of f ends after the
// sender has given up.
func answer[Q, A any](p *pod, r *rocl.Resource, m *rocl.Message, f func(context.Context, Q) (A, error)) {
	q, err := rocl.Value[request[Q]](m)
	if err != nil {
		p.t.log.Warn("tpvm: pod: a request is invalid", "from", m.From(), "tag", m.Tag(), "err", err)
		return // the caller releases m without a reply
	}
	ctx := p.t.ended
	if q.Left > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.Left)
		defer cancel()
	}
	var a reply[A]
	if err = ErrDenied; p.allows(r, m, q.VM) {
		a.Reply, err = f(ctx, q.Request)
	}
	if err != nil {
		a.Error = errorText(err)
	}
	b, err := rocl.EncodeValue(p.t.ended, p.t.c, a)
	if err != nil {
		return
	}
	if err := r.Reply(p.t.ended, m, b); err != nil {
		b.Release()
	}
}

// ask sends a request to a resource of another task, and returns the reply.
func ask[A, Q any](ctx context.Context, t *Task, to TID, op uint64, q Q) (a A, err error) {
	r := request[Q]{VM: t.vm, Request: q}
	if end, ok := ctx.Deadline(); ok {
		r.Left = giveUpGrace + max(0, time.Until(end))
	}
	b, err := rocl.EncodeValue(ctx, t.c, r)
	if err != nil {
		return a, err
	}
	m, err := t.pod.r.Call(ctx, to, op, b)
	if err != nil {
		b.Release()
		return a, err
	}
	defer m.Release()
	v, err := rocl.Value[reply[A]](m)
	if err == nil && v.Error != "" {
		err = remoteError(v.Error)
	}
	return v.Reply, err
}

// startThreads starts threads of an exported function.
func (p *pod) startThreads(ctx context.Context, q spawnThreads) (a started, err error) {
	p.mu.Lock()
	x := p.exports[q.Name]
	p.mu.Unlock()
	if x == nil || q.N < 0 || q.N > mostThreads {
		a.Errors = []string{ErrNoProgram.Error()}
		return a, nil
	}
	a.IDs = make([]TID, 0, q.N)
	for range q.N {
		th, err := p.t.startThread(ctx, x.f, q)
		if err != nil {
			a.Errors = append(a.Errors, err.Error())
			break
		}
		a.IDs = append(a.IDs, th.ID())
	}
	return a, nil
}

// startThread registers a thread, and calls f in a goroutine of its own.
func (t *Task) startThread(ctx context.Context, f ThreadFunc, q spawnThreads) (*Thread, error) {
	th, err := t.newThread(ctx, typeThread, family{name: q.Name, args: q.Args, parentage: q.parentage}, nil)
	if err != nil {
		return nil, err
	}
	th.ctx, th.cancel = context.WithCancelCause(t.ended)
	t.pod.add(th)
	if !t.work.goes(func() {
		err := errGoexit
		defer func() { // also if f ends the goroutine
			th.failed(err)
			th.cancel(nil)
			t.pod.remove(th)
			_ = th.r.Close() // first: see kill
			th.endGroups()
			t.pod.infos.ownerEnded(t.ended, th.ID())
		}()
		err = th.run(f)
	}) {
		th.cancel(ErrExited)
		t.pod.remove(th)
		return nil, errors.Join(ErrExited, th.r.Close())
	}
	return th, nil
}

func (p *pod) add(th *Thread) {
	p.mu.Lock()
	p.threads[th.ID()] = th
	p.mu.Unlock()
}

func (p *pod) remove(th *Thread) {
	p.mu.Lock()
	delete(p.threads, th.ID())
	p.mu.Unlock()
}

func (p *pod) all() []*Thread {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.threads))
}

// signal ends a thread, or signals a program that the pod has started. For the task itself it
// returns a function that delivers the signal.
func (p *pod) signal(q signal) (act func(), err error) {
	p.mu.Lock()
	th := p.threads[q.ID]
	p.mu.Unlock()
	switch {
	case th == nil:
		if c := p.statuses.get(q.ID); c != nil && c.signal(syscall.Signal(q.Signal)) == nil {
			return nil, nil
		}
		return nil, ErrNoTask
	case th.isMain:
		return func() { p.t.onSignal(syscall.Signal(q.Signal)) }, nil
	}
	th.kill(ErrKilled)
	return nil, nil
}

// newContext registers a message context that no other task has.
func (p *pod) newContext(ctx context.Context) (_ MsgContext, err error) {
	defer wrap(&err, "tpvm: new message context")
	for {
		n := MsgContext(1 + rand.Uint32N(1<<contextBits-1))
		a := rocl.Attrs{attrType: typeContext, attrVM: p.t.vm, attrNumber: n.String()}
		r, err := p.t.c.Register(ctx, a, rocl.Unique(attrType, attrVM, attrNumber))
		switch {
		case errors.Is(err, rocl.ErrExists):
			continue
		case err != nil:
			return 0, err
		}
		if p.addContext(n, r) {
			return n, nil
		}
		return 0, errors.Join(ErrExited, r.Close())
	}
}

// addContext keeps the resource of a message context until the task exits. It reports false if the
// task has exited already.
func (p *pod) addContext(n MsgContext, r *rocl.Resource) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.t.ended.Err() != nil {
		return false
	}
	p.contexts[n] = r
	return true
}

// registered returns the resources of the exported functions and of the message contexts. After the
// task has exited, none are added.
func (p *pod) registered() []*rocl.Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	rs := slices.Collect(maps.Values(p.contexts))
	for _, x := range p.exports {
		rs = append(rs, x.r)
	}
	return rs
}

func (p *pod) freeContext(c MsgContext) error {
	p.mu.Lock()
	r := p.contexts[c]
	delete(p.contexts, c)
	p.mu.Unlock()
	if r == nil {
		return fmt.Errorf("tpvm: free message context %v: %w", c, ErrBadParam)
	}
	return r.Close()
}

// Kill ends a task or a thread. It sends SIGTERM to the process of a task. For a thread, it ends
// the context of the thread's function, and withdraws its identifier at once. Kill returns when the
// task's process has received the request.
func (t *Thread) Kill(ctx context.Context, id TID) error { return t.Signal(ctx, id, syscall.SIGTERM) }

// Signal sends a signal to the process of a task, on whatever host. Any signal ends a thread.
// SIGKILL, SIGSTOP and SIGCONT also reach a stopped process, if the task that started it still
// runs.
func (t *Thread) Signal(ctx context.Context, id TID, s syscall.Signal) (err error) {
	defer wrap(&err, "tpvm: signal %v", id)
	pod, err := t.task.signaller(ctx, id, s)
	if err != nil {
		return err
	}
	_, err = ask[done](ctx, t.task, pod, podSignal, signal{ID: id, Signal: int(s)})
	if errors.Is(err, rocl.ErrGone) { // the process has ended before it replied, mostly because of the signal
		return nil
	}
	return err
}

// signaller returns the pod that signals a task or thread. For signals that a process cannot handle
// itself, it is the pod of the launcher, if that is alive. Otherwise it is the pod of the task or
// thread.
func (t *Task) signaller(ctx context.Context, id TID, s syscall.Signal) (TID, error) {
	f, err := t.lookUp(ctx, id)
	if err != nil {
		return TID{}, err
	}
	if isUnhandled(s) {
		if l, err := rocl.ParseGID(attr(f, attrLauncher)); err == nil && !l.IsZero() {
			if _, err := t.c.Lookup(ctx, l, attrType); err == nil {
				return l, nil
			}
		}
	}
	return rocl.ParseGID(attr(f, attrPod))
}

// lookUp finds a task, a thread, or a program that has not enrolled, of this virtual machine.
func (t *Task) lookUp(ctx context.Context, id TID) (rocl.Found, error) {
	f, err := t.c.Lookup(ctx, id)
	if errors.Is(err, rocl.ErrNotFound) {
		return f, ErrNoTask
	}
	if err != nil {
		return f, err
	}
	switch typ := attr(f, attrType); {
	case attr(f, attrVM) != t.vm, typ != typeTask && typ != typeThread && typ != typeStart:
		return f, ErrNoTask
	}
	return f, nil
}
