// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/programs"
)

// spawnPrograms is the request that a pod starts programs.
type spawnPrograms struct {
	parentage
	Name          string
	Args, Env     []string
	Dir           string
	N             int
	EndWithParent bool
	Output        output
	First, Count  int  // index of the first of these in the spawn, and the number of programs in the whole spawn
	OnHosts       bool // the spawn is spread over several hosts
}

// mostPrograms is how many programs of a task's pod run at the same time, unless WithMaxPrograms
// sets another limit.
const mostPrograms = 1 << 12

// enrolment is the message of a started program to its launcher.
type enrolment struct{ ID TID }

// start is what a started program reads from the resource of its start.
type start struct {
	parentage
	EndWithParent bool
	Output        output
	Launcher      TID    // the pod that started the program
	Stream        uint64 // the launcher's number for the program's output; 0: it is not gathered
}

// A child is a program that a pod has started.
type child struct {
	cmd      *exec.Cmd
	program  *programs.Program // valid once begun is closed; nil: the process could not be started
	tmp      *rocl.Resource
	withdraw func()        // closes tmp, once; a concurrent call waits until it is closed
	index    int           // index in its spawn
	isBegun  bool          // the process is being started, or has been; guarded by the mu of the pod
	begun    chan struct{} // closed when the process has been started, or could not be
	enrolled chan struct{} // closed when the program has enrolled, after the reply to it
	id       TID           // of the task; valid after isEnrolling is set
	exited   chan struct{} // closed when the program has ended: see programs.Program.Ended
	status   Status        // of the process; valid after exited
	streams  []*stream     // of its output, if that is gathered
	endsWith TID           // its parent, if it shall end with that

	isEnrolling atomic.Bool // the program has enrolled, and enrolled will be closed; set before the reply
}

// hasEnrolled reports whether the program has become a task.
func (c *child) hasEnrolled() bool {
	select {
	case <-c.enrolled:
		return true
	default:
		return false
	}
}

// startPrograms starts programs and waits until they have enrolled.
func (p *pod) startPrograms(ctx context.Context, q spawnPrograms) (a started, err error) {
	cs, errs := p.launchAll(ctx, q)
	ids := make([]TID, len(cs))
	together(len(cs), func(i int) {
		if errs[i] == nil {
			ids[i], errs[i] = p.awaitEnrolment(ctx, cs[i])
			cs[i].withdraw() // if the wait was given up, the program does not find its parent any more
		}
	})
	for i, err := range errs {
		if err != nil {
			a.Errors = append(a.Errors, err.Error())
		} else {
			a.IDs = append(a.IDs, ids[i])
		}
	}
	return a, nil
}

// launchAll starts the programs of a request. For each it returns a child or an error.
func (p *pod) launchAll(ctx context.Context, q spawnPrograms) (cs []*child, errs []error) {
	if q.N < 1 || q.N > mostThreads {
		return []*child{nil}, []error{ErrBadParam}
	}
	cs, errs = make([]*child, q.N), make([]error, q.N)
	path, err := p.find(q)
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return cs, errs
	}
	together(min(q.N, launchers), func(l int) {
		for i := l; i < q.N; i += launchers {
			if cs[i], errs[i] = p.launch(ctx, path, q, i); errs[i] != nil {
				errs[i] = startError(path, p.t.host, errs[i])
			}
		}
	})
	if q.EndWithParent {
		p.endWithParent(q.Parent, cs)
	}
	return cs, errs
}

// find returns the path of the program of a request.
func (p *pod) find(q spawnPrograms) (string, error) {
	if q.Dir != "" {
		if err := isDir(q.Dir); err != nil {
			return "", fmt.Errorf("directory %s on %s: %w", q.Dir, p.t.host, err)
		}
	}
	path, err := lookPath(q.Name, q.Dir)
	if err != nil {
		return "", fmt.Errorf("%w: %q on %s: %w", ErrNoProgram, q.Name, p.t.host, err)
	}
	return path, nil
}

// isDir fails unless path is a directory.
func isDir(path string) error {
	i, err := os.Stat(path)
	var e *os.PathError
	switch {
	case errors.As(err, &e):
		return e.Err
	case err == nil && !i.IsDir():
		return syscall.ENOTDIR
	}
	return err
}

