// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
)

// ownContext returns a context on a node of its own.
func ownContext(t *testing.T, socket string) *rocl.Context {
	t.Helper()
	c, err := rocl.Open(t.Context(), rocl.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// enrolIn enrols a task that exits with the test.
func enrolIn(t *testing.T, c *rocl.Context, opts ...Option) *Task {
	t.Helper()
	task, err := Enrol(t.Context(), append([]Option{WithContext(c), WithVM("test")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = task.Exit(context.Background()) })
	return task
}

// launching returns a child whose process has not been started, and for which programs can enrol.
func launching(t *testing.T, task *Task) *child {
	t.Helper()
	p := task.pod
	c, err := p.newChild(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.registerStart(t.Context(), c, spawnPrograms{}, "token"); err != nil {
		t.Fatal(err)
	}
	handled := make(chan struct{})
	task.work.Go(func() {
		defer close(handled)
		p.handleEnrolment(c)
	})
	t.Cleanup(func() {
		p.forget(c)
		p.launching.Done()
		_ = c.tmp.Close()
		<-handled
	})
	return c
}

// A program may enrol before its launcher's call that starts the process has returned, but not
// before that call has begun.
func TestEnrolDuringLaunch(t *testing.T) {
	task := enrolIn(t, ownContext(t, filepath.Join(t.TempDir(), "s")))
	c := launching(t, task)
	if err := task.reportStart(t.Context(), &foundStart{tmp: c.tmp.ID()}); !errors.Is(err, ErrDenied) || c.hasEnrolled() {
		t.Errorf("before the process is started: %v", err)
	}
	if err := task.pod.mayBegin(c); err != nil {
		t.Fatal(err)
	}
	if err := task.reportStart(t.Context(), &foundStart{tmp: c.tmp.ID()}); err != nil {
		t.Fatal(err)
	}
	<-c.enrolled
	if task.pod.statuses.get(task.ID()) != c {
		t.Error("the launcher does not know the task")
	}
}

// A task does not start programs for tasks of another virtual machine or, with WithoutLaunch, for
// any other task. A program can be enrolled only by its own process.
func TestPodRefuses(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	task := enrolIn(t, ownContext(t, socket))
	observer := enrolIn(t, ownContext(t, socket), Observing())
	stranger := enrolIn(t, ownContext(t, socket), WithVM("other"))
	for _, x := range []struct {
		by, of *Task
		want   error
	}{{task, observer, ErrDenied}, {stranger, task, ErrDenied}, {observer, task, nil}} {
		q := spawnPrograms{Name: "true", N: 1, Count: 1}
		a, err := ask[startedPrograms](t.Context(), x.by, x.of.pod.r.ID(), podStart, q)
		if !errors.Is(err, x.want) || err == nil && (len(a.Programs) != 1 || a.Programs[0].Error != "") {
			t.Errorf("%v: %v, not %v", a, err, x.want)
		}
	}
	task.WaitChildren()
	c := launching(t, task)
	if err := task.pod.mayBegin(c); err != nil {
		t.Fatal(err)
	}
	d, err := ask[done](t.Context(), observer, c.tmp.ID(), 0, enrolment{ID: task.ID()})
	if err == nil && d.Error != "" {
		err = remoteError(d.Error)
	}
	if !errors.Is(err, ErrDenied) || c.hasEnrolled() {
		t.Errorf("another task enrols: %v", err)
	}
	close(c.begun)
}

// A pod gives up a request when the sender has given up.
func TestPodGivesUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	asked, asker := enrolIn(t, ownContext(t, socket)), enrolIn(t, ownContext(t, socket))
	r, err := asked.c.Register(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	begun, gaveUp := make(chan struct{}, 1), make(chan struct{}, 1)
	handled := make(chan error, 1)
	go func() {
		handled <- r.Handle(asked.ended, func(m *rocl.Message) {
			answer(asked.pod, r, m, func(ctx context.Context, _ done) done {
				begun <- struct{}{}
				<-ctx.Done()
				gaveUp <- struct{}{}
				return done{}
			})
		})
	}()
	for left := time.Millisecond; len(begun) == 0; left *= 2 { // until the request arrives in time
		ctx, cancel := context.WithTimeout(t.Context(), left)
		if _, err := ask[done](ctx, asker, r.ID(), 0, done{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	select {
	case <-gaveUp:
	case <-time.After(time.Minute):
		t.Error("the request is worked on")
	}
	_ = r.Close()
	if err := asked.Exit(t.Context()); err != nil {
		t.Error(err)
	}
	<-handled
}
