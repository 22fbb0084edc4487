// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/rocl-go/rocl"
)

// A Thread is a participant in the virtual machine: a goroutine that Spawn started, or the process
// itself. Every task and thread can send messages to its identifier. Its methods may be called by
// several goroutines.
type Thread struct {
	task       *Task
	r          *rocl.Resource
	family     family
	isMain     bool // the Thread is the process itself
	ctx        context.Context
	cancel     context.CancelCauseFunc
	msgContext atomic.Uint32
	groups     threadGroups
	selectors  selectors
	handlers   atomic.Pointer[handlers] // nil: no handler has been added
}

// family is what a thread learns when it starts: its name, its arguments and its parentage.
type family struct {
	name string
	args []string
	parentage
}

// parentage says which Spawn has started a thread or a program. It is zero if the thread or program
// was started by hand.
type parentage struct {
	Parent     TID
	Spawn      uint64 // number of the Spawn, for the pod
	Pod        TID    // of the parent's task
	MsgContext uint32 // in which the thread or program begins
	NoParent   bool   // the thread or program does not see Parent
}

// children returns the parentage of the threads or programs that a Spawn of the thread starts.
func (t *Thread) children(number uint64, s *spawn) parentage {
	return parentage{Parent: t.ID(), Spawn: number, Pod: t.task.pod.r.ID(), MsgContext: t.msgContext.Load(), NoParent: s.noParent}
}

// newThread registers a thread. more are further attributes of its resource.
func (t *Task) newThread(ctx context.Context, typ string, f family, more rocl.Attrs) (*Thread, error) {
	a := t.attrs(typ, more)
	a[attrName] = f.name
	if !f.Parent.IsZero() {
		a[attrParent] = f.Parent.String()
	}
	r, err := t.c.Register(ctx, a, t.register...)
	if err != nil {
		return nil, err
	}
	th := &Thread{task: t, r: r, family: f}
	th.msgContext.Store(f.MsgContext & (1<<contextBits - 1))
	return th, nil
}

// ID returns the identifier of the thread.
func (t *Thread) ID() TID { return t.r.ID() }

// Parent returns the task or thread that spawned the thread. It returns the zero TID if the thread
// was started by hand, or spawned with NoParent.
func (t *Thread) Parent() TID {
	if t.family.NoParent {
		return TID{}
	}
	return t.family.Parent
}

// Name returns the name under which the thread was spawned.
func (t *Thread) Name() string { return t.family.name }

// Args returns the arguments that the thread's parent gave.
func (t *Thread) Args() []string { return slices.Clone(t.family.args) }

// Task returns the task in whose process the thread runs.
func (t *Thread) Task() *Task { return t.task }

// Resource returns the resource of the thread, for features that this package does not offer.
// Messages whose tag has the highest bit set are the library's.
func (t *Thread) Resource() *rocl.Resource { return t.r }

// String returns the name and the identifier.
func (t *Thread) String() string { return fmt.Sprintf("%s (%v)", t.family.name, t.ID()) }

// Siblings returns the identifiers of the tasks or threads that one Spawn started, this one
// included. The order is the same for each of them. Siblings waits until that Spawn has started
// all. It returns none if the thread was started by hand, and fails with rocl.ErrGone if the task
// that spawned them has ended.
func (t *Thread) Siblings(ctx context.Context) (_ []TID, err error) {
	if t.family.Spawn == 0 {
		return nil, nil
	}
	defer wrap(&err, "tpvm: find the siblings of %v", t.ID())
	return ask[[]TID](ctx, t.task, t.family.Pod, podSiblings, siblings{Spawn: t.family.Spawn})
}

// errGoexit is the error of a thread whose function has called runtime.Goexit.
var errGoexit = errors.New("tpvm: the thread's goroutine ended")

// panicError is the error of a thread whose function has panicked.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// failed logs err, with which the function of the thread has ended. It does not log an error, other
// than a panic, of a thread that was told to end.
func (t *Thread) failed(err error) {
	var p *panicError
	if err != nil && (t.ctx.Err() == nil || errors.As(err, &p)) {
		t.task.log.Error("tpvm: a thread failed", "thread", t.String(), "err", err)
	}
}

// run calls the function of the thread. A panic of f becomes an error.
func (t *Thread) run(f ThreadFunc) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return f(t.ctx, t)
}

// kill ends the thread: its context, its resource and its groups, so that monitors of the thread
// are told. The resource ends first: a member that has been told that the thread is no member any
// more must not be able to send to it. The thread's function goes on until it looks at its context.
func (t *Thread) kill(cause error) {
	if t.cancel != nil {
		t.cancel(cause)
	}
	if !t.isMain {
		_ = t.r.Close()
	}
	t.endGroups()
}

// A MsgContext separates the messages of one purpose, such as a library's, from all other messages
// with the same tags. A thread sends and receives in one message context at a time. A thread that
// was started by hand begins in the zero MsgContext.
type MsgContext uint32

// NewContext returns a message context that no other task of the virtual machine has. It lasts
// until FreeContext, or until the task exits.
func (t *Thread) NewContext(ctx context.Context) (MsgContext, error) {
	return t.task.pod.newContext(ctx)
}

// FreeContext gives a message context back. It fails with ErrBadParam for a message context that
// another task has made.
func (t *Thread) FreeContext(c MsgContext) error { return t.task.pod.freeContext(c) }

// SetContext chooses the message context in which the thread sends and receives, and returns the
// previous one.
func (t *Thread) SetContext(c MsgContext) (old MsgContext, err error) {
	if c >= 1<<contextBits {
		return 0, fmt.Errorf("tpvm: set message context %d: %w", c, ErrBadParam)
	}
	return MsgContext(t.msgContext.Swap(uint32(c))), nil
}

// MsgContext returns the message context in which the thread sends and receives. The threads and
// programs that it spawns begin in the same one.
func (t *Thread) MsgContext() MsgContext { return MsgContext(t.msgContext.Load()) }

func (c MsgContext) String() string { return strconv.FormatUint(uint64(c), 10) }
