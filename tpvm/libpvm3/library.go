// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/libpvm3/numbers"
	"github.com/rocl-go/rocl/tpvm/pack"
)

const (
	patience = 30 * time.Second // for what the library asks other tasks
	farewell = 5 * time.Second  // for messages that wait when the process ends

	// envNoParent, in the environment of a program, tells it that it was spawned with
	// PvmNoSpawnParent.
	envNoParent = "TPVM_NO_PARENT"

	// envEnrolTime is how long pvm_spawn waits for programs to enrol, such as "30s".
	envEnrolTime     = "TPVM_ENROL_TIME"
	defaultEnrolTime = 10 * time.Second
)

// A library is the state of the C library in this process.
type library struct {
	mu      sync.Mutex // not held while a call waits, or a function of the program runs
	task    *tpvm.Task // nil: not enrolled
	c       *rocl.Context
	numbers *numbers.Numbers
	tid     int
	family  family

	buffers    bufferTable
	pending    []*buffer // received from the message box, not yet by the program
	context    int       // the message context
	handlers   handlers
	match      matcher   // of pvm_recvf, or nil
	told       []*buffer // messages of pvm_notify, not yet given to handlers
	notices    map[notice]*watch
	hostsAdded hostsAdded
	// watchesHosts: messages of NotifyHosts may come
	watchesHosts bool
	options      [optionCount]int
	errno        *int32
	program
}

// A program is what the C side does for the library.
type program struct {
	environ func() []string // the variables that pvm_export has named
	abort   func()
}

// family is what is known of the start of the task.
type family struct {
	parent   int // or noParent, parentNotSet
	siblings []int
}

// A matcher is the program's function for pvm_recvf.
type matcher func(bufid, tid, tag int) int

// A notice is one task or host of a pvm_notify.
type notice struct{ what, tag, tid int }

// A watch is what waits for the end of the task or host of a notice.
type watch struct {
	times int // the program has asked
	stop  func()
}

// hostsAdded is the pvm_notify of PvmHostAdd, of which there is one at a time.
type hostsAdded struct {
	tag, left int // left: messages to come, or less than 0 for all
	stop      func()
}

func newLibrary(errno *int32, p program) *library {
	l := &library{errno: errno, program: p, notices: map[notice]*watch{}}
	l.options = defaultOptions
	l.handlers.free = -1
	return l
}

// call makes a call of the program: its result, or the code of its error, which is also
// printed unless the program has set PvmAutoErr to 0.
func (l *library) call(name string, f func() (int, error)) int {
	l.mu.Lock()
	n, err := f()
	l.mu.Unlock()
	if err != nil {
		return l.fail(name+"()", codeOf(err))
	}
	return n
}

// task calls f as call does, after it has enrolled the process.
func (l *library) enrolled(name string, f func(ctx context.Context) (int, error)) int {
	return l.call(name, func() (int, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.enrol(ctx); err != nil {
			return 0, err
		}
		return f(ctx)
	})
}

// quiet is enrolled for calls whose errors are not printed, as in PVM.
func (l *library) quiet(f func(ctx context.Context) (int, error)) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := l.enrol(ctx)
	n := 0
	if err == nil {
		n, err = f(ctx)
	}
	if err != nil {
		*l.errno = int32(codeOf(err))
		return int(codeOf(err))
	}
	return n
}

// fail sets pvm_errno, and prints the error or ends the process as PvmAutoErr says.
func (l *library) fail(what string, c code) int {
	*l.errno = int32(c)
	if l.options[optAutoErr] > 0 {
		l.perror(what)
	}
	switch l.options[optAutoErr] {
	case 2:
		l.atExit()
		os.Exit(int(c) & 0xff)
	case 3:
		l.abort()
	}
	return int(c)
}

// perror prints the last error.
func (l *library) perror(text string) {
	who := fmt.Sprintf("pid%d", os.Getpid())
	if l.tid != 0 {
		who = fmt.Sprintf("t%x", l.tid)
	}
	fmt.Fprintf(os.Stderr, "libpvm [%s]: %s: %v\n", who, text, code(*l.errno))
}

