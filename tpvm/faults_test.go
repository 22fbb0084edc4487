// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of the farm.
const (
	tagWork = iota + 1
	tagResult
	tagEnded
)

// worker squares numbers until it gets a negative one. It sends the number and its square.
func worker(ctx context.Context, t *tpvm.Thread, stop func(n int64) bool) error {
	var v [1]int64
	for {
		if _, _, err := tpvm.RecvValues(ctx, t, t.Parent(), tagWork, v[:]); err != nil || v[0] < 0 {
			return err
		}
		if stop(v[0]) {
			<-ctx.Done() // until it is killed, with the number in hand
			return nil
		}
		if err := tpvm.SendValues(ctx, t, t.Parent(), tagResult, []int64{v[0], v[0] * v[0]}); err != nil {
			return err
		}
	}
}

// squares makes workers square the numbers below n, and kills the first of them when it has been
// given its second number. It returns the sum of the squares, and how many numbers were given out
// again.
func squares(t *testing.T, master *tpvm.Thread, ids []tpvm.TID, n int64, kill func(id tpvm.TID)) (sum int64, again int) {
	ctx := deadline(t)
	try.Get(master.Notify(ctx, tagEnded, ids...))(t)
	var todo []int64
	for i := range n {
		todo = append(todo, i)
	}
	holds := map[tpvm.TID]int64{}
	var idle []tpvm.TID
	idle = append(idle, ids...)
	have := map[int64]bool{}
	given, killed := 0, false // about ids[0]
	for len(have) < int(n) {
		for len(idle) > 0 && len(todo) > 0 {
			k := 0
			if !killed && len(todo) == 1 { // the last number is for the worker that will be killed
				if k = slices.Index(idle, ids[0]); k < 0 {
					break
				}
			}
			id, i := idle[k], todo[0]
			idle, todo = slices.Delete(idle, k, k+1), todo[1:]
			switch err := tpvm.SendValues(ctx, master, id, tagWork, []int64{i}); {
			case errors.Is(err, rocl.ErrGone): // its end has been reported, or will be
				todo = append(todo, i)
				again++
				continue
			case err != nil:
				t.Fatal(err)
			}
			holds[id] = i
			if id == ids[0] {
				if given++; given == 2 {
					killed = true
					kill(id)
				}
			}
		}
		m := try.Get(master.Recv(ctx, tpvm.AnyTask, tpvm.AnyTag))(t)
		from := m.From()
		i, isHeld := holds[from]
		delete(holds, from)
		if m.IsGone() {
			if isHeld {
				todo = append(todo, i)
				again++
			}
			idle = slices.DeleteFunc(idle, func(id tpvm.TID) bool { return id == from })
			m.Release()
			continue
		}
		var v [2]int64
		if err := pack.Unpack(&m.Reader, v[:], 1); err != nil || v[0] != i || have[i] {
			t.Fatal(v, i, err)
		}
		m.Release()
		have[i] = true
		sum += v[1]
		idle = append(idle, from)
	}
	for _, id := range idle {
		if err := tpvm.SendValues(ctx, master, id, tagWork, []int64{-1}); err != nil && !errors.Is(err, rocl.ErrGone) {
			t.Error(err)
		}
	}
	return sum, again
}

func sumOfSquares(n int64) (sum int64) {
	for i := range n {
		sum += i * i
	}
	return sum
}

// A thread that is killed with a number in hand loses no work. The master gets the message about
// its end after its last result, and gives the number to another thread.
//
// Promise (Package tpvm): `Notify` tells once of each task that ends, behind its last message. See
// also TestFarmLosesHost.
func TestFarmThreads(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	var first atomic.Pointer[tpvm.TID]
	work := func(ctx context.Context, th *tpvm.Thread) error {
		got := 0
		return worker(ctx, th, func(int64) bool { got++; return got == 2 && *first.Load() == th.ID() })
	}
	for _, task := range []*tpvm.Task{a, b} {
		try.Get(task.Export(ctx, "worker", work))(t)
	}
	ids := try.Get(a.Spawn(ctx, "worker", 6))(t)
	first.Store(&ids[0])
	sum, again := squares(t, a.Thread, ids, 200, func(id tpvm.TID) {
		try.OK(t, a.Kill(ctx, id))
	})
	if sum != sumOfSquares(200) || again != 1 {
		t.Error(sum, again)
	}
}

// The same holds for a process that is killed.
//
// Promise (Package tpvm): A farm whose workers are killed gives their work to others. See also
// TestFarmLosesHost.
func TestFarmProcesses(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(ctx, self(t), 3, program("squarer")))(t)
	sum, again := squares(t, task.Thread, ids, 200, func(id tpvm.TID) {
		try.OK(t, task.Signal(ctx, id, syscall.SIGKILL))
	})
	_ = task.Rocl().Flush(ctx)                 // messages to the killed process are undelivered, or not
	if sum != sumOfSquares(200) || again > 1 { // 0: it had finished before the signal
		t.Error(sum, again)
	}
}

