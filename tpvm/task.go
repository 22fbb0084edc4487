// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
)

// Environment variables of a task.
const (
	// EnvVM names the virtual machine that Enrol joins, unless WithVM does.
	EnvVM = "TPVM_VM"
	// EnvToken names the start of a program by Spawn. Enrol finds the program's parent by it, and
	// unsets the variable.
	EnvToken = "TPVM_TOKEN"
)

// Values of the attribute "type".
const (
	typeTask     = "task"      // a process
	typePod      = "systhread" // the pod controller of a process
	typeExport   = "threaddef" // an exported function
	typeObserver = "observer"  // a process that is not listed
	typeThread   = "thread"    // a goroutine
	typeStart    = "tmp"       // a program that has been started and has not enrolled
	typeContext  = "msgctx"    // a message context
	typeInfo     = "mbox"      // an entry of the message box
	attrType     = "type"
	attrVM       = "vm"
	attrName     = "name"
	attrHost     = "host"
	attrNode     = "node"
	attrPod      = "systhread"
	attrPID      = "pid"
	attrParent   = "ptid"
	attrToken    = "token"
	attrStart    = "start"
	attrLaunch   = "launch"   // yes: the pod starts programs for any task
	attrObserves = "observes" // yes: an observer's pod, which keeps no entries of the message box for other tasks
	attrServedBy = "servedby" // what serves a pod; see Host.Launcher
	attrAdded    = "added"    // the name under which AddHosts added the host of a pod
	attrNumber   = "number"
	attrLauncher = "launcher" // the pod that has started a task
)

// TID identifies a task or a thread: it is the identifier of its resource. The zero TID identifies
// no task.
type TID = rocl.GID

// config holds the options of Enrol, ServePod and RunPod.
type config struct {
	c        *rocl.Context
	rocl     []rocl.Option
	vm, name string
	onSignal func(syscall.Signal)
	log      *slog.Logger
	exports  []namedFunc

	maxPrograms        int
	noLaunch, isHidden bool
	servesPod          bool // for ServePod

	starter  HostStarter // used by AddHosts
	env      []string    // for programs that the pod starts
	podAttrs rocl.Attrs  // of the pod, besides the attributes of every pod
	register []rocl.RegisterOption
	ready    func(TID)

	foundTime, infoTimeout time.Duration // for the pod of an added host, and of infoStore; shorter in tests
}

type namedFunc struct {
	name string
	f    ThreadFunc
}

// An Option changes one default of Enrol, ServePod or RunPod.
type Option func(*config)

// WithContext makes the task use the context c, which stays open after Exit. By default, and if c
// is nil, Enrol opens a context.
func WithContext(c *rocl.Context) Option { return func(f *config) { f.c = c } }

// WithRocl gives options for the context that Enrol opens.
func WithRocl(opts ...rocl.Option) Option {
	return func(f *config) { f.rocl = append(f.rocl, opts...) }
}

// WithRegister adds options to the registrations of the resources of the task and of its threads,
// such as rocl.MailboxMessages.
func WithRegister(opts ...rocl.RegisterOption) Option {
	return func(c *config) { c.register = append(c.register, opts...) }
}

// WithVM names the virtual machine that the task joins. Tasks of different virtual machines do
// not find each other. By default it is the value of EnvVM, or else the name of the user.
func WithVM(name string) Option { return func(f *config) { f.vm = name } }

// WithName sets the name under which the task is listed. The default is the name of its program.
func WithName(name string) Option { return func(f *config) { f.name = name } }

// WithSignal makes the task call f when another task signals or kills it. f runs in a goroutine of
// its own, perhaps before Enrol has returned. By default the signal is sent to the process.
func WithSignal(f func(syscall.Signal)) Option { return func(c *config) { c.onSignal = f } }

// WithLogger makes the task log to l: threads that fail or panic, handlers that panic, output of
// programs that could not be written, and the like. By default the task logs to slog.Default(). A
// nil l discards the log.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// WithExport makes Enrol export f under a name, until Exit. f gets its own Thread, and may run
// before Enrol has returned. A parent may spawn f as soon as the
// Spawn that started this program has returned. A call of Export may come too late for that.
func WithExport(name string, f ThreadFunc) Option {
	return func(c *config) { c.exports = append(c.exports, namedFunc{name, f}) }
}

