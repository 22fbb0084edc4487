// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rocl-go/rocl"
)

// output says where the output of programs goes: to a collector, in the process of the task that
// gathers it. The zero output means the output of the launcher's process.
type output struct {
	To      TID  // the collector
	IsSplit bool // standard error is passed on apart from standard output
	IsNone  bool // the output is discarded
}

// Tags of messages to a collector. The calls outBegin and outEnrolled go to its control resource,
// which output that waits does not delay. The rest goes to its data resource, with the number of
// the stream in front.
const (
	outBegin    = iota // beginStream: a call
	outEnrolled        // enrolledStream: a call
	outText            // whole lines, the last one with or without its end; the first outText of a stream is empty
	outCut             // the beginning or the middle of a line that is too long
	outEnd
	outGone // of a monitor
)

// maxLine is the length in bytes of the longest line that is gathered as one. A longer line is cut.
const maxLine = 16 << 10

// collectorMailbox is how many bytes of output wait for a collector. If there are more, the
// programs wait.
const collectorMailbox = 256 << 10

// beginStream announces the output of a program, or that another pod goes on with passing it on.
type beginStream struct {
	Launcher     TID    // the pod that started the program
	Number       uint64 // the launcher's number for the output
	Name, Host   string
	Node         string
	Index, Count int
	OnHosts      bool
	IsError      bool // only standard error
	Pod          TID  // of the task that spawned the program
	Spawn        uint64
	Task         TID // if the program itself goes on with its output; else zero
}

// begun is the reply to beginStream: the resource to which output is sent, and the number of the
// stream.
type begun struct {
	Data   TID
	Stream uint64
}

// enrolledStream says which task a program has become.
type enrolledStream struct {
	Stream uint64
	Task   TID
}

// OutputKind is the kind of an Output.
type OutputKind int

const (
	OutputBegin OutputKind = iota // a program's output begins
	OutputLine                    // a line
	OutputEnd                     // the program's output has ended
)

// An Output is a line that a program has printed, or the beginning or the end of its output.
type Output struct {
	Kind        OutputKind
	Task        TID    // zero for what the program printed before it enrolled
	Name        string // of the program
	Index       int    // in its spawn
	Host        string
	Label       string // the name, and parts that distinguish the program from others: worker.3, worker.3@host
	IsError     bool   // standard error; only with CatchSplit
	IsContinued bool   // Text is more of a line that was too long
	Text        []byte // without the end of the line; valid during the call
}

// Catchout gathers the output of the programs that the task spawns from now on, and of the programs
// that these spawn in turn, on whatever host: standard output and standard error. Each line is
// written to w with a label in front, such as "[worker.3] ". The label has the name of the program,
// its index if Spawn started several, and its host if they are on several hosts. Lines of different
// programs do not mix. A line longer than 16 KiB is cut, and goes on with a label such as
// "[worker.3+] ". The last line of a program is written even if it has no end. One goroutine at a
// time writes to w. A nil w ends the gathering for programs that are spawned from then on.
//
// The output of a program that has ended without enrolling is complete. What a process that it has
// left behind prints later is discarded.
//
// A program waits while w does not take its output; some hundred KiB are kept for all programs.
//
// Exit waits for the output of the programs that still run, until its ctx ends. Programs whose
// output is not gathered have the standard output and error of the process that starts them.
//
// The task or pod that started a program forwards its output. If that task ends first, an enrolled
// program forwards its own output; any other program gets SIGPIPE at its next write. If the
// gathering task has ended, an enrolled program's output is discarded.
//
// If the task or pod that forwards output is out of reach for longer than rocl.WithGiveUp, the
// output of its programs has ended for the gathering task. What it forwards after that is dropped.
func (t *Task) Catchout(w io.Writer) error {
	if w == nil {
		return t.setCatch(nil, false)
	}
	return t.setCatch(writeLabelled(w, nil), false)
}

// CatchSplit is Catchout that writes standard error to another writer. The order between standard
// output and standard error is not kept.
func (t *Task) CatchSplit(stdout, stderr io.Writer) error {
	if stdout == nil || stderr == nil {
		return fmt.Errorf("tpvm: catch output: %w", ErrBadParam)
	}
	return t.setCatch(writeLabelled(stdout, stderr), true)
}