// launchers is how many programs a request starts at the same time.
const launchers = 16

// startError returns the error of a program that was not started. Errors of this package stay in
// front, where remoteError recognises them.
func startError(path, host string, err error) error {
	if slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) }) {
		return fmt.Errorf("%w: start %s on %s", err, path, host)
	}
	for _, scarce := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, scarce) {
			return fmt.Errorf("%w: start %s on %s: %w", ErrTooMany, path, host, err)
		}
	}
	return fmt.Errorf("start %s on %s: %w", path, host, err)
}

// lookPath finds a program: by its path, beside the program of this task, or in PATH.
func lookPath(name, dir string) (string, error) {
	if filepath.Base(name) == name {
		if own, err := os.Executable(); err == nil {
			if path, err := exec.LookPath(filepath.Join(filepath.Dir(own), name)); err == nil {
				return path, nil
			}
		}
	} else if !filepath.IsAbs(name) && dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// awaitEnrolment waits until a program has enrolled or ended.
func (p *pod) awaitEnrolment(ctx context.Context, c *child) (TID, error) {
	select {
	case <-c.enrolled:
	case <-c.exited:
		if !c.isEnrolling.Load() {
			return TID{}, fmt.Errorf("%w: %s on %s: %v", ErrNotEnrolled, c.cmd.Path, p.t.host, c.status)
		}
		<-c.enrolled // handleEnrolment is about to close it
	case <-ctx.Done():
		return TID{}, fmt.Errorf("%s on %s has not enrolled: %w", c.cmd.Path, p.t.host, context.Cause(ctx))
	}
	return c.id, nil
}

// launch starts program number i of a request, with a resource by which the program finds its
// parent.
func (p *pod) launch(ctx context.Context, path string, q spawnPrograms, i int) (_ *child, err error) {
	c, err := p.newChild(q.First + i)
	if err != nil {
		return nil, err
	}
	defer p.launching.Done() // after the streams' goroutines have been started
	defer func() {
		if err != nil {
			p.forget(c)
			c.status = statusOf(nil)
			close(c.exited)
		}
	}()
	if q.EndWithParent {
		c.endsWith = q.Parent
	}
	token := rand.Text()
	c.cmd = p.command(path, q, token)
	if err := p.connectOutput(ctx, c, q); err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range c.streams {
			s.started(err == nil)
		}
	}()
	if err := p.registerStart(ctx, c, q, token); err != nil {
		return nil, err
	}
	if err := p.start(c, q); err != nil {
		c.withdraw()
		return nil, err
	}
	_ = c.tmp.Set(ctx, attrPID, strconv.Itoa(c.cmd.Process.Pid)) // for tpvm ps
	go p.awaitExit(c)                                            // goes on after Exit while the program runs
	p.withdrawLater(c)
	return c, nil
}

// command returns the command that runs a program, which enrols with a token.
func (p *pod) command(path string, q spawnPrograms, token string) *exec.Cmd {
	cmd := exec.Command(path, q.Args...)
	cmd.Dir = q.Dir
	cmd.SysProcAttr = ownSession() // the terminal of this process sends its signals to no program
	cmd.Env = append(slices.Concat(os.Environ(), p.t.env, q.Env), EnvToken+"="+token, EnvVM+"="+p.t.vm)
	return cmd
}

// start starts the process of a program, which may enrol from now on.
func (p *pod) start(c *child, q spawnPrograms) error {
	if !p.t.work.goes(func() { p.handleEnrolment(c) }) {
		return ErrExited
	}
	if err := p.mayBegin(c); err != nil {
		return err
	}
	p.statuses.add(c) // first: the program may enrol at once
	err := p.begin(c, q)
	close(c.begun)
	if err != nil {
		p.statuses.remove(c)
	}
	return err
}

// withdrawLater withdraws the resource with which a program enrols, when it has enrolled or cannot
// enrol any more.
func (p *pod) withdrawLater(c *child) {
	if !p.t.work.goes(func() {
		select {
		case <-c.enrolled:
		case <-c.exited:
		case <-p.t.ended.Done():
		}
		c.withdraw()
	}) {
		c.withdraw()
	}
}