// WithMaxPrograms limits how many programs started by this task, for itself and for other tasks,
// run at the same time. The default is 4096.
func WithMaxPrograms(n int) Option { return func(c *config) { c.maxPrograms = n } }

// WithoutLaunch prevents other tasks from starting programs through this one. Use it for a task
// that soon ends.
func WithoutLaunch() Option { return func(c *config) { c.noLaunch = true } }

// Observing makes the task an observer: Tasks does not list it, and other tasks cannot start
// programs through it. Use it for monitoring commands.
func Observing() Option { return func(c *config) { c.noLaunch, c.isHidden = true, true } }

// A Task is a process of the virtual machine. Its Thread stands for the process itself. The methods
// of both may be called by several goroutines.
type Task struct {
	*Thread
	*config      // c is not nil once newTask has returned
	owns    bool // the task opened the context, and closes it
	host    string
	node    string
	pod     *pod
	ended   context.Context // done after Exit
	end     context.CancelFunc
	work    goroutines // of the task; they end when ended is done

	launch   *foundStart   // of this process, if its output is gathered; else nil
	tookOver chan struct{} // closed when this process passes its output on

	lost losses // used if the task owns the context

	packers      sync.Pool // of *pack.Buffer
	typedPackers sync.Pool // of *pack.Buffer for typed messages
	messages     sync.Pool // of *Message

	mu         sync.Mutex
	exited     bool
	output     output       // the place for the output of programs that this task spawns
	catch      *collector   // the collector of that output; nil: a collector of another task, or none
	collectors []*collector // of this task that have not ended
	own        []*os.File   // the reading ends of the pipes to which this process writes

	groupsMu sync.Mutex
	agents   map[string]*groupAgent // by the names of their groups
}

// Enrol joins the virtual machine: it registers the process as a task, and starts its pod
// controller. When Enrol returns in a program that Spawn has started, the parent knows the task.
// The caller must call Exit in the end.
//
// A process may enrol several times, each time as a task of its own. Only the first is the task
// that its parent's Spawn returns.
func Enrol(ctx context.Context, opts ...Option) (t *Task, err error) {
	f := configure(opts)
	if t, err = newTask(ctx, f); err != nil {
		return nil, fmt.Errorf("tpvm: enrol: %w", err)
	}
	if err := t.enrol(ctx, f); err != nil {
		return nil, fmt.Errorf("tpvm: enrol: %w", t.abandon(err))
	}
	return t, nil
}

