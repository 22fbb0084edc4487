// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl"
)

// ownContext returns a context of a node of its own.
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

// launching returns a child whose process has not been started, and to which programs can enrol.
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

// A program may enrol before its launcher's start of the process has returned, and not before it has
// begun.
func TestEnrolDuringLaunch(t *testing.T) {
	task := enrolIn(t, ownContext(t, filepath.Join(t.TempDir(), "s")))
	c := launching(t, task)
	if err := task.tellStart(t.Context(), &foundStart{tmp: c.tmp.ID()}); !errors.Is(err, ErrDenied) || c.hasEnrolled() {
		t.Errorf("before the process is started: %v", err)
	}
	if err := task.pod.mayBegin(c); err != nil {
		t.Fatal(err)
	}
	if err := task.tellStart(t.Context(), &foundStart{tmp: c.tmp.ID()}); err != nil {
		t.Fatal(err)
	}
	<-c.enrolled
	if task.pod.statuses.get(task.ID()) != c {
		t.Error("the launcher does not know the task")
	}
}
