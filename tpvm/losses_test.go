// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

func init() {
	// leaver does the same as all members of a group that end together.
	programs["leaver"] = asTask(func(ctx context.Context, t *tpvm.Task) error {
		g, err := t.Join(ctx, "leavers")
		if err != nil {
			return err
		}
		if err := g.Barrier(ctx, leavers); err != nil {
			return err
		}
		if _, err := tpvm.Reduce(ctx, g, 1, 0, []int{1}, tpvm.Sum); err != nil {
			return err
		}
		if err := g.Leave(ctx); err != nil {
			return err
		}
		return nil
	})
	// node is a program with the node's directory, until its input ends.
	programs["node"] = func() error {
		c, err := rocl.Open(context.Background(), rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET")))
		if err != nil {
			return err
		}
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return c.Close()
	}
}

// Leave waits for the directory as long as its context allows.
func TestLeaveWaitsForDirectory(t *testing.T) {
	socket := node(t)
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), "TPVM_TEST_PROGRAM=node")
	other := try.Get(subprocess.Start(cmd))(t)
	defer func() {
		try.OK(t, other.Stop())
	}()
	try.OK(t, other.Expect(deadline(t), "open"))
	task := own(t, rocl.WithSocket(socket))
	g := try.Get(task.Join(deadline(t), "leavers"))(t)
	other.Signal(posix.SIGSTOP)
	eventually.True(t, "all its threads have stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", cmd.Process.Pid))
		return err == nil && !slices.ContainsFunc(threads, func(path string) bool {
			stat, _ := os.ReadFile(path)
			return !bytes.Contains(stat, []byte(") T "))
		})
	})
	left := make(chan error, 1)
	go func() { left <- g.Leave(deadline(t)) }()
	select {
	case err := <-left:
		t.Errorf("Leave has not waited for the directory: %v", err)
	case <-time.After(1500 * time.Millisecond): // Close would wait for a second
	}
	other.Signal(posix.SIGCONT)
	if !t.Failed() {
		try.OK(t, <-left)
	}
}

const leavers = 4

// Members that leave and exit at the same moment send to agents and coordinators that have just
// ended. Exit does not report that as an error.
func TestMembersExitTogether(t *testing.T) {
	rounds := 20
	if short.Form(t) {
		rounds = 4
	}
	ctx := deadline(t)
	task := enrol(t, alone(t))
	said := new(lines)
	try.OK(t, task.Catchout(said))
	for range rounds {
		ids := try.Get(task.Spawn(ctx, self(t), leavers, program("leaver")))(t)
		for _, id := range ids {
			if s, err := task.Wait(ctx, id); err != nil || !s.Success() {
				t.Error(s, err)
			}
		}
	}
	exit(t, task) // Exit waits for the output
	if t.Failed() {
		t.Log(said.all())
	}
}

// own enrols a task that opens its context on the node of alone.
func own(t *testing.T, opts ...rocl.Option) *tpvm.Task {
	t.Helper()
	task := try.Get(joined(tpvm.WithVM("test"), tpvm.WithRocl(opts...)))(t)
	t.Cleanup(func() { _ = task.Exit(deadline(t)) })
	return task
}

// Exit names the receiver of a lost message, and the reason.
func TestExitNamesReceiver(t *testing.T) {
	alone(t)
	a := own(t, rocl.WithCluster("one"), rocl.WithLinger(10*time.Millisecond))
	b := own(t, rocl.WithCluster("another")) // b cannot reach a
	try.OK(t, a.SendPacked(deadline(t), b.ID(), 1, "hello"))
	try.OK(t, a.SendPacked(deadline(t), b.ID(), 1, "again"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := a.Exit(ctx)
	want := fmt.Sprintf("2 messages to %v were not delivered: rocl: ", b.ID())
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want %q", err, want)
	}
}