// enrol enrols the process as a task, unless it is one.
func (l *library) enrol(ctx context.Context) error {
	if l.task != nil {
		return nil
	}
	vm := os.Getenv(tpvm.EnvVM)
	if vm == "" {
		if u, err := user.Current(); err == nil {
			vm = u.Username
		} else {
			vm = strconv.Itoa(os.Getuid())
		}
	}
	c, n, err := claim(ctx, vm)
	if err != nil {
		return sysErr
	}
	t, err := tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM(vm), tpvm.WithLogger(nil))
	if err == nil {
		l.tid, err = n.Number(ctx, t.ID())
	}
	if err != nil {
		_ = c.Close()
		return sysErr
	}
	isFirst := l.family.parent == 0
	l.task, l.c, l.numbers = t, c, n
	if isFirst {
		l.context = int(t.MsgContext())
	} else if _, err := t.SetContext(tpvm.MsgContext(l.context)); err != nil {
		return err
	}
	l.family = family{parent: int(noParent)}
	if p := t.Parent(); !p.IsZero() {
		if l.family.parent, err = n.Number(ctx, p); err != nil {
			return err
		}
	}
	if os.Getenv(envNoParent) != "" {
		_ = os.Unsetenv(envNoParent)
		l.family.parent = int(parentNotSet)
	}
	l.handlers.enrol()
	*l.errno = int32(notFound) // of the tracer, which PVM looks for when a task enrols
	return nil
}

// claim opens a context whose task has a number of its own.
func claim(ctx context.Context, vm string) (*rocl.Context, *numbers.Numbers, error) {
	for {
		c, err := rocl.Open(ctx)
		if err != nil {
			return nil, nil, err
		}
		n := numbers.New(c, vm)
		if err = n.Claim(ctx); err == nil {
			return c, n, nil
		}
		_ = c.Close()
		if !errors.Is(err, rocl.ErrExists) {
			return nil, nil, err
		}
	}
}

// exit leaves the virtual machine. The buffers stay.
func (l *library) exit(ctx context.Context) error {
	if l.task == nil {
		return nil
	}
	for _, b := range l.buffers.all {
		if b == nil || b.msg == nil {
			continue
		}
		_ = l.source(ctx, b)
		p := slices.Clone(b.in.Payload())
		off := len(p) - b.in.Remaining()
		if in, err := pack.NewReader(b.in.Encoding(), b.in.Typed(), p); err == nil {
			_ = in.UnpackBytes(make([]byte, off)) // goes on where the program is
			b.in = in
		}
		b.msg.Release()
		b.msg = nil
	}
	l.withdraw()
	_ = l.task.Exit(ctx) // tells of messages to tasks that have ended, which vanish
	_ = l.c.Close()
	l.task, l.c, l.tid = nil, nil, 0
	l.pending, l.told = nil, nil
	l.handlers.exit()
	return nil
}

// atExit leaves the virtual machine when the process ends without pvm_exit, so that what it
// has sent arrives.
func (l *library) atExit() {
	if !l.mu.TryLock() { // another thread is in a call
		return
	}
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_ = l.exit(ctx)
}

// lookup returns the task with a number. ok is false if no task has it.
func (l *library) lookup(ctx context.Context, tid int) (id tpvm.TID, ok bool, err error) {
	if !numbers.Valid(tid) {
		return id, false, badParam
	}
	id, err = l.numbers.Task(ctx, tid)
	if errors.Is(err, rocl.ErrNotFound) {
		return id, false, nil
	}
	return id, err == nil, err
}

// send sends the active send buffer. As with PVM, a message to a task that has ended vanishes.
func (l *library) send(ctx context.Context, tid, tag int) error {
	if tag < 0 {
		return badParam
	}
	b, err := l.buffers.toPack()
	if err != nil {
		return err
	}
	if err := l.sendTo(ctx, tid, tag, b); err != nil {
		return err
	}
	l.stamp(tag)
	return nil
}

// stamp notes what pvm_bufinfo tells of the active send buffer after it was sent.
func (l *library) stamp(tag int) {
	i := &l.buffers.send.info
	i.tag, i.src, i.ctx = tag, l.tid, l.context
}

func (l *library) sendTo(ctx context.Context, tid, tag int, b *pack.Buffer) error {
	id, ok, err := l.lookup(ctx, tid)
	if err != nil || !ok {
		return err
	}
	err = l.unlocked(func(t *tpvm.Task) error { return t.Send(context.Background(), id, tag, b) })
	if tpvm.IsGone(err) {
		l.numbers.Forget(tid) // another task may get the number
		return nil
	}
	return err
}

// unlocked calls f without the lock, so that other threads of the program go on.
func (l *library) unlocked(f func(t *tpvm.Task) error) error {
	t := l.task
	l.mu.Unlock()
	defer l.mu.Lock()
	return f(t)
}

