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
	"github.com/rocl-go/rocl/tpvm/libpvm3/internal/numbers"
	"github.com/rocl-go/rocl/tpvm/pack"
)

const (
	requestTimeout = 30 * time.Second // for requests to other tasks
	farewell       = 5 * time.Second  // for undelivered messages when the process ends

	// envNoParent is set in the environment of a program that was spawned with PvmNoSpawnParent.
	envNoParent = "TPVM_NO_PARENT"

	// envEnrolTime is the variable for how long pvm_spawn waits for programs to enrol, such as
	// "30s".
	envEnrolTime     = "TPVM_ENROL_TIME"
	defaultEnrolTime = 10 * time.Second
)

// A library is the state of the C library in this process.
type library struct {
	mu      sync.Mutex // not held while a call waits, or while a function of the program runs
	task    *tpvm.Task // nil: not enrolled
	c       *rocl.Context
	numbers *numbers.Numbers
	tid     int
	family  family

	buffers    bufferTable
	pending    []*buffer // messages that the program has not received yet
	context    int       // the message context
	handlers   handlers
	match      matcher   // the function of pvm_recvf, or nil
	notified   []*buffer // messages of pvm_notify that deliver has not handled yet
	notices    map[notice]*watch
	hostsAdded hostsAdded
	// watchesHosts is set when messages of NotifyHosts may come.
	watchesHosts bool
	options      [optionCount]int
	errno        *int32
	program
}

// A program has the functions of the C side that the library calls.
type program struct {
	environ func() []string // returns the variables that pvm_export has named
	abort   func()
	settle  func() int // ends a receive that the calling thread has left, and returns its message or 0
}

// family is what the task knows of its start.
type family struct {
	parent   int // or noParent, parentNotSet
	siblings []int
}

// A matcher is the program's function for pvm_recvf.
type matcher func(bufid, tid, tag int) int

// A notice is a request of pvm_notify for one task or host.
type notice struct{ what, tag, tid int }

// A watch waits for the end of the task or host of a notice.
type watch struct {
	times int // how often the program has made the request
	stop  func()
}

// hostsAdded is the request of pvm_notify for PvmHostAdd, of which there is one at a time.
type hostsAdded struct {
	tag, left int // left: messages to come, or less than 0 for all
	stop      func()
}

func newLibrary(errno *int32, p program) *library {
	return &library{errno: errno, program: p, notices: map[notice]*watch{}, options: defaultOptions}
}

// call makes a call of the program. It returns the result, or the code of the error. The error is
// also printed unless the program has set PvmAutoErr to 0, or name is empty.
func (l *library) call(name string, f func() (int, error)) int {
	l.giveBack(l.settle())
	l.mu.Lock()
	n, err := f()
	l.mu.Unlock()
	switch {
	case err == nil:
		return n
	case name == "":
		*l.errno = int32(codeOf(err))
		return int(codeOf(err))
	}
	return l.fail(name+"()", codeOf(err))
}

// enrolled is call after the process has been enrolled.
func (l *library) enrolled(name string, f func(ctx context.Context) (int, error)) int {
	return l.call(name, func() (int, error) {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		if err := l.enrol(ctx); err != nil {
			return 0, err
		}
		return f(ctx)
	})
}

// quiet is enrolled for calls whose errors are not printed, as in PVM.
func (l *library) quiet(f func(ctx context.Context) (int, error)) int { return l.enrolled("", f) }

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
	*l.errno = int32(notFound) // PVM sets this for the tracer, which it looks for when a task enrols
	return nil
}

// claim opens a context whose task has a number that no other task has.
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

// exit leaves the virtual machine. The buffers stay. mu must be held.
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
			_ = in.UnpackBytes(make([]byte, off)) // unpacking goes on where the program is
			b.in = in
		}
		b.msg.Release()
		b.msg = nil
	}
	l.withdraw()
	_ = l.task.Exit(ctx) // it reports messages to ended tasks, which vanish in PVM
	_ = l.c.Close()
	l.task, l.c, l.tid = nil, nil, 0
	l.pending, l.notified, l.handlers = nil, nil, nil
	return nil
}

// atExit leaves the virtual machine when the process ends without pvm_exit, so that its messages
// arrive.
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

