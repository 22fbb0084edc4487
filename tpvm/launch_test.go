// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// ownContext returns a context on a node of its own.
func ownContext(t *testing.T, socket string) *rocl.Context {
	t.Helper()
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(socket)))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// enrolIn enrols a task that exits with the test.
func enrolIn(t *testing.T, c *rocl.Context, opts ...Option) *Task {
	t.Helper()
	task := try.Get(Enrol(t.Context(), append([]Option{WithContext(c), WithVM("test")}, opts...)...))(t)
	t.Cleanup(func() { _ = task.Exit(context.Background()) })
	return task
}

// launching returns a child whose process has not been started, and for which programs can enrol.
func launching(t *testing.T, task *Task) *child {
	t.Helper()
	p := task.pod
	c := try.Get(p.newChild(0))(t)
	try.OK(t, p.registerStart(t.Context(), c, spawnPrograms{}, "token"))
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
	try.OK(t, task.pod.mayBegin(c))
	try.OK(t, task.reportStart(t.Context(), &foundStart{tmp: c.tmp.ID()}))
	<-c.enrolled
	try.Equal(t, task.pod.statuses.get(task.ID()), c, "the launcher does not know the task")
}

// A pod that is ending does not start the programs that it was about to start.
func TestEndDuringLaunch(t *testing.T) {
	task := enrolIn(t, ownContext(t, filepath.Join(t.TempDir(), "s")))
	c := launching(t, task)
	task.pod.endChildren()
	try.Fails(task.pod.mayBegin(c))(t, ErrExited)
}

// The error of a program that the system refuses to start says that there are too many. Errors of
// the package stay in front, where the task that asked recognises them.
func TestStartErrors(t *testing.T) {
	system := func(err error) error { return &os.PathError{Op: "fork/exec", Path: "/bin/x", Err: err} }
	for _, c := range []struct{ err, want error }{
		{system(syscall.EAGAIN), ErrTooMany},
		{system(syscall.ENOMEM), ErrTooMany},
		{system(syscall.EMFILE), ErrTooMany},
		{system(syscall.ENFILE), ErrTooMany},
		{system(syscall.ENOEXEC), nil},
		{fmt.Errorf("%w: 3 programs run", ErrTooMany), ErrTooMany},
		{ErrExited, ErrExited},
	} {
		got := startError("/bin/x", "host", c.err)
		if is := errors.Unwrap(remoteError(got.Error())); is != c.want || !errors.Is(got, c.err) || !strings.Contains(got.Error(), "/bin/x on host") {
			t.Errorf("%v matches %v, not %v", got, is, c.want)
		}
	}
}

// A program that ends as soon as it has the reply to its enrolment has enrolled.
func TestEnrolAndEnd(t *testing.T) {
	task := enrolIn(t, ownContext(t, filepath.Join(t.TempDir(), "s")))
	collector := try.Get(task.c.Register(t.Context(), nil))(t)
	c := launching(t, task)
	c.cmd = exec.Command("none")
	c.streams = []*stream{{p: task.pod, to: collector.ID()}}
	task.work.Go(func() {
		_ = collector.Handle(task.ended, func(m *rocl.Message) {
			<-c.exited // the launcher tells the collector of the enrolment after the reply
			answer(task.pod, collector, m, func(context.Context, enrolledStream) (done, error) { return done{}, nil })
		})
	})
	try.OK(t, task.pod.mayBegin(c))
	go func() {
		defer close(c.exited)
		try.Check(t, task.reportStart(t.Context(), &foundStart{tmp: c.tmp.ID()}))
	}()
	try.Gives(task.pod.awaitEnrolment(t.Context(), c))(t, task.ID(), "enrolled as")
}