// mcast sends the active send buffer to tasks, except to this one.
func (l *library) mcast(ctx context.Context, tids []int, tag int) error {
	b, err := l.buffers.toPack()
	if err != nil {
		return err
	}
	if tag < 0 {
		return badParam
	}
	ids := make([]tpvm.TID, 0, len(tids))
	for _, tid := range tids {
		id, ok, err := l.lookup(ctx, tid)
		if err != nil {
			return err
		}
		if ok && tid != l.tid && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) > 0 {
		err = l.unlocked(func(t *tpvm.Task) error { return t.Mcast(context.Background(), ids, tag, b) })
		if err != nil && !onlyEnds(err) {
			return err
		}
	}
	l.stamp(tag)
	return nil
}

// onlyEnds reports whether an error of Mcast tells of tasks that have ended, and of nothing else.
func onlyEnds(err error) bool {
	var es rocl.SendErrors
	if !errors.As(err, &es) {
		return tpvm.IsGone(err)
	}
	for _, e := range es.Unwrap() {
		if !tpvm.IsGone(e) {
			return false
		}
	}
	return true
}

// filter returns the filter for messages from a task with a tag in the message context, and
// whether a task has the number.
func (l *library) filter(ctx context.Context, tid, tag int) (f tpvm.Filter, ok bool, err error) {
	if tag < -1 || tid < -1 && tid&0x40000000 != 0 { // PVM's numbers of its own processes have the highest bit only
		return f, false, badParam
	}
	f = tpvm.Filter{Tag: tag, Context: tpvm.MsgContext(l.context)}
	if tid == -1 || isPvmd(tid) { // messages of pvm_notify come from the tasks, or from this one
		return f, true, nil
	}
	f.From, ok, err = l.lookup(ctx, tid)
	return f, ok, err
}

// matches reports whether a message is one that the filter selects.
func (b *buffer) matches(f tpvm.Filter) bool {
	return (f.From.IsZero() || f.From == b.from) && (f.Tag == tpvm.AnyTag || f.Tag == b.info.tag) &&
		(f.Context == tpvm.AnyContext || int(f.Context) == b.info.ctx)
}

// receive returns the number of a buffer with a message from a task with a tag, which becomes
// the active receive buffer, or 0 if wait is done before one comes. wait nil: does not wait.
// Messages for a handler go to it.
func (l *library) receive(ctx, wait context.Context, tid, tag int) (int, error) {
	if old := l.buffers.recv; old != nil { // PVM frees it also where no message comes
		l.buffers.drop(old)
	}
	b, err := l.await(ctx, wait, tid, tag)
	if b == nil || err != nil {
		return 0, err
	}
	l.pending = slices.DeleteFunc(l.pending, func(o *buffer) bool { return o == b })
	l.buffers.recv = b
	return b.id, nil
}

// await returns a message as receive does, which becomes a pending one.
func (l *library) await(ctx, wait context.Context, tid, tag int) (*buffer, error) {
	f, ok, err := l.filter(ctx, tid, tag)
	if err != nil {
		return nil, err
	}
	if !ok {
		if wait != nil {
			return nil, noTask // such a message cannot come
		}
		return nil, nil
	}
	for {
		for len(l.told) > 0 {
			b := l.told[0]
			l.told = l.told[1:]
			l.deliver(b)
		}
		if l.match != nil {
			if b, err := l.choose(tid, tag); b != nil || err != nil {
				return b, err
			}
		} else {
			for _, b := range l.pending {
				if b.matches(f) && (!isPvmd(tid) || b.info.src == pvmd) {
					return b, nil
				}
			}
		}
		if l.task == nil { // a function of the program has called pvm_exit
			return nil, sysErr
		}
		fs := l.handlers.filters(f)
		if l.match != nil {
			fs = l.handlers.filters(tpvm.Filter{Tag: tpvm.AnyTag, Context: f.Context})
		}
		var m *tpvm.Message
		err := l.unlocked(func(t *tpvm.Task) (err error) {
			if m, err = t.TryRecvFilter(fs...); wait != nil && errors.Is(err, rocl.ErrEmpty) {
				m, err = t.RecvFilter(wait, fs...)
			}
			return err
		})
		switch {
		case errors.Is(err, rocl.ErrEmpty), wait != nil && wait.Err() != nil && err != nil, wait == nil && tpvm.IsGone(err):
			return nil, nil
		case err != nil:
			return nil, err
		}
		if err := l.take(ctx, m); err != nil {
			return nil, err
		}
	}
}