func init() {
	programs["squarer"] = asTask(func(ctx context.Context, t *tpvm.Task) error {
		return worker(ctx, t.Thread, func(int64) bool { return false })
	})
}

// A message has fewer values than are unpacked, or values of another type, over real messages of
// every encoding.
func TestUnpackErrors(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	for _, enc := range []pack.Encoding{pack.Default, pack.Raw, pack.InPlace} {
		for _, typed := range []bool{false, true} {
			var opts []pack.Option
			if typed {
				opts = append(opts, pack.WithTypes())
			}
			p := pack.NewBuffer(enc, opts...)
			try.OK(t, pack.Pack(p, []int32{1, 2, 3}, 1))
			try.OK(t, a.Send(ctx, b.ID(), 1, p))
			m := try.Get(b.Recv(ctx, a.ID(), 1))(t)
			try.Equal(t, m.Typed(), typed)
			if err := pack.Unpack(&m.Reader, make([]float32, 2), 1); typed != errors.Is(err, pack.ErrType) {
				t.Error(enc, typed, err)
			}
			m.Rewind()
			try.Fails(pack.Unpack(&m.Reader, make([]int32, 4), 1))(t, pack.ErrNoData, "%v %v", enc, typed)
			v := make([]int32, 3)
			if err := pack.Unpack(&m.Reader, v, 1); err != nil || v[2] != 3 {
				t.Error(enc, typed, v, err)
			}
			try.Fails(m.UnpackString())(t, pack.ErrNoData, "%v %v", enc, typed)
			m.Release()
		}
	}
}

// A message of a program that does not use tpvm, and one whose description is damaged, are errors
// that name the sender. The messages before and after them arrive.
//
// Promise (Package tpvm): A message that no program of the package sent is dropped, and the receive
// names its sender.
func TestForeignMessages(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	cb := c.Open(1)
	a := enrol(t, c.Open(0))
	r := try.Get(cb.Register(ctx, nil))(t)
	b := enrol(t, cb)
	for i, bad := range []struct {
		payload string
		is      error
	}{
		{"", tpvm.ErrForeign},
		{"from a program of rocl", tpvm.ErrForeign},
		{"\xff\xff\xff\xff\xd4", pack.ErrDamaged},     // typed, without a description
		{"\x01\x00\x00\x00\x00\xd4", pack.ErrDamaged}, // with a description that is longer than the message
		{"\x57", pack.ErrDamaged},                     // no such encoding
	} {
		sendInt(t, b.Thread, a.ID(), 7, 1)
		try.OK(t, r.SendBytes(ctx, a.ID(), 7, []byte(bad.payload)))
		sendInt(t, b.Thread, a.ID(), 7, 2)
		var sum int32
		var failed error
		for range 3 {
			m, err := a.Recv(ctx, tpvm.AnyTask, 7)
			if err != nil {
				failed = err
				continue
			}
			sum += number(m)
			m.Release()
		}
		if sum != 3 || !errors.Is(failed, bad.is) || !strings.Contains(fmt.Sprint(failed), r.ID().String()) {
			t.Error(i, sum, failed)
		}
	}
}

// A thread that panics, and one that leaves its goroutine, end. The other threads and their task go
// on.
//
// Promise (Package tpvm): A thread that panics ends alone.
func TestThreadPanics(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 1)
	a := enrol(t, c.Open(0), tpvm.WithLogger(nil))
	try.Get(a.Export(ctx, "bad", func(ctx context.Context, th *tpvm.Thread) error {
		switch recvInt(t, th, th.Parent(), 1) {
		case 0:
			panic("on purpose")
		case 1:
			runtime.Goexit()
		}
		return tpvm.SendValues(ctx, th, th.Parent(), 2, []int32{5})
	}))(t)
	ids := try.Get(a.Spawn(ctx, "bad", 3))(t)
	try.Get(a.Notify(ctx, 3, ids...))(t)
	for i, id := range ids {
		sendInt(t, a.Thread, id, 1, int32(i))
	}
	try.Equal(t, recvInt(t, a.Thread, ids[2], 2), 5)
	wantEnds(t, a, 3, ids...)
}

// A thread that waits in Recv ends when it is killed, and sends to it fail.
func TestKillReceiver(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	ended := make(chan error, 1)
	try.Get(b.Export(ctx, "waits", func(ctx context.Context, th *tpvm.Thread) error {
		_, err := th.Recv(ctx, tpvm.AnyTask, 1)
		ended <- err
		return err
	}))(t)
	ids := try.Get(a.Spawn(ctx, "waits", 1))(t)
	try.OK(t, a.Kill(ctx, ids[0]))
	if err := <-ended; !errors.Is(err, tpvm.ErrKilled) && !errors.Is(err, rocl.ErrClosed) {
		t.Error(err)
	}
	var err error
	for err == nil { // until the sender knows that it has ended
		err = a.Send(ctx, ids[0], 1, nil)
	}
	try.Fails(err)(t, rocl.ErrGone)
	try.Fails(a.Kill(ctx, ids[0]))(t, tpvm.ErrNoTask)
}

