// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// envOutput tells a program the inode numbers of the pipes that its launcher has made its standard
// output and error. When the program enrols, it opens the pipes for reading. So they have a reader
// when the launcher has ended, and the program goes on with reading them. A program that does not
// enrol gets SIGPIPE then.
const envOutput = "TPVM_OUTPUT"

// A stream passes the output of a program on to a collector.
type stream struct {
	p      *pod
	to     TID    // the collector
	data   TID    // the collector's data resource
	number uint64 // the collector's number for the stream
	own    uint64 // the launcher's number for the stream
	c      *child // nil: the stream has the output of this process
	r      *os.File
	w      *os.File      // the program's end; closed when the program has been started
	done   chan struct{} // closed when all has been passed on, or when the stream has been handed over
	stop   func()        // ends the sending
}

// connectOutput connects the output of a program to streams, or as the request says.
func (p *pod) connectOutput(ctx context.Context, c *child, q spawnPrograms) error {
	if q.Output.IsNone {
		return nil
	}
	if q.Output.To.IsZero() {
		c.cmd.Stdout, c.cmd.Stderr = os.Stdout, os.Stderr
		return nil
	}
	n := 1
	if q.Output.IsSplit {
		n = 2
	}
	number := p.lastStream.Add(2) // the number after it is for standard error
	var pipes []string
	for i := range n {
		s, err := p.newStream(ctx, c, q, number+uint64(i), i == 1)
		if IsGone(err) {
			break // the task that gathered has ended: output is discarded
		}
		if err != nil {
			for _, s := range c.streams {
				s.started(false)
			}
			c.streams = nil
			return fmt.Errorf("output: %w", err)
		}
		c.streams = append(c.streams, s)
		pipes = append(pipes, strconv.FormatUint(pipeNumber(int(s.w.Fd())), 10))
	}
	if len(c.streams) > 0 {
		c.cmd.Stdout, c.cmd.Stderr = c.streams[0].w, c.streams[len(c.streams)-1].w
		c.cmd.Env = append(c.cmd.Env, envOutput+"="+strings.Join(pipes, ","))
	}
	return nil
}

// newStream announces a stream of a child's output to the collector, and makes its pipe.
func (p *pod) newStream(ctx context.Context, c *child, q spawnPrograms, number uint64, isError bool) (*stream, error) {
	s := &stream{p: p, to: q.Output.To, own: number, c: c, done: make(chan struct{})}
	err := s.begin(ctx, beginStream{
		Launcher: p.r.ID(), Number: number, Name: q.Name, Host: p.t.host, Node: p.t.node, Index: c.index, Count: q.Count,
		OnHosts: q.OnHosts, IsError: isError, Pod: q.Pod, Spawn: q.Spawn,
	})
	if err != nil {
		return nil, err
	}
	if s.r, s.w, err = os.Pipe(); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// begin announces the stream to its collector.
func (s *stream) begin(ctx context.Context, q beginStream) error {
	b, err := ask[begun](ctx, s.p.t, s.to, outBegin, q)
	if errors.Is(err, ErrExited) {
		err = fmt.Errorf("%w: %w", rocl.ErrGone, err)
	}
	s.data, s.number = b.Data, b.Stream
	return err
}

// send sends a message of the stream to the collector. While the collector is being told which task
// the program has become, send waits: what a program prints after it has enrolled, and the end of
// its output, come with its task.
func (s *stream) send(ctx context.Context, tag uint64, p []byte) error {
	if s.c != nil && s.c.isEnrolling.Load() {
		select {
		case <-s.c.enrolled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(p)), s.number)
	return s.p.r.SendBytes(ctx, s.data, tag, append(b, p...))
}

func (s *stream) end() { _ = s.send(s.p.t.ended, outEnd, nil) }

// enrolled tells the collector which task the program has become.
func (s *stream) enrolled(id TID) {
	_, _ = ask[done](s.p.t.ended, s.p.t, s.to, outEnrolled, enrolledStream{Stream: s.number, Task: id})
}

// started is called when the program runs, or, with false, when it could not be started.
func (s *stream) started(ok bool) {
	_ = s.w.Close()
	if !ok {
		_ = s.r.Close()
		s.end()
		close(s.done)
		return
	}
	s.pass()
}

// pass passes output on, in a goroutine of its own, until the output ends or is handed over.
func (s *stream) pass() {
	ctx, stop := context.WithCancel(s.p.t.ended)
	s.stop = stop
	s.p.mu.Lock()
	s.p.streams[s] = struct{}{}
	if s.p.relayEnded {
		s.endRead()
	}
	s.p.mu.Unlock()
	if !s.p.t.work.goes(func() {
		defer stop()
		if s.c != nil {
			defer s.whenComplete(s.endRead)()
		}
		err := s.send(ctx, outText, nil)
		if err == nil {
			err = s.copy(ctx)
		}
		switch {
		case err == nil:
			s.end()
			s.leave()
			return
		case s.c == nil:
			discard(s.r)
		case ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded): // the collector has ended
			_, _ = io.Copy(io.Discard, s.r)
		}
		s.passed()
	}) {
		stop()
		s.passed()
	}
}

// passed ends the stream.
func (s *stream) passed() {
	s.forget()
	_ = s.r.Close()
}

// forget takes the stream from those that are passed on.
func (s *stream) forget() {
	s.p.mu.Lock()
	delete(s.p.streams, s)
	s.p.mu.Unlock()
	close(s.done)
}