// CatchLines is Catchout with a function. f is called for each line, and when the output of a
// program begins and ends, by one goroutine at a time. The programs wait for it. With isSplit,
// Output.IsError distinguishes standard error from standard output, and the order between the two
// is not kept.
func (t *Task) CatchLines(f func(*Output), isSplit bool) error {
	if f == nil {
		return fmt.Errorf("tpvm: catch output: %w", ErrBadParam)
	}
	return t.setCatch(func(o *Output, isContinued bool) error {
		if o.Kind != OutputLine {
			f(o)
			return nil
		}
		for line := range bytes.Lines(o.Text) {
			l := *o
			l.Text = bytes.TrimSuffix(line, []byte("\n"))
			f(&l)
			o.IsContinued = false
		}
		return nil
	}, isSplit)
}

// writeLabelled returns a sink that writes lines with their labels: standard error to err, and the
// rest to out. If err is nil, all lines go to out.
func writeLabelled(out, err io.Writer) sink {
	var b bytes.Buffer
	return func(o *Output, isContinued bool) error {
		if o.Kind != OutputLine {
			return nil
		}
		b.Reset()
		more := ""
		if o.IsContinued {
			more = "+"
		}
		for line := range bytes.Lines(o.Text) {
			fmt.Fprintf(&b, "[%s%s] %s", o.Label, more, line)
			more = ""
		}
		if b.Len() > 0 && b.Bytes()[b.Len()-1] != '\n' {
			b.WriteByte('\n')
		}
		w := out
		if o.IsError && err != nil {
			w = err
		}
		_, werr := w.Write(b.Bytes())
		return werr
	}
}

// A sink takes output as it comes: Text has one line or several. isContinued reports that the last
// line goes on.
type sink func(o *Output, isContinued bool) error

// setCatch makes f the sink for programs that are spawned from now on.
func (t *Task) setCatch(f sink, isSplit bool) error {
	var c *collector
	var out output
	if f != nil {
		var err error
		if c, err = t.newCollector(f); err != nil && t.ended.Err() != nil {
			err = ErrExited
		}
		if err != nil {
			return fmt.Errorf("tpvm: catch output: %w", err)
		}
		out = output{To: c.r.ID(), IsSplit: isSplit}
	}
	t.mu.Lock()
	if c != nil && t.exited {
		t.mu.Unlock()
		c.release()
		return fmt.Errorf("tpvm: catch output: %w", ErrExited)
	}
	old := t.catch
	t.catch, t.output = c, out
	t.mu.Unlock()
	if old != nil {
		old.release() // the reference that t.catch held
	}
	return nil
}

// outputs returns where the output of a spawn goes. The caller calls release when the output of the
// programs has begun.
func (t *Task) outputs(s *spawn) (out output, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.noOutput {
		return output{IsNone: true}, func() {}
	}
	c := t.catch
	if c == nil {
		return t.output, func() {}
	}
	c.retain()
	return t.output, c.release
}

// A collector gathers output for a task. It lives while Catchout has set it, while a spawn holds
// it, and while it has streams.
type collector struct {
	t    *Task
	r    *rocl.Resource // for control messages
	data *rocl.Resource
	sink sink // called by the goroutine that handles data

	mu      sync.Mutex
	streams map[uint64]*caughtStream
	last    uint64
	refs    int                    // of Catchout, and of spawns in progress
	spawns  map[spawnKey]*printing // the spawns that have streams
	idle    chan struct{}          // closed when there are neither streams nor references
	err     error                  // of the sink; output is still taken, and dropped
}

// A spawnKey names a spawn of a program.
type spawnKey struct {
	pod   TID // of the parent's task
	spawn uint64
	name  string // of the program
}

// printing is a spawn with programs that have streams.
type printing struct {
	ordinal int // in labels, among the spawns of the same program
	streams int
}

// A caughtStream is the output of a program as its collector knows it.
type caughtStream struct {
	beginStream
	sender      TID    // the pod that passes the output on; zero: none, until the task does
	stop        func() // ends the monitor of the sender, or of the task if there is no sender
	key         spawnKey
	label       string
	hasBegun    bool // OutputBegin was given to the sink
	isContinued bool
}