// take gives a message to its handler, or makes it a pending one. Those that tell of tasks and
// hosts become messages of pvm_notify.
func (l *library) take(ctx context.Context, m *tpvm.Message) error {
	if m.IsGone() {
		defer m.Release()
		tid, err := l.numbers.Number(ctx, m.From())
		if err == nil {
			l.ended(notice{taskExit, m.Tag(), tid}, int(m.Context()))
		}
		return err
	}
	if e, ok := l.hostEvent(m); ok {
		defer m.Release()
		return l.takeHost(ctx, m, e)
	}
	b := &buffer{
		from: m.From(), in: &m.Reader, msg: m,
		info: minfo{len: len(m.Payload()), tag: m.Tag(), ctx: int(m.Context()), enc: int(m.Encoding())},
	}
	l.deliver(b)
	return nil
}

// deliver gives a message that has come to its handler, or makes it a pending one. The handler
// has the message as its active receive buffer, and no send buffer.
func (l *library) deliver(b *buffer) {
	l.buffers.add(b)
	h := l.handlers.match(b)
	if h == nil {
		l.pending = append(l.pending, b)
		return
	}
	f, send, recv := h.call, l.buffers.send, l.buffers.recv
	l.buffers.send, l.buffers.recv = nil, b
	l.mu.Unlock()
	f(b.id)
	l.mu.Lock()
	l.buffers.restore(send, recv)
	if l.buffers.get(b.id) == b {
		l.buffers.drop(b)
	}
}

// pvmd is the number that messages of pvm_notify have as that of their sender.
const pvmd = -1 << 31

// isPvmd reports whether a receive from a number means messages of pvm_notify.
func isPvmd(tid int) bool { return tid < -1 || numbers.IsHost(tid) }

// tell makes a message of pvm_notify, which the next receive delivers.
func (l *library) tell(tag, ctx int, values ...int) {
	out := pack.NewBuffer(pack.Default)
	for _, v := range values {
		_ = pack.PackOne(out, int32(v)) // Default has room for all
	}
	l.told = append(l.told, &buffer{out: out, info: minfo{len: out.Len(), tag: tag, ctx: ctx, src: pvmd}})
}

// choose returns the pending message that the program's function of pvm_recvf chooses.
func (l *library) choose(tid, tag int) (*buffer, error) {
	for { // all that has come, as PVM does
		m, err := l.task.TryRecvFilter(l.handlers.filters(tpvm.Filter{Tag: tpvm.AnyTag, Context: tpvm.MsgContext(l.context)})...)
		if err != nil {
			break
		}
		if err := l.take(context.Background(), m); err != nil {
			return nil, err
		}
	}
	var best *buffer
	rank := 0
	for _, b := range slices.Clone(l.pending) {
		if b.info.ctx != l.context {
			continue
		}
		f := l.match
		l.mu.Unlock()
		r := f(b.id, tid, tag)
		l.mu.Lock()
		if r < 0 {
			return nil, code(r)
		}
		if r == 1 {
			return b, nil
		}
		if r > rank {
			best, rank = b, r
		}
	}
	return best, nil
}

// source looks up the number of the sender of a message.
func (l *library) source(ctx context.Context, b *buffer) error {
	if b.info.src != 0 {
		return nil
	}
	if b.from.IsZero() { // a buffer of this task
		b.info.src = l.tid
		return nil
	}
	var err error
	b.info.src, err = l.numbers.Number(ctx, b.from)
	return err
}

// info returns what is known of a buffer.
func (l *library) info(ctx context.Context, id int) (minfo, error) {
	b, err := l.buffers.existing(id)
	if err != nil {
		return minfo{}, err
	}
	if err := l.source(ctx, b); err != nil {
		return minfo{}, err
	}
	b.info.len = b.size()
	return b.info, nil
}

// siblings returns the numbers of the tasks that were spawned with this one.
func (l *library) siblings(ctx context.Context) ([]int, error) {
	if l.family.siblings != nil {
		return l.family.siblings, nil
	}
	s := []int{l.tid}
	ids, err := l.task.Siblings(ctx)
	if err != nil {
		return nil, err
	}
	if len(ids) > 0 {
		if s, err = l.toNumbers(ctx, ids); err != nil {
			return nil, err
		}
	}
	l.family.siblings = s
	return s, nil
}

// toNumbers returns the numbers of tasks, sorted: pvm_spawn and pvm_siblings list the tasks of
// one spawn in the same order.
func (l *library) toNumbers(ctx context.Context, ids []tpvm.TID) ([]int, error) {
	s := make([]int, len(ids))
	for i, id := range ids {
		var err error
		if s[i], err = l.numbers.Number(ctx, id); err != nil {
			return nil, err
		}
	}
	slices.Sort(s)
	return s, nil
}