// leave ends the stream when all that the program has printed has been passed on. Processes that
// the program has left behind may still print: until the pod ends, that is read and discarded, so
// that it does not end them.
func (s *stream) leave() {
	s.forget()
	if s.c != nil {
		stop := context.AfterFunc(s.p.t.ended, s.endRead)
		_ = s.r.SetReadDeadline(time.Time{})
		if s.p.t.ended.Err() == nil {
			_, _ = io.Copy(io.Discard, s.r)
		}
		stop()
	}
	_ = s.r.Close()
}

// whenComplete calls f when the program has ended without becoming a task, unless stop is called
// before.
func (s *stream) whenComplete(f func()) (stop func()) {
	ended := make(chan struct{})
	var waiter sync.WaitGroup
	waiter.Go(func() {
		select {
		case <-s.c.exited:
			if s.isComplete() {
				f()
			}
		case <-ended:
		}
	})
	return func() {
		close(ended)
		waiter.Wait()
	}
}

// isComplete reports whether the program has ended without becoming a task. Then all that it has
// printed is in the pipe.
func (s *stream) isComplete() bool {
	if s.c == nil || s.c.isEnrolling.Load() {
		return false
	}
	select {
	case <-s.c.exited:
		return true
	default:
		return false
	}
}

// copy sends whole lines, and parts of longer lines, until the output ends.
func (s *stream) copy(ctx context.Context) error {
	buf := make([]byte, maxLine)
	n := 0
	for {
		k, err := s.r.Read(buf[n:])
		if (s.c == nil || s.isComplete()) && errors.Is(err, os.ErrDeadlineExceeded) { // this process exits, or the program has ended
			if k = s.readRest(buf[n:]); k > 0 {
				err = nil
			} else {
				if s.c == nil {
					discard(s.r)
				}
				err = io.EOF
			}
		}
		n += k
		end := bytes.LastIndexByte(buf[:n], '\n') + 1
		tag := uint64(outText)
		switch {
		case err != nil:
			end = n
		case end == 0 && n == len(buf):
			end, tag = n, outCut
		}
		if end > 0 {
			if err := s.send(ctx, tag, buf[:end]); err != nil {
				return err
			}
			n = copy(buf, buf[end:n])
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// endRelay ends the passing on of output that other tasks gather. Programs that have enrolled go on
// with it themselves. endRelay waits for the output of the other programs, until ctx ends.
func (p *pod) endRelay(ctx context.Context) {
	p.mu.Lock()
	p.relayEnded = true
	var all []*stream
	for s := range p.streams {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		if s.c != nil && !s.c.hasEnrolled() {
			select {
			case <-s.done:
			case <-s.c.enrolled:
			case <-ctx.Done():
			}
		}
		s.endRead()
	}
	for _, s := range all {
		select {
		case <-s.done:
		case <-ctx.Done():
			s.stop()
		}
	}
}

// stream returns the launcher's number for the child's output, or 0 if it is not gathered.
func (c *child) stream() uint64 {
	if len(c.streams) == 0 {
		return 0
	}
	return c.streams[0].own
}

// watchLauncher makes this process pass on its own output when its launcher has ended.
func (t *Task) watchLauncher(st *foundStart) {
	pipes := os.Getenv(envOutput)
	_ = os.Unsetenv(envOutput)
	if pipes == "" || st.Stream == 0 {
		return
	}
	for pipe := range strings.SplitSeq(pipes, ",") {
		r := openOutput(pipe)
		if r == nil {
			return
		}
		t.own = append(t.own, r)
	}
	if t.whenGone(t.ended, st.Launcher, func() { t.passOwn(st) }) == nil {
		t.launch = st
	}
}

// lastOutput is how long Exit waits until the launcher has read the last output of the process. A
// launcher that lives can read it later as well.
const lastOutput = time.Second

// passOwnLast waits until the launcher has read the output of this process, or until this process
// passes the output on because the launcher has ended.
func (t *Task) passOwnLast(ctx context.Context) {
	if t.launch == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastOutput)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for slices.ContainsFunc(t.own, hasUnread) {
		select {
		case <-t.tookOver:
			return
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// hasUnread reports whether a pipe has unread bytes.
func hasUnread(r *os.File) bool {
	n := 0
	if raw, err := r.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = unread(int(fd)) })
	}
	return n > 0
}

// passOwn passes the output of this process on.
func (t *Task) passOwn(st *foundStart) {
	defer close(t.tookOver)
	for i, r := range t.own {
		s := &stream{p: t.pod, to: st.Output.To, own: st.Stream + uint64(i), r: r, done: make(chan struct{})}
		q := beginStream{Launcher: st.Launcher, Number: s.own, Name: t.Name(), Host: t.host, Node: t.node, Pod: st.Pod, Spawn: st.start.Spawn, IsError: i == 1, Task: t.ID()}
		if err := s.begin(t.ended, q); err != nil {
			discard(r)
			_ = r.Close()
			continue
		}
		s.pass()
	}
}

// disownOutput closes this process's ends of the launcher's pipes.
func (t *Task) disownOutput() {
	for _, r := range t.own {
		_ = r.Close()
	}
}

// endRead makes the read of the output that is under way fail, and further ones until another
// deadline is set.
func (s *stream) endRead() { _ = s.r.SetReadDeadline(time.Unix(1, 0)) }