// newCollector registers the resources of a collector, and starts to handle their messages. The
// caller has the first reference, which release gives back.
func (t *Task) newCollector(f sink) (*collector, error) {
	r, err := t.c.Register(t.ended, nil)
	if err != nil {
		return nil, err
	}
	data, err := t.c.Register(t.ended, nil, rocl.MailboxLimit(collectorMailbox))
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	c := &collector{
		t: t, r: r, data: data, sink: f, streams: map[uint64]*caughtStream{}, refs: 1,
		spawns: map[spawnKey]*printing{}, idle: make(chan struct{}),
	}
	t.mu.Lock()
	t.collectors = append(t.collectors, c)
	t.mu.Unlock()
	if !t.work.goes(func() { _ = r.Handle(t.ended, c.control) }) || !t.work.goes(func() { _ = data.Handle(t.ended, c.receive) }) {
		return nil, errors.Join(ErrExited, c.close())
	}
	return c, nil
}

func (c *collector) close() error { return errors.Join(c.r.Close(), c.data.Close()) }

func (c *collector) retain() {
	c.mu.Lock()
	c.refs++
	c.mu.Unlock()
}

func (c *collector) release() {
	c.mu.Lock()
	c.refs--
	c.endLocked()
	c.mu.Unlock()
}

// endLocked ends the collector if nothing needs it. c.mu must be held.
func (c *collector) endLocked() {
	if c.refs > 0 || len(c.streams) > 0 {
		return
	}
	select {
	case <-c.idle:
		return
	default:
	}
	close(c.idle)
	c.t.work.Go(func() { // if the task has exited, withdraw closes the collector
		_ = c.close()
		c.t.mu.Lock()
		c.t.collectors = slices.DeleteFunc(c.t.collectors, func(o *collector) bool { return o == c && c.err == nil })
		c.t.mu.Unlock()
	})
}

// control handles a request to the collector.
func (c *collector) control(m *rocl.Message) {
	switch m.Tag() {
	case outBegin:
		answer(c.t.pod, c.r, m, func(_ context.Context, q beginStream) (begun, error) { return c.begin(m.From(), q) })
	case outEnrolled:
		answer(c.t.pod, c.r, m, func(_ context.Context, q enrolledStream) (done, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if s := c.streams[q.Stream]; s != nil && s.sender == m.From() {
				s.Task = q.Task
			}
			return done{}, nil
		})
	}
}

// receive handles a message with output, or the end of a pod or task.
func (c *collector) receive(m *rocl.Message) {
	if m.IsGone() {
		c.gone(m.From())
		return
	}
	p := m.Bytes()
	if len(p) < 8 {
		return
	}
	n := binary.LittleEndian.Uint64(p)
	c.mu.Lock()
	s := c.streams[n]
	if s != nil && s.sender != m.From() {
		s = nil
	}
	c.mu.Unlock()
	if s == nil {
		c.t.log.Warn("tpvm: output: a stream is unknown", "from", m.From(), "stream", n)
		return
	}
	if !s.hasBegun {
		s.hasBegun = true
		c.put(s, OutputBegin, nil, false)
	}
	switch p = p[8:]; m.Tag() {
	case outText, outCut:
		c.text(s, p, m.Tag() == outCut)
	case outEnd:
		c.end(n, s)
	}
}

// begin adds a stream, or changes its sender.
func (c *collector) begin(from TID, q beginStream) (begun, error) {
	q.Name = filepath.Base(q.Name)
	c.mu.Lock()
	for n, s := range c.streams {
		if s.Launcher == q.Launcher && s.Number == q.Number && !q.Task.IsZero() {
			stop := s.stop
			s.sender, s.Task = from, q.Task
			c.watchLocked(s, from)
			c.mu.Unlock()
			stop()
			return begun{Data: c.data.ID(), Stream: n}, nil
		}
	}
	if c.refs == 0 && len(c.streams) == 0 {
		c.mu.Unlock()
		return begun{}, ErrExited
	}
	c.last++
	n := c.last
	s := &caughtStream{beginStream: q, sender: from, key: spawnKey{pod: q.Pod, spawn: q.Spawn, name: q.Name}}
	s.label = c.labelLocked(s)
	c.streams[n] = s
	c.watchLocked(s, from)
	c.mu.Unlock()
	return begun{Data: c.data.ID(), Stream: n}, nil
}

