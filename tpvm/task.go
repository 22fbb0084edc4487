// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/rocl-go/rocl"
)

// Environment variables of a task.
const (
	// EnvVM names the virtual machine that Enrol joins, unless WithVM does.
	EnvVM = "TPVM_VM"
	// EnvToken names the start of a program by Spawn. Enrol finds the program's parent by it,
	// and unsets it.
	EnvToken = "TPVM_TOKEN"
)

// Values of the attribute "type".
const (
	typeTask     = "task"      // a process
	typePod      = "systhread" // the pod controller of a process
	typeExport   = "threaddef" // an exported function
	typeThread   = "thread"    // a goroutine
	typeStart    = "tmp"       // a program that has been started and has not enrolled
	typeOutput   = "output"    // a task that gathers the output of others
	typeContext  = "msgctx"    // a message context
	typeInfo     = "mbox"      // an entry of the mailbox
	attrType     = "type"
	attrVM       = "vm"
	attrName     = "name"
	attrHost     = "host"
	attrNode     = "node"
	attrPod      = "systhread"
	attrPID      = "pid"
	attrParent   = "parent"
	attrParentOf = "ptid"
	attrToken    = "token"
	attrStart    = "start"
	attrLaunch   = "launch"
	attrArch     = "arch"
	attrNumber   = "number"
)

// TID identifies a task or a thread: it is the identifier of its resource. The zero TID
// identifies none.
type TID = rocl.GID

type config struct {
	c        *rocl.Context
	rocl     []rocl.Option
	vm, name string
	onSignal func(syscall.Signal)
	log      *slog.Logger
}

// An Option changes one default of Enrol.
type Option func(*config)

// WithContext makes the task a participant of its own in the context c, which stays open
// after Exit. By default Enrol opens a context.
func WithContext(c *rocl.Context) Option { return func(f *config) { f.c = c } }

// WithRocl gives options for the context that Enrol opens.
func WithRocl(opts ...rocl.Option) Option {
	return func(f *config) { f.rocl = append(f.rocl, opts...) }
}

// WithVM names the virtual machine that the task joins. Tasks of different virtual machines do
// not find each other. By default it is the value of EnvVM, or else the name of the user.
func WithVM(name string) Option { return func(f *config) { f.vm = name } }

// WithName gives the name under which the task is listed, by default that of its program.
func WithName(name string) Option { return func(f *config) { f.name = name } }

// WithSignal replaces what the task does when another task signals or kills it. f runs in a
// goroutine of its own. By default the signal is sent to the process.
func WithSignal(f func(syscall.Signal)) Option { return func(c *config) { c.onSignal = f } }

// WithLogger sends what the task logs to l: threads that fail, programs that end with an
// error. Nothing is logged by default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// A Task is a process of the virtual machine. Its methods, and those of its Thread, which
// stands for the process itself, may be called by several goroutines.
type Task struct {
	*Thread
	c      *rocl.Context
	owns   bool // the context
	vm     string
	host   string
	node   string
	pod    *pod
	output TID // of the task that gathers the output of programs that this one starts
	log    *slog.Logger
	ended  context.Context // until Exit
	end    context.CancelFunc
	work   sync.WaitGroup // goroutines of the task, which ended ends

	packers sync.Pool // of *pack.Buffer

	mu     sync.Mutex
	exited bool
}

// Enrol joins the virtual machine: it registers the process as a task, and starts its pod
// controller. A program that Spawn has started is known to its parent when Enrol returns.
// Exit must be called in the end.
//
// A process may enrol several times; each task is a participant of its own. Only the first is
// the one that its parent's Spawn returns.
func Enrol(ctx context.Context, opts ...Option) (t *Task, err error) {
	f := config{vm: os.Getenv(EnvVM), name: filepath.Base(os.Args[0]), log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(&f)
	}
	if f.vm == "" {
		f.vm = userName()
	}
	if f.onSignal == nil {
		f.onSignal = func(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s) }
	}
	c := f.c
	if c == nil {
		if c, err = rocl.Open(ctx, f.rocl...); err != nil {
			return nil, fmt.Errorf("tpvm: enrol: %w", err)
		}
	}
	t = &Task{c: c, owns: f.c == nil, vm: f.vm, node: fmt.Sprintf("%012x", uint64(c.ID().Node())), log: f.log}
	t.ended, t.end = context.WithCancel(context.Background())
	if t.host, err = os.Hostname(); err != nil || t.host == "" {
		t.host = t.node
	}
	if err := t.enrol(ctx, f.name, f.onSignal); err != nil {
		t.end()
		t.work.Wait()
		if t.owns {
			err = errors.Join(err, c.Close())
		}
		return nil, fmt.Errorf("tpvm: enrol: %w", err)
	}
	return t, nil
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

func (t *Task) enrol(ctx context.Context, name string, onSignal func(syscall.Signal)) error {
	if err := t.startPod(ctx, onSignal); err != nil {
		return err
	}
	start, err := t.findStart(ctx)
	if err != nil {
		return err
	}
	f := family{name: name, args: os.Args[1:]}
	if start != nil {
		f.parent, f.spawn, f.pod = start.Parent, start.Spawn, start.Pod
	}
	th, err := t.newThread(ctx, typeTask, f, rocl.Attrs{attrPID: strconv.Itoa(os.Getpid())})
	if err != nil {
		return err
	}
	th.ctx = t.ended
	t.Thread = th
	t.pod.add(th)
	if start == nil {
		return nil
	}
	th.msgContext.Store(start.MsgContext & (1<<contextBits - 1))
	t.output = start.Output
	if start.EndWithParent {
		if err := t.endWith(start.Parent); err != nil {
			return err
		}
	}
	return t.tellStart(ctx, start)
}

