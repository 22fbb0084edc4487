// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/rocl-go/rocl"
)

// A Status says how a program ended.
type Status struct {
	Code   int            // the exit code; -1 if a signal ended the program
	Signal syscall.Signal // the signal that ended the program, or 0
}

// Success reports whether the program exited with code 0.
func (s Status) Success() bool { return s.Code == 0 && s.Signal == 0 }

// ExitCode returns the code in the form of shells: 128 and the number of the signal if a signal
// ended the program.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

func (s Status) String() string {
	if s.Signal != 0 {
		return "signal " + strconv.Itoa(int(s.Signal)) + " (" + s.Signal.String() + ")"
	}
	return "exit status " + strconv.Itoa(s.Code)
}

// statusOf returns how a process ended. For nil it returns Code -1.
func statusOf(p *os.ProcessState) Status {
	if p == nil {
		return Status{Code: -1}
	}
	if w, ok := p.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return Status{Code: -1, Signal: w.Signal()}
	}
	return Status{Code: p.ExitCode()}
}

// keptStatuses is how many ended programs a pod remembers.
const keptStatuses = 4096

// statuses holds the programs that a pod has started: those that run or are about to run, and the
// latest that have ended.
type statuses struct {
	mu    sync.Mutex
	by    map[TID]*child // by the identifier of the start, and by that of the task
	order []*child       // programs that have ended, the oldest first
}

func (s *statuses) add(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[c.tmp.ID()] = c
}

func (s *statuses) remove(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, c.tmp.ID())
}

func (s *statuses) enrolled(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[c.id] = c
}

func (s *statuses) ended(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = append(s.order, c)
	if len(s.order) > keptStatuses {
		old := s.order[0]
		s.order[0] = nil
		s.order = s.order[1:]
		delete(s.by, old.tmp.ID())
		delete(s.by, old.id)
	}
}

// get returns the program with the identifier of its start or of its task, or nil.
func (s *statuses) get(id TID) *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[id]
}

// launched knows, for the latest programs that a task has spawned, the pods that have started them.
type launched struct {
	mu    sync.Mutex
	pods  map[TID]TID
	order []TID // the oldest first
}

func (l *launched) add(pod TID, ids ...TID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods == nil {
		l.pods = map[TID]TID{}
	}
	for _, id := range ids {
		if _, ok := l.pods[id]; ok { // Task was called again for the program
			continue
		}
		l.pods[id] = pod
		l.order = append(l.order, id)
		if len(l.order) > 4*keptStatuses {
			delete(l.pods, l.order[0])
			l.order = l.order[1:]
		}
	}
}

func (l *launched) get(id TID) (TID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod, ok := l.pods[id]
	return pod, ok
}

// waitFor is a request about a program that a pod has started.
type waitFor struct{ ID TID }

// wait waits until a program has ended. It is the handler of podWait.
func (p *pod) wait(ctx context.Context, q waitFor) (Status, error) {
	if c := p.statuses.get(q.ID); c != nil {
		select {
		case <-c.exited:
			return c.status, nil
		case <-ctx.Done():
		}
	}
	return Status{}, ErrNoStatus
}

// awaitTask waits until a program has become a task. It is the handler of podEnrolled.
func (p *pod) awaitTask(ctx context.Context, q waitFor) (TID, error) {
	c := p.statuses.get(q.ID)
	if c == nil {
		return TID{}, ErrNoTask
	}
	return p.awaitEnrolment(ctx, c)
}

// Wait waits until the program of a task has ended, and returns how it ended. It asks the task that
// started the program. That task remembers the latest 4096 programs that have ended, so Wait may be
// called after the end. Wait fails with ErrNoStatus if the program was started by hand, for a
// thread, and if the task that started the program has ended. The error matches rocl.ErrPartial too
// if a node or a task did not answer, which may know the program.
func (t *Thread) Wait(ctx context.Context, id TID) (_ Status, err error) {
	defer wrap(&err, "tpvm: wait for %v", id)
	pod, ok := t.task.pod.launched.get(id)
	if !ok {
		f, err := t.task.lookUp(ctx, id)
		switch {
		case errors.Is(err, ErrNoTask): // the program has ended, or id is not a program's
			return t.waitAnywhere(ctx, id)
		case err != nil:
			return Status{}, err
		}
		text := attr(f, attrLauncher)
		if attr(f, attrType) == typeStart {
			text = attr(f, attrPod)
		}
		if pod, err = rocl.ParseGID(text); text == "" || err != nil {
			return Status{}, ErrNoStatus
		}
	}
	return t.askWait(ctx, pod, id)
}

// askWait asks a pod to wait for a program that it has started.
func (t *Thread) askWait(ctx context.Context, pod, id TID) (Status, error) {
	s, err := askPod(ctx, t.task, pod, podWait, waitFor{id}, t.task.pod.wait)
	if errors.Is(err, ErrNoStatus) && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if IsGone(err) || errors.Is(err, rocl.ErrNoReply) {
		err = fmt.Errorf("%w: %v: %w", ErrNoStatus, pod, err)
	}
	return s, err
}

// waitAnywhere asks every pod of the virtual machine to wait for a program.
func (t *Thread) waitAnywhere(ctx context.Context, id TID) (Status, error) {
	var partial error
	pods, err := t.task.find(ctx, &partial, t.task.match(typePod, nil), nil)
	if err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends, errs := make([]Status, len(pods)), make([]error, len(pods))
	together(len(pods), func(i int) {
		if ends[i], errs[i] = t.askWait(ctx, pods[i].pod, id); errs[i] == nil {
			cancel() // no other pod has started it
		}
	})
	if i := slices.Index(errs, nil); i >= 0 {
		return ends[i], nil
	}
	if ctx.Err() != nil {
		for _, err := range errs {
			if none := (*rocl.NoConnectionError)(nil); errors.As(err, &none) {
				return Status{}, err
			}
		}
		return Status{}, context.Cause(ctx)
	}
	for _, err := range errs {
		isDenied := errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrNoReply) || errors.Is(err, ErrNoStatus) && !IsGone(err)
		if partial == nil && !isDenied {
			partial = fmt.Errorf("%w: %w", rocl.ErrPartial, err)
		}
	}
	return Status{}, absent(ErrNoStatus, partial)
}