// labelLocked returns the label of a stream's program. Spawns of the same program that print at the
// same time are distinguished by #2, #3 and so on. c.mu must be held.
func (c *collector) labelLocked(s *caughtStream) string {
	p := c.spawns[s.key]
	if p == nil {
		used := map[int]bool{}
		for k, o := range c.spawns {
			if k.name == s.key.name {
				used[o.ordinal] = true
			}
		}
		p = &printing{ordinal: 1}
		for used[p.ordinal] {
			p.ordinal++
		}
		c.spawns[s.key] = p
	}
	p.streams++
	var b strings.Builder
	b.WriteString(s.Name)
	if p.ordinal > 1 {
		fmt.Fprintf(&b, "#%d", p.ordinal)
	}
	if s.Count > 1 {
		fmt.Fprintf(&b, ".%d", s.Index)
	}
	if s.OnHosts || s.Node != c.t.node {
		b.WriteString("@" + s.Host)
	}
	return b.String()
}

// watchLocked monitors the pod or the task that passes the output of a stream on. c.mu must be
// held.
func (c *collector) watchLocked(s *caughtStream, id TID) {
	var err error
	if s.stop, err = c.data.Monitor(c.t.ended, id, outGone); err != nil {
		s.stop = func() {}
	}
}

// gone handles the end of a pod or a task. If the launcher of an enrolled program has ended, the
// output of the program goes on: the program passes it on itself.
func (c *collector) gone(id TID) {
	c.mu.Lock()
	var ended []uint64
	for n, s := range c.streams {
		switch {
		case s.sender == id && !s.Task.IsZero() && s.Launcher == id:
			s.sender = TID{}
			c.watchLocked(s, s.Task)
		case s.sender == id, s.sender.IsZero() && s.Task == id:
			ended = append(ended, n)
		}
	}
	c.mu.Unlock()
	slices.Sort(ended)
	for _, n := range ended {
		c.mu.Lock()
		s := c.streams[n]
		c.mu.Unlock()
		c.end(n, s)
	}
}

// end removes a stream.
func (c *collector) end(n uint64, s *caughtStream) {
	if s.hasBegun {
		c.put(s, OutputEnd, nil, false)
	}
	c.mu.Lock()
	stop := s.stop
	c.mu.Unlock()
	stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, n)
	p := c.spawns[s.key]
	if p.streams--; p.streams == 0 {
		delete(c.spawns, s.key)
	}
	c.endLocked()
}

func (c *collector) text(s *caughtStream, p []byte, isContinued bool) {
	c.put(s, OutputLine, p, isContinued)
	s.isContinued = isContinued
}

// put gives output to the sink, unless the sink has failed before.
func (c *collector) put(s *caughtStream, k OutputKind, p []byte, isContinued bool) {
	c.mu.Lock()
	failed, task := c.err != nil, s.Task
	c.mu.Unlock()
	if failed || k == OutputLine && len(p) == 0 { // the first message of a stream is empty
		return
	}
	err := c.sink(&Output{
		Kind: k, Task: task, Name: s.Name, Index: s.Index, Host: s.Host, Label: s.label,
		IsError: s.IsError, IsContinued: s.isContinued, Text: p,
	}, isContinued)
	if err != nil {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		c.t.log.Warn("tpvm: output is not written", "err", err)
	}
}

// drain waits for the output that the task gathers, and hands over the streams that it passes on.
func (t *Task) drain(ctx context.Context) error {
	t.pod.mu.Lock()
	t.pod.draining = true
	t.pod.mu.Unlock()
	_ = t.setCatch(nil, false)
	await(ctx, t.pod.launching.Wait)
	t.mu.Lock()
	own := slices.Clone(t.collectors)
	t.mu.Unlock()
	var errs []error
	for _, c := range own {
		select {
		case <-c.idle:
		case <-ctx.Done():
			c.mu.Lock()
			n := len(c.streams)
			c.mu.Unlock()
			errs = append(errs, fmt.Errorf("the output of %d programs has not ended: %w", n, context.Cause(ctx)))
		}
		c.mu.Lock()
		if c.err != nil {
			errs = append(errs, fmt.Errorf("the output was not written: %w", c.err))
		}
		c.mu.Unlock()
	}
	t.passOwnLast(ctx)
	t.pod.endUnenrolled()
	t.pod.endRelay(ctx)
	return errors.Join(errs...)
}

// await waits until f has returned or ctx ends.
func await(ctx context.Context, f func()) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		f()
	}()
	select {
	case <-returned:
	case <-ctx.Done():
	}
}