// endWith has the process get SIGTERM when its parent has ended.
func (t *Task) endWith(parent TID) error {
	r, err := t.c.Register(t.ended, nil)
	if err != nil {
		return err
	}
	if _, err := r.Monitor(t.ended, parent, 0); err != nil {
		return errors.Join(err, r.Close())
	}
	t.work.Go(func() {
		defer r.Close()
		if m, err := r.Recv(t.ended); err == nil {
			m.Release()
			t.pod.onSignal(syscall.SIGTERM)
		}
	})
	return nil
}

// attrs returns the attributes of a resource of the task.
func (t *Task) attrs(typ string, more rocl.Attrs) rocl.Attrs {
	a := rocl.Attrs{attrType: typ, attrVM: t.vm, attrHost: t.host, attrNode: t.node}
	if t.pod != nil {
		a[attrPod] = t.pod.r.ID().String()
	}
	maps.Copy(a, more)
	return a
}

// match returns a pattern for resources of the virtual machine.
func (t *Task) match(typ string, more rocl.Match) rocl.Match {
	m := rocl.Match{attrType: typ, attrVM: t.vm}
	maps.Copy(m, more)
	return m
}

// VM returns the name of the virtual machine.
func (t *Task) VM() string { return t.vm }

// Host returns the name of the machine that the task runs on.
func (t *Task) Host() string { return t.host }

// Context returns the task's rocl context.
func (t *Task) Rocl() *rocl.Context { return t.c }

// A ThreadFunc is what a thread does. When it returns, the thread has ended. ctx ends when the
// thread is killed and when its task exits; the function should return soon then. An error that
// it returns, and a panic, are logged.
type ThreadFunc func(ctx context.Context, t *Thread) error

// Export lets the tasks of the virtual machine start f as threads of this task, by name. The
// name is gone when the returned Closer has been closed, or the task has exited; threads that
// run go on. Several tasks may export the same name: Spawn chooses.
func (t *Task) Export(ctx context.Context, name string, f ThreadFunc) (io.Closer, error) {
	if name == "" || f == nil {
		return nil, fmt.Errorf("tpvm: export %q: %w", name, ErrBadParam)
	}
	x := &export{t: t, name: name, f: f}
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	if _, ok := t.pod.exports[name]; ok {
		return nil, fmt.Errorf("tpvm: export %q: %w", name, ErrExported)
	}
	r, err := t.c.Register(ctx, t.attrs(typeExport, rocl.Attrs{attrName: name}))
	if err != nil {
		return nil, fmt.Errorf("tpvm: export %q: %w", name, err)
	}
	x.r = r
	t.pod.exports[name] = x
	return x, nil
}

type export struct {
	t    *Task
	r    *rocl.Resource
	name string
	f    ThreadFunc
}

func (x *export) Close() error {
	p := x.t.pod
	p.mu.Lock()
	if p.exports[x.name] == x {
		delete(p.exports, x.name)
	}
	p.mu.Unlock()
	return x.r.Close()
}

// Exit leaves the virtual machine. It ends the task's threads and waits for them, and for the
// output of the programs that Catchout gathers. Messages that the task has sent and that have
// not been delivered are waited for, until ctx ends, but for those to tasks and threads that have
// ended. The process goes on. When ctx ends, Exit returns with its cause, also where a thread does
// not return.
func (t *Task) Exit(ctx context.Context) error {
	t.mu.Lock()
	exited := t.exited
	t.exited = true
	t.mu.Unlock()
	if exited {
		return nil
	}
	var errs []error
	errs = append(errs, t.pod.drain(ctx))
	t.pod.infos.handOver(ctx)
	t.end()
	withdrawn := make(chan struct{})
	go func() {
		defer close(withdrawn)
		t.withdraw()
	}()
	select {
	case <-withdrawn:
		errs = append(errs, delivered(t.c.Flush(ctx)))
	case <-ctx.Done(): // a thread does not return, or no directory answers
		errs = append(errs, context.Cause(ctx))
	}
	if t.owns {
		errs = append(errs, delivered(t.c.Close()))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tpvm: exit %v: %w", t.ID(), err)
	}
	return nil
}

// withdraw ends the threads and withdraws what the task has registered.
func (t *Task) withdraw() {
	for _, th := range t.pod.all() {
		th.kill(ErrExited)
	}
	t.work.Wait()
	t.pod.infos.close()
	for _, th := range slices.Backward(t.pod.all()) {
		_ = th.r.Close()
	}
	_ = t.pod.r.Close()
}

// delivered returns err, the outcome of a flush, unless all that it says is that receivers have
// ended: a worker that was killed is no fault of the task that exits.
func delivered(err error) error {
	if errors.Is(err, rocl.ErrGone) && !errors.Is(err, rocl.ErrUnreachable) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