// send sends the active send buffer. As with PVM, a message to an ended task vanishes.
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

// stamp records what pvm_bufinfo returns for the active send buffer after it was sent.
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

// unlocked releases mu, calls f, and locks mu again. So other threads of the program go on. mu must
// be held.
func (l *library) unlocked(f func(t *tpvm.Task) error) error {
	t := l.task
	l.mu.Unlock()
	defer l.mu.Lock()
	return f(t)
}

// mcast sends the active send buffer to tasks other than this one.
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

// onlyEnds reports whether an error of Mcast says only that tasks have ended.
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

// filter returns the filter for messages from a task with a tag in the message context. ok is false
// if no task has the number.
func (l *library) filter(ctx context.Context, tid, tag int) (f tpvm.Filter, ok bool, err error) {
	if tag < -1 || tid < -1 && tid&0x40000000 != 0 { // the numbers of PVM's own processes have the highest bit without this one
		return f, false, badParam
	}
	f = tpvm.Filter{Tag: tag, Context: tpvm.MsgContext(l.context)}
	if tid == -1 || isPvmd(tid) { // messages of pvm_notify come from the ended tasks, or from this one
		return f, true, nil
	}
	f.From, ok, err = l.lookup(ctx, tid)
	return f, ok, err
}

// matches reports whether the filter selects a message.
func (b *buffer) matches(f tpvm.Filter) bool {
	return (f.From.IsZero() || f.From == b.from) && (f.Tag == tpvm.AnyTag || f.Tag == b.info.tag) &&
		(f.Context == tpvm.AnyContext || int(f.Context) == b.info.ctx)
}

// receive returns the number of a buffer with a message from a task with a tag, which becomes the
// active receive buffer. It returns 0 if wait is done before such a message comes. With a nil wait
// it does not wait. Messages for a handler go to the handler. mu must be held; it is released
// meanwhile.
func (l *library) receive(ctx, wait context.Context, tid, tag int) (int, error) {
	if old := l.buffers.recv; old != nil { // PVM frees it even if no message comes
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

// giveBack makes a message a pending one again, before all others, if it is the active receive
// buffer. The call that has received it was left before it returned. id 0 is no message.
func (l *library) giveBack(id int) {
	if id == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.buffers.recv; b != nil && b.id == id {
		l.buffers.recv = nil
		l.pending = slices.Insert(l.pending, 0, b)
	}
}

// await returns a message as receive does, which is then one of the pending messages.
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
		for len(l.notified) > 0 {
			b := l.notified[0]
			l.notified = l.notified[1:]
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

// take gives a message to its handler, or adds it to the pending ones. Messages about the end of
// tasks and about hosts become messages of pvm_notify.
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

// deliver gives a message to its handler, or adds it to the pending ones. While the handler runs,
// the message is the active receive buffer, there is no send buffer, and mu is released.
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

// pvmd is the number of the sender of messages of pvm_notify.
const pvmd = -1 << 31

// isPvmd reports whether a receive from a number is for messages of pvm_notify.
func isPvmd(tid int) bool { return tid < -1 || numbers.IsHost(tid) }

// queueNotice makes a message of pvm_notify, which the next receive delivers.
func (l *library) queueNotice(tag, ctx int, values ...int) {
	out := pack.NewBuffer(pack.Default)
	for _, v := range values {
		_ = pack.PackOne(out, int32(v)) // Default takes every int32
	}
	l.notified = append(l.notified, &buffer{out: out, info: minfo{len: out.Len(), tag: tag, ctx: ctx, src: pvmd}})
}

// choose returns the pending message that the program's function of pvm_recvf chooses. mu is
// released while that function runs.
func (l *library) choose(tid, tag int) (*buffer, error) {
	for { // as PVM does, take all messages that have come
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

// source looks up the number of the sender of a message, if it is not known.
func (l *library) source(ctx context.Context, b *buffer) error {
	if b.info.src != 0 {
		return nil
	}
	if b.from.IsZero() { // a buffer that this task has made
		b.info.src = l.tid
		return nil
	}
	var err error
	b.info.src, err = l.numbers.Number(ctx, b.from)
	return err
}

// info returns the information about a buffer.
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

// toNumbers returns the numbers of tasks, sorted. So pvm_spawn and pvm_siblings list the tasks of
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