// configure returns the configuration that the options and the environment describe.
func configure(opts []Option) *config {
	f := &config{vm: os.Getenv(EnvVM), name: filepath.Base(os.Args[0]), maxPrograms: mostPrograms, log: slog.Default(), foundTime: foundTime, infoTimeout: infoTimeout}
	for _, o := range opts {
		if o != nil {
			o(f)
		}
	}
	if f.vm == "" {
		f.vm = userName()
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if f.onSignal == nil {
		f.onSignal = func(s syscall.Signal) { signalSelf(s) }
	}
	return f
}

// newTask returns a task that has a context, and no resources.
func newTask(ctx context.Context, f *config) (t *Task, err error) {
	t = &Task{config: f, owns: f.c == nil, tookOver: make(chan struct{})}
	if t.owns {
		opts := append([]rocl.Option{
			rocl.WithUndelivered(t.undelivered), rocl.WithLinger(lingerMost), rocl.WithMember(cluster.Environment()),
		}, f.rocl...)
		if t.c, err = rocl.Open(ctx, opts...); err != nil {
			return nil, err
		}
	}
	t.node = fmt.Sprintf("%012x", uint64(t.c.ID().Node()))
	t.ended, t.end = context.WithCancel(context.Background())
	if t.host, err = os.Hostname(); err != nil || t.host == "" {
		t.host = t.node
	}
	return t, nil
}

// undelivered records a report of the context, for Exit. Messages of the pod, and messages with
// ownTag, are the library's own.
func (t *Task) undelivered(u rocl.Undelivered) {
	t.lost.record(u, u.Tag&ownTag != 0 || u.From == t.pod.r.ID())
}

// lingerMost is for how long Close of the task's own context waits for messages to be delivered.
// Exit has waited for the program's messages before, as long as its ctx allows. A task that could
// not enrol has sent none.
const lingerMost = time.Second

// abandon withdraws the resources of a task that could not enrol for the reason err. It returns
// err, joined with an error of closing the context.
func (t *Task) abandon(err error) error {
	t.end()
	if t.pod != nil {
		t.withdraw()
	}
	if t.owns {
		err = errors.Join(err, t.c.Close())
	}
	return err
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// enrol starts the pod, registers the main thread and the exports, and reports to the launcher that
// has started the process, if there is one.
func (t *Task) enrol(ctx context.Context, conf *config) error {
	if err := t.startPod(ctx); err != nil {
		return err
	}
	start, err := t.findStart(ctx)
	if err != nil {
		return err
	}
	f := family{name: conf.name, args: os.Args[1:]}
	more := rocl.Attrs{attrPID: strconv.Itoa(os.Getpid())}
	if start != nil {
		f.parentage = start.parentage
		more[attrLauncher] = start.Launcher.String()
	}
	typ := typeTask
	if conf.isHidden {
		typ = typeObserver
	}
	th, err := t.newThread(ctx, typ, f, more)
	if err != nil {
		return err
	}
	th.ctx, th.isMain = t.ended, true
	t.Thread = th
	t.pod.add(th)
	for _, x := range conf.exports {
		if _, err := t.Export(ctx, x.name, x.f); err != nil {
			return err
		}
	}
	if start == nil {
		return nil
	}
	t.output = start.Output
	t.watchLauncher(start)
	if start.EndWithParent {
		if err := t.whenGone(t.ended, start.Parent, func() { t.onSignal(syscall.SIGTERM) }); err != nil {
			return err
		}
	}
	return t.reportStart(ctx, start)
}

// whenGone calls f in a goroutine of the task when a task, a thread or a pod has ended, unless ctx
// ends before.
func (t *Task) whenGone(ctx context.Context, id TID, f func()) error {
	r, err := t.c.Register(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := r.Monitor(ctx, id, 0); err != nil {
		return errors.Join(err, r.Close())
	}
	if !t.work.goes(func() {
		defer r.Close()
		if m, err := r.Recv(ctx); err == nil {
			m.Release()
			f()
		}
	}) {
		return errors.Join(ErrExited, r.Close())
	}
	return nil
}

// attrs returns the attributes of a resource of the task, more included.
func (t *Task) attrs(typ string, more rocl.Attrs) rocl.Attrs {
	a := rocl.Attrs{attrType: typ, attrVM: t.vm, attrHost: t.host, attrNode: t.node}
	if t.pod != nil {
		a[attrPod] = t.pod.r.ID().String()
	}
	maps.Copy(a, more)
	return a
}

// match returns a pattern for resources of the virtual machine, more included.
func (t *Task) match(typ string, more rocl.Match) rocl.Match {
	m := rocl.Match{attrType: typ, attrVM: t.vm}
	maps.Copy(m, more)
	return m
}

// findAll yields the resources that match on the nodes that answer. It leaves out rocl.ErrPartial,
// so what it does not yield is not certain to be missing; see findNoting.
func (t *Task) findAll(ctx context.Context, m rocl.Match, opts ...rocl.FindOption) iter.Seq2[rocl.Found, error] {
	return t.findNoting(ctx, new(error), m, opts...)
}

// findNoting is findAll that stores the error that it leaves out in partial. The caller makes its
// error with absent if it does not find what it needs.
func (t *Task) findNoting(ctx context.Context, partial *error, m rocl.Match, opts ...rocl.FindOption) iter.Seq2[rocl.Found, error] {
	return func(yield func(rocl.Found, error) bool) {
		for f, err := range t.c.FindAll(ctx, m, opts...) {
			if errors.Is(err, rocl.ErrPartial) {
				*partial = err
				return
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// absent returns the error of a look-up that did not find what it needs: none. If partial is not
// nil, a node that did not answer may have it, and the error matches rocl.ErrPartial too.
func absent(none, partial error) error {
	if partial == nil {
		return none
	}
	return fmt.Errorf("%w: %w", none, partial)
}

// VM returns the name of the virtual machine.
func (t *Task) VM() string { return t.vm }

// Host returns the name of the machine that the task runs on.
func (t *Task) Host() string { return t.host }

// Rocl returns the rocl context on which the task runs, for features that this package does not
// offer. Do not close it: Exit does, unless WithContext gave it.
func (t *Task) Rocl() *rocl.Context { return t.c }

// A ThreadFunc is the function of a thread. When it returns, the thread has ended. ctx ends when
// the thread is killed and when its task exits; the function should return soon then. A panic, and
// an error that it returns before ctx has ended, are logged; see WithLogger. Notify tells the
// thread's parent of the end, but not of the error.
type ThreadFunc func(ctx context.Context, t *Thread) error

// Export lets the tasks of the virtual machine start f as threads of this task, by name. The name
// can be spawned until the returned Closer is closed or the task exits. Running threads go on after
// Close. Several tasks may export the same name: Spawn chooses.
func (t *Task) Export(ctx context.Context, name string, f ThreadFunc) (io.Closer, error) {
	switch {
	case name == "":
		return nil, fmt.Errorf("tpvm: export: %w", errNoName)
	case f == nil:
		return nil, fmt.Errorf("tpvm: export %q: %w", name, errNoFunc)
	}
	x := &export{t: t, name: name, f: f}
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	if t.ended.Err() != nil {
		return nil, fmt.Errorf("tpvm: export %q: %w", name, ErrExited)
	}
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

// An export is an exported function of a task.
type export struct {
	t    *Task
	r    *rocl.Resource
	name string
	f    ThreadFunc
}

// Close ends the export. Running threads go on.
func (x *export) Close() error {
	p := x.t.pod
	p.mu.Lock()
	if p.exports[x.name] == x {
		delete(p.exports, x.name)
	}
	p.mu.Unlock()
	return x.r.Close()
}

// Exit leaves the virtual machine. It ends the task's threads and waits for them. It waits for the
// output of the programs that Catchout gathers, and until the messages that the task has sent are
// delivered. Messages to tasks and threads that have ended are not waited for, and are no error.
// The process goes on.
//
// If ctx ends first, Exit returns the cause, even if a thread has not returned. If messages were
// lost for another reason, such as a host out of reach, the error names their receivers.
func (t *Task) Exit(ctx context.Context) (err error) {
	t.mu.Lock()
	exited := t.exited
	t.exited = true
	t.mu.Unlock()
	if exited {
		return nil
	}
	defer wrap(&err, "tpvm: exit %v", t.ID())
	return t.leave(ctx)
}

// leave ends the task: its output, its threads, its resources, and the context that it owns.
func (t *Task) leave(ctx context.Context) error {
	drained := t.drain(ctx)
	t.pod.infos.moveEntries(ctx)
	t.end()
	withdrawn := make(chan struct{})
	go func() {
		defer close(withdrawn)
		t.withdraw()
	}()
	var flushed, closed error
	select {
	case <-withdrawn:
		flushed = t.c.Flush(ctx)
	case <-ctx.Done(): // a thread does not return, or no directory answers
		flushed = context.Cause(ctx)
	}
	if t.owns {
		closed = t.c.Close()
	}
	return errors.Join(drained, t.lost.err(ctx, flushed, closed))
}

// withdraw ends the threads and closes the resources of the task.
func (t *Task) withdraw() {
	for _, th := range t.pod.all() {
		th.kill(ErrExited)
	}
	t.work.Wait()
	t.pod.infos.close()
	t.disownOutput()
	for _, th := range slices.Backward(t.pod.all()) {
		_ = th.r.Close()
	}
	for _, r := range t.pod.registered() {
		_ = r.Close()
	}
	t.mu.Lock()
	collectors := slices.Clone(t.collectors)
	t.mu.Unlock()
	for _, c := range collectors {
		_ = c.close()
	}
	_ = t.pod.r.Close()
}