// newChild counts one more program, unless the pod is ending or runs as many as it may. The caller
// calls launching.Done when it has launched the program or has given up.
func (p *pod) newChild(index int) (*child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.draining || p.ending:
		return nil, ErrExited
	case len(p.children) >= p.t.maxPrograms:
		return nil, fmt.Errorf("%w: %d programs run", ErrTooMany, p.t.maxPrograms)
	}
	c := &child{index: index, begun: make(chan struct{}), enrolled: make(chan struct{}), exited: make(chan struct{})}
	p.children[c] = struct{}{}
	p.launching.Add(1)
	return c, nil
}

// mayBegin fails if the pod has begun to end its programs. Otherwise the process of c must be
// started next.
func (p *pod) mayBegin(c *child) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return ErrExited
	}
	c.isBegun = true
	return nil
}

// running returns the programs whose processes have been started.
func (p *pod) running() []*child {
	p.mu.Lock()
	cs := slices.Collect(maps.Keys(p.children))
	cs = slices.DeleteFunc(cs, func(c *child) bool { return !c.isBegun })
	p.mu.Unlock()
	return slices.DeleteFunc(cs, func(c *child) bool { return c.started() == nil })
}

// forget counts one program less.
func (p *pod) forget(c *child) {
	p.mu.Lock()
	delete(p.children, c)
	p.mu.Unlock()
}

// registerStart registers the resource by which a program finds its parent.
func (p *pod) registerStart(ctx context.Context, c *child, q spawnPrograms, token string) error {
	encoded, err := codec.Append(nil, &start{
		parentage: q.parentage, EndWithParent: q.EndWithParent, Output: q.Output, Launcher: p.r.ID(), Stream: c.stream(),
	})
	if err != nil {
		return err
	}
	c.tmp, err = p.t.c.Register(ctx, p.t.attrs(typeStart, rocl.Attrs{
		attrToken: token, attrParent: q.Parent.String(), attrName: filepath.Base(q.Name), attrStart: string(encoded),
	}))
	c.withdraw = sync.OnceFunc(func() { _ = c.tmp.Close() })
	return err
}

// awaitExit waits until a program has ended, and records the status of its process.
func (p *pod) awaitExit(c *child) {
	_ = c.program.Wait() // the ProcessState says more
	c.status = statusOf(c.cmd.ProcessState)
	p.forget(c)
	p.statuses.ended(c)
	close(c.exited)
}

// handleEnrolment answers the program when it enrols, and records its identifier.
func (p *pod) handleEnrolment(c *child) {
	_ = c.tmp.Handle(p.t.ended, func(m *rocl.Message) {
		isFirst := false
		answer(p, c.tmp, m, func(_ context.Context, e enrolment) (done, error) {
			if err := p.mayEnrol(c, m.From(), e); err != nil {
				return done{}, err
			}
			if isFirst = !c.isEnrolling.Load(); isFirst { // not a second enrolment by the same process
				c.id = e.ID
				p.statuses.enrolled(c)
				c.isEnrolling.Store(true)
			}
			return done{}, nil
		})
		if !isFirst {
			return
		}
		for _, s := range c.streams {
			s.enrolled(c.id)
		}
		close(c.enrolled) // after the reply, since the resource is closed next
	})
}

// mayEnrol fails unless the process of c is being started, or has been started, and the enrolment
// comes from the process that enrols.
func (p *pod) mayEnrol(c *child, from TID, e enrolment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.isBegun || e.ID.Context() != from.Context() {
		return ErrDenied
	}
	return nil
}

// begin starts the process. Some processes end when this process is killed, and so do the processes
// that they have started, by the guard: all of a pod that ServePod serves, and those that shall end
// with a parent in this process. For the latter the kernel ends the first process too.
func (p *pod) begin(c *child, q spawnPrograms) (err error) {
	hasParentHere := q.EndWithParent && q.Pod == p.r.ID()
	if !hasParentHere && !p.t.servesPod {
		c.program, err = programs.Start(c.cmd)
		return err
	}
	g := p.guarded()
	if !hasParentHere {
		return c.startGuarded(g)
	}
	endWithParent(c.cmd.SysProcAttr)
	p.forker.Do(func() {
		p.t.work.Go(func() {
			runtime.LockOSThread() // the kernel watches the thread that starts the process
			defer runtime.UnlockOSThread()
			for {
				select {
				case f := <-p.forks:
					f()
				case <-p.t.ended.Done():
					return
				}
			}
		})
	})
	started := make(chan error, 1)
	start := func() { started <- c.startGuarded(g) }
	select {
	case p.forks <- start:
		return <-started
	case <-p.t.ended.Done():
		return ErrExited
	}
}