// What a program prints after it has enrolled, and the end of its output, reach the collector after
// the collector was told which task the program is, however soon the program ends.
func TestOutputAfterEnrolment(t *testing.T) {
	task := enrolIn(t, ownContext(t, filepath.Join(t.TempDir(), "s")))
	data, err := task.c.Register(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := launching(t, task)
	s := &stream{p: task.pod, data: data.ID(), c: c, done: make(chan struct{})}
	if s.r, s.w, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	c.isEnrolling.Store(true)
	try.Get(s.w.WriteString("line\n"))(t)
	s.started(true)
	select {
	case <-s.done:
		t.Error("the output was passed on before the collector knows the task")
	case <-time.After(50 * time.Millisecond): // how long a wrong stream has to be noticed
	}
	const tag = 100
	try.OK(t, task.pod.r.SendBytes(t.Context(), data.ID(), tag, nil))
	close(c.enrolled)
	var tags []uint64
	for range 4 {
		m := try.Get(data.Recv(t.Context()))(t)
		tags = append(tags, m.Tag())
		m.Release()
	}
	if want := []uint64{tag, outText, outText, outEnd}; !slices.Equal(tags, want) {
		t.Errorf("messages with tags %v, want %v", tags, want)
	}
	<-s.done
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
	try.OK(t, task.pod.mayBegin(c))
	_, err := ask[done](t.Context(), observer, c.tmp.ID(), 0, enrolment{ID: task.ID()})
	if !errors.Is(err, ErrDenied) || c.hasEnrolled() {
		t.Errorf("another task enrols: %v", err)
	}
	close(c.begun)
}

// A pod gives up a request when the sender has given up.
func TestPodGivesUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	asked, asker := enrolIn(t, ownContext(t, socket)), enrolIn(t, ownContext(t, socket))
	r := try.Get(asked.c.Register(t.Context(), nil))(t)
	begun, gaveUp := make(chan struct{}), make(chan struct{})
	begin, giveUp := sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(gaveUp) })
	handled := make(chan error, 1)
	go func() {
		handled <- r.Handle(asked.ended, func(m *rocl.Message) {
			answer(asked.pod, r, m, func(ctx context.Context, _ done) (done, error) {
				begin()
				<-ctx.Done()
				giveUp()
				return done{}, nil
			})
		})
	}()
	hasBegun := func() bool {
		select {
		case <-begun:
			return true
		default:
			return false
		}
	}
	for left := time.Millisecond; !hasBegun(); left *= 2 { // until a request arrives in time
		ctx, cancel := context.WithTimeout(t.Context(), left)
		try.Fails(ask[done](ctx, asker, r.ID(), 0, done{}))(t, context.DeadlineExceeded)
		cancel()
	}
	select {
	case <-gaveUp:
	case <-time.After(eventually.Timeout):
		t.Error("the request is worked on")
	}
	_ = r.Close()
	try.Check(t, asked.Exit(t.Context()))
	<-handled
}

// AddHosts leaves no host out without an error: one that is lost at once has one.
func TestAddedHostIsLost(t *testing.T) {
	task := enrolIn(t, ownContext(t, filepath.Join(t.TempDir(), "s")))
	own, err := task.Hosts(t.Context())
	if err != nil || len(own) != 1 {
		t.Fatal(own, err)
	}
	refused := &HostError{Host: "refused", Err: ErrNoPod}
	errs := []*HostError{nil, refused, nil}
	added, err := task.addedHosts(t.Context(), 0, []string{"lost", "refused", "here"}, []string{"000000000001", "", own[0].Node}, errs)
	if err != nil || len(added) != 1 || added[0].ID != own[0].ID {
		t.Errorf("added %+v: %v", added, err)
	}
	if errs[0] == nil || errs[0].Host != "lost" || !errors.Is(errs[0], rocl.ErrUnreachable) || errs[1] != refused || errs[2] != nil {
		t.Errorf("errors %v", errs)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errAbandoned)
	if _, err := task.addedHosts(ctx, time.Hour, []string{"lost"}, []string{"000000000001"}, make([]*HostError, 1)); !errors.Is(err, errAbandoned) {
		t.Errorf("the caller has given up: %v", err)
	}
}