// After Exit a task can neither send nor receive.
func TestAfterExit(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 1)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(0))
	try.OK(t, a.Exit(ctx))
	try.Fails(a.Send(ctx, b.ID(), 1, nil))(t, rocl.ErrClosed)
	try.Fails(a.Recv(ctx, b.ID(), 1))(t, rocl.ErrClosed)
	try.Fails(a.PutInfo(ctx, "x", nil, 0))(t, tpvm.ErrExited)
	try.Fails(b.Send(ctx, a.ID(), 1, nil))(t, rocl.ErrGone)
}

// Ten thousand threads in four tasks send to some of each other: any task can send to their
// identifiers. Each receives its own messages.
//
// Promise (Package tpvm): 10,000 threads in one virtual machine receive messages.
func TestTenThousandThreads(t *testing.T) {
	perTask := 2500
	if short.Form(t) {
		perTask = 250
	}
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	const tasks, each = 4, 8
	var ts []*tpvm.Task
	for i := range tasks {
		ts = append(ts, enrol(t, c.Open(i%2)))
	}
	n := tasks * perTask
	var all []tpvm.TID // complete before begin is closed
	begin := make(chan struct{})
	number := make(map[tpvm.TID]int, n)
	some := func(ctx context.Context, th *tpvm.Thread) error {
		<-begin
		me := number[th.ID()]
		for k := range each {
			to := all[(me+1+k*n/each)%n]
			if err := tpvm.SendValues(ctx, th, to, 1, []int64{int64(me)}); err != nil {
				return err
			}
		}
		var v [1]int64
		var sum int64
		for range each {
			_, i, err := tpvm.RecvValues(ctx, th, tpvm.AnyTask, 1, v[:])
			if err != nil {
				return err
			}
			if number[i.From] != int(v[0]) {
				return fmt.Errorf("from %d: %d", number[i.From], v[0])
			}
			sum += v[0]
		}
		return tpvm.SendValues(ctx, th, th.Parent(), 2, []int64{sum})
	}
	for _, task := range ts {
		try.Get(task.Export(ctx, "some", some))(t)
	}
	all, err := ts[0].Spawn(ctx, "some", n)
	if err != nil || len(all) != n {
		t.Fatal(len(all), err)
	}
	for i, id := range all {
		number[id] = i
	}
	close(begin)
	var sum int64
	var v [1]int64
	for range n {
		if _, _, err := tpvm.RecvValues(ctx, ts[0].Thread, tpvm.AnyTask, 2, v[:]); err != nil {
			t.Fatal(err)
		}
		sum += v[0]
	}
	if want := int64(each) * int64(n) * int64(n-1) / 2; sum != want {
		t.Error(sum, want)
	}
}

// Exit returns when its context ends, even if a thread does not return.
func TestExitInTime(t *testing.T) {
	ctx := deadline(t)
	a := enrol(t, rocltest.Cluster(t, 1).Open(0))
	release := make(chan struct{})
	try.Get(a.Export(ctx, "stays", func(context.Context, *tpvm.Thread) error { <-release; return nil }))(t)
	try.Get(a.Spawn(ctx, "stays", 1))(t)
	short, cancel := context.WithCancel(ctx)
	cancel()
	try.Fails(a.Exit(short))(t, context.Canceled)
	close(release)
}

// The default logger gets a line for threads that fail or panic, and none for threads that return
// nil or are killed.
func TestThreadsAreLogged(t *testing.T) {
	ctx := deadline(t)
	said := new(lines)
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(said, nil)))
	defer slog.SetDefault(old)
	a := enrol(t, alone(t))
	try.Get(a.Export(ctx, "thread", func(ctx context.Context, th *tpvm.Thread) error {
		switch th.Args()[0] {
		case "fails":
			return errors.New("on purpose")
		case "panics":
			panic("with a value")
		case "waits":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}))(t)
	var all []tpvm.TID
	for i, what := range []string{"fails", "panics", "waits", "returns"} {
		ids := try.Get(a.Spawn(ctx, "thread", 1, tpvm.Args(what)))(t)
		try.Get(a.Notify(ctx, i, ids...))(t)
		if what == "waits" {
			try.OK(t, a.Kill(ctx, ids[0]))
		}
		try.Get(a.Recv(ctx, ids[0], i))(t)
		all = append(all, ids...)
	}
	exit(t, a)
	got := said.all()
	if len(got) != 2 {
		t.Fatalf("%q", got)
	}
	for i, want := range []string{"on purpose", "with a value"} {
		if !strings.Contains(got[i], want) || !strings.Contains(got[i], all[i].String()) {
			t.Errorf("%q lacks %q or %v", got[i], want, all[i])
		}
	}
	if !strings.Contains(got[1], "faults_test.go") {
		t.Errorf("no stack of the panic: %q", got[1])
	}
}