// guarded returns the guard, which it starts first if necessary. It returns nil if the guard cannot
// be started.
func (p *pod) guarded() *programs.Guard {
	p.guarding.Do(func() {
		g, err := programs.NewGuard()
		if err != nil {
			p.t.log.Warn("tpvm: the processes that programs have started go on if this process is killed", "err", err)
			return
		}
		p.guard = g
		p.t.work.Go(func() {
			<-p.t.ended.Done()
			g.Close()
		})
	})
	return p.guard
}

// startGuarded starts the process, which the guard g ends when this process is killed.
func (c *child) startGuarded(g *programs.Guard) (err error) {
	if c.program, err = programs.Start(c.cmd); err == nil && g != nil {
		g.Add(c.program)
	}
	return err
}

// endWithParent makes programs that have not enrolled get SIGTERM when their parent has ended. A
// program that enrols watches its parent itself from then on.
func (p *pod) endWithParent(parent TID, cs []*child) {
	p.t.work.Go(func() {
		ctx, cancel := context.WithCancel(p.t.ended)
		defer cancel()
		_ = p.t.whenGone(ctx, parent, func() {
			for _, c := range cs {
				if c != nil && !c.hasEnrolled() {
					_ = c.signal(syscall.SIGTERM)
				}
			}
		})
		for _, c := range cs {
			if c == nil {
				continue
			}
			select {
			case <-c.enrolled:
			case <-c.exited:
			case <-ctx.Done():
				return
			}
		}
	})
}

// endUnenrolled sends SIGTERM to programs that have not enrolled and that shall end with this task
// or one of its threads. It is called when the task exits.
func (p *pod) endUnenrolled() {
	for _, c := range p.running() {
		if !c.hasEnrolled() && slices.ContainsFunc(p.all(), func(t *Thread) bool { return t.ID() == c.endsWith }) {
			_ = c.signal(syscall.SIGTERM)
		}
	}
}

// started waits until the program of a child has been started, and returns it. It returns nil if
// the program could not be started.
func (c *child) started() *programs.Program {
	<-c.begun
	return c.program
}

// signal signals a program and the processes that it has started. It fails if the program has ended
// or could not be started.
func (c *child) signal(s syscall.Signal) error {
	if p := c.started(); p != nil {
		return p.Signal(s)
	}
	return os.ErrProcessDone
}

// foundStart is the start of this program by a launcher.
type foundStart struct {
	tmp TID
	start
}

// findStart finds the start of this process by a launcher. It returns nil if no launcher started
// the process.
func (t *Task) findStart(ctx context.Context) (*foundStart, error) {
	token := os.Getenv(EnvToken)
	if token == "" {
		return nil, nil
	}
	_ = os.Unsetenv(EnvToken) // programs that this process starts are not that child
	f, err := t.c.Find(ctx, t.match(typeStart, rocl.Match{attrToken: token}))
	if errors.Is(err, rocl.ErrNotFound) || errors.Is(err, rocl.ErrTooLarge) {
		return nil, nil // the launcher has ended or has given up, or no launcher made the token
	}
	if err != nil {
		return nil, err
	}
	s := &foundStart{tmp: f.ID}
	if err := codec.Decode([]byte(attr(f, attrStart)), &s.start); err != nil {
		return nil, fmt.Errorf("read the start by the launcher %v: %w", f.ID, err)
	}
	return s, nil
}

// reportStart tells the launcher that the program has enrolled.
func (t *Task) reportStart(ctx context.Context, s *foundStart) error {
	if _, err := ask[done](ctx, t, s.tmp, 0, enrolment{ID: t.ID()}); err != nil {
		return fmt.Errorf("tell the launcher %v: %w", s.tmp, err)
	}
	return nil
}
