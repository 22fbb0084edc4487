// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

func str(t testing.TB, th *tpvm.Thread, s string) *pack.Buffer {
	t.Helper()
	b := th.Buffer(pack.Default)
	try.OK(t, b.PackString(s))
	return b
}

// info returns the string of an entry, or an error.
func info(t testing.TB, th *tpvm.Thread, name string, index int, flags tpvm.InfoFlags) (string, error) {
	t.Helper()
	m, err := th.RecvInfo(deadline(t), name, index, flags)
	if err != nil {
		return "", err
	}
	defer m.Release()
	s := try.Get(m.UnpackString())(t)
	return s, nil
}

func wantInfo(t testing.TB, th *tpvm.Thread, name string, index int, flags tpvm.InfoFlags, want string, wantErr error) {
	t.Helper()
	if s, err := info(t, th, name, index, flags); s != want || !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
		t.Errorf("%s[%d]: %.20q, %v; want %.20q, %v", name, index, s, err, want, wantErr)
	}
}

func put(t testing.TB, th *tpvm.Thread, name, s string, flags tpvm.InfoFlags, want int, wantErr error) {
	t.Helper()
	i, err := th.PutInfo(deadline(t), name, str(t, th, s), flags)
	if i != want || !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
		t.Errorf("put %s: %d, %v; want %d, %v", name, i, err, want, wantErr)
	}
}

// The message box does what pvm_putinfo(3) describes, between tasks of two nodes.
func TestMessageBox(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	large := strings.Repeat("large", 100_000)

	put(t, a.Thread, "one", "1", 0, 0, nil)
	wantInfo(t, b.Thread, "one", 0, 0, "1", nil)
	wantInfo(t, b.Thread, "one", 1, 0, "", tpvm.ErrNoEntry)
	wantInfo(t, b.Thread, "one", 1, tpvm.FirstAvail, "", tpvm.ErrNoEntry)
	wantInfo(t, b.Thread, "none", 0, 0, "", tpvm.ErrNoEntry)
	put(t, b.Thread, "one", "2", 0, 0, tpvm.ErrDenied)
	put(t, b.Thread, "one", "2", 0, 0, tpvm.ErrEntryExists)
	put(t, b.Thread, "one", "2", tpvm.OverWritable, 0, tpvm.ErrDenied)
	wantInfo(t, b.Thread, "one", 0, tpvm.ReadAndDelete, "", tpvm.ErrDenied)
	try.Fails(b.DelInfo(ctx, "one", 0))(t, tpvm.ErrDenied)
	put(t, a.Thread, "one", large, 0, 0, nil) // the owner replaces the entry
	wantInfo(t, b.Thread, "one", 0, 0, large, nil)
	wantInfo(t, a.Thread, "one", 0, 0, large, nil)
	try.OK(t, a.DelInfo(ctx, "one", 0))
	wantInfo(t, b.Thread, "one", 0, 0, "", tpvm.ErrNoEntry)
	try.Fails(a.DelInfo(ctx, "one", 0))(t, tpvm.ErrNoEntry)

	for i, th := range []*tpvm.Thread{a.Thread, b.Thread, a.Thread} {
		put(t, th, "many", string(rune('a'+i)), tpvm.MultiInstance, i, nil)
	}
	try.OK(t, b.DelInfo(ctx, "many", 1))
	wantInfo(t, b.Thread, "many", 1, tpvm.FirstAvail, "c", nil)
	put(t, b.Thread, "many", "B", tpvm.MultiInstance, 1, nil) // the lowest free index
	put(t, b.Thread, "many", "d", tpvm.MultiInstance, 3, nil)
	try.Gives(a.PutInfoAt(ctx, "many", 7, str(t, a.Thread, "at"), tpvm.MultiInstance))(t, 7)

	put(t, a.Thread, "over", "1", tpvm.OverWritable, 0, nil)
	put(t, b.Thread, "over", "2", tpvm.OverWritable, 0, nil) // b owns the entry from now on
	wantInfo(t, a.Thread, "over", 0, 0, "2", nil)
	es, err := a.Infos(ctx, "^ov")
	if err != nil || len(es) != 1 || es[0] != (tpvm.InfoEntry{Name: "over", Owner: b.ID(), Flags: tpvm.OverWritable}) {
		t.Error(es, err)
	}
	wantInfo(t, a.Thread, "over", 0, tpvm.ReadAndDelete, "2", nil)
	wantInfo(t, a.Thread, "over", 0, tpvm.ReadAndDelete, "", tpvm.ErrNoEntry)

	if es, err = b.Infos(ctx, "*"); err != nil || len(es) != 5 {
		t.Error(es, err)
	}
	if _, err = b.Infos(ctx, "["); !errors.Is(err, tpvm.ErrBadParam) {
		t.Error(err)
	}
	try.Fails(a.PutInfo(ctx, "x", nil, tpvm.WaitForInfo))(t, tpvm.ErrBadParam)
}

// Receivers wait for an entry. If each deletes the entry that it gets, each gets a different one.
func TestMessageBoxWait(t *testing.T) {
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	got := make(chan string, 4)
	var wg sync.WaitGroup
	for _, th := range []*tpvm.Thread{a.Thread, b.Thread, a.Thread, b.Thread} {
		wg.Go(func() {
			s, err := info(t, th, "work", 0, tpvm.FirstAvail|tpvm.ReadAndDelete|tpvm.WaitForInfo)
			if err != nil {
				t.Error(err)
			}
			got <- s
		})
	}
	for _, s := range []string{"a", "b", "c", "d"} {
		try.Get(a.PutInfo(deadline(t), "work", str(t, a.Thread, s), tpvm.MultiInstance|tpvm.OverWritable))(t)
	}
	wg.Wait()
	all := []string{<-got, <-got, <-got, <-got}
	slices.Sort(all)
	if !slices.Equal(all, []string{"a", "b", "c", "d"}) {
		t.Error(all)
	}
	ctx, cancel := context.WithTimeout(deadline(t), time.Millisecond)
	defer cancel()
	try.Fails(b.RecvInfo(ctx, "never", 3, tpvm.WaitForInfo))(t, context.DeadlineExceeded)
}

// The entries of a thread are deleted when it ends, and so are those of a task, except Persistent
// ones. Another task keeps these, and a third one when that task has exited.
//
// Promise (Package tpvm): A `Persistent` entry of the message box outlives its task. Other entries
// end with theirs. See also TestMessageBoxKilled.
func TestMessageBoxPersistent(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	large := strings.Repeat("large", 100_000)
	try.Get(a.Export(ctx, "putter", func(ctx context.Context, th *tpvm.Thread) error {
		put(t, th, "of a thread", "x", 0, 0, nil)
		put(t, th, "stays", "y", tpvm.Persistent, 0, nil)
		put(t, th, "stays large", large, tpvm.Persistent|tpvm.OverWritable, 0, nil)
		return nil
	}))(t)
	try.Get(a.Spawn(ctx, "putter", 1))(t)
	wantInfo(t, b.Thread, "stays large", 0, tpvm.WaitForInfo, large, nil)
	for {
		es := try.Get(b.Infos(ctx, "of a thread|^stays$"))(t)
		if len(es) == 1 && es[0].Owner.IsZero() { // the thread has ended
			break
		}
	}
	put(t, a.Thread, "of a task", "z", 0, 0, nil)
	try.OK(t, a.Exit(ctx))
	wantInfo(t, b.Thread, "stays", 0, 0, "y", nil)
	wantInfo(t, b.Thread, "stays large", 0, 0, large, nil)
	wantInfo(t, b.Thread, "of a task", 0, 0, "", tpvm.ErrNoEntry)
	put(t, b.Thread, "stays", "mine", 0, 0, tpvm.ErrDenied)

	d := enrol(t, c.Open(0))
	try.OK(t, b.Exit(ctx))
	wantInfo(t, d.Thread, "stays", 0, 0, "y", nil)
	wantInfo(t, d.Thread, "stays large", 0, tpvm.ReadAndDelete, large, nil)
	es, err := d.Infos(ctx, "*")
	if err != nil || len(es) != 1 || !es[0].Owner.IsZero() {
		t.Error(es, err)
	}
}

// A Persistent entry of a killed process can be found again.
func TestMessageBoxKilled(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(ctx, self(t), 1, program("putter")))(t)
	m := try.Get(task.Recv(ctx, ids[0], 1))(t)
	m.Release()
	wantInfo(t, task.Thread, "goes", 0, 0, "gone", nil)
	try.Get(task.Notify(ctx, 9, ids...))(t)
	try.OK(t, task.Signal(ctx, ids[0], syscall.SIGKILL))
	wantEnds(t, task, 9, ids[0])
	wantInfo(t, task.Thread, "stays", 0, tpvm.WaitForInfo, "here", nil)
	wantInfo(t, task.Thread, "goes", 0, 0, "", tpvm.ErrNoEntry)
	es, err := task.Infos(ctx, "stays")
	if err != nil || len(es) != 1 || !es[0].Owner.IsZero() || es[0].Flags != tpvm.Persistent {
		t.Error(es, err)
	}
}

// wantCopies waits until a task keeps copies of exactly these entries of other tasks.
func wantCopies(t testing.TB, task *tpvm.Task, names ...string) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("copies of %q", names), func() bool { return slices.Equal(task.InfoCopies(), names) })
}

// A task that does not answer does not delay the end of threads, and delays the message box only
// for some seconds. Another task keeps the copy.
func TestMessageBoxHungTask(t *testing.T) {
	ctx := deadline(t)
	c := alone(t)
	a, b := enrol(t, c, tpvm.WithInfoTimeout(200*time.Millisecond)), enrol(t, c)
	hung := try.Get(c.Register(ctx, rocl.Attrs{"type": "systhread", "vm": "test", "pid": "1", "host": "x", "launch": "yes"}))(t)
	defer hung.Close()
	try.Get(a.Export(ctx, "putter", func(_ context.Context, th *tpvm.Thread) error {
		b := str(t, th, "y")
		go func() { _, _ = th.PutInfo(ctx, "of a thread", b, tpvm.Persistent) }()
		wantInfo(t, th, "of a thread", 0, tpvm.WaitForInfo, "y", nil)
		return nil
	}))(t)
	ids := try.Get(a.Spawn(ctx, "putter", 1))(t)
	try.Get(a.Notify(ctx, 9, ids...))(t)
	m := try.Get(a.Recv(ctx, ids[0], 9))(t)
	m.Release()
	put(t, a.Thread, "state", "x", tpvm.Persistent, 0, nil)
	wantCopies(t, b, "of a thread", "state")
	try.OK(t, a.DelInfo(ctx, "state", 0))
	wantCopies(t, b, "of a thread")
}

// A copy that could not be made in time is made later. If its entry has been deleted meanwhile, the
// copy does not bring the entry back.
func TestMessageBoxLateCopy(t *testing.T) {
	ctx := deadline(t)
	cluster := rocltest.Cluster(t, 1)
	c := cluster.Open(0)
	a := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test")))(t)
	b := enrol(t, cluster.Open(0))
	put(t, a.Thread, "first", "1", tpvm.Persistent, 0, nil)
	// until calls f, and ends its context when is returns true.
	until := func(what string, is func() bool, f func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		result := make(chan error, 1)
		go func() { result <- f(ctx) }()
		eventually.True(t, what, is)
		cancel()
		try.Check(t, <-result, "%s", what)
	}
	putUncopied := func(name, s string) {
		t.Helper()
		isAsked := func() bool { _, is := a.HeldInfo(name); return is }
		until("b is asked to copy "+name, isAsked, func(ctx context.Context) error {
			_, err := a.PutInfo(ctx, name, str(t, a.Thread, s), tpvm.Persistent)
			return err
		})
	}
	release := b.HoldInfo()
	defer func() { release() }() // also if the test fails
	putUncopied("stays", "2")
	putUncopied("goes", "")
	isGone := func() bool { is, _ := a.HeldInfo("goes"); return !is }
	until("goes is deleted", isGone, func(ctx context.Context) error { return a.DelInfo(ctx, "goes", 0) })
	putUncopied("last", "3")
	release()
	release = func() {}
	eventually.True(t, "b is asked to forget goes", b.HasForgottenInfo) // the request to copy goes may come later
	wantCopies(t, b, "first", "last", "stays")
	_ = c.Close() // as if the process were killed
	wantInfo(t, b.Thread, "first", 0, tpvm.WaitForInfo, "1", nil)
	wantInfo(t, b.Thread, "stays", 0, tpvm.WaitForInfo, "2", nil)
	wantInfo(t, b.Thread, "goes", 0, 0, "", tpvm.ErrNoEntry)
	_ = a.Exit(ctx)
}

// A box is a message box of three tasks. a keeps an entry, and b has the copy.
type box struct {
	t       *testing.T
	a, b, c *tpvm.Task
	kill    func() // ends the context of a, as if its process were killed
}

// newBox makes a box with one entry, with the value "a".
func newBox(t *testing.T, flags tpvm.InfoFlags) *box {
	cluster := rocltest.Cluster(t, 1)
	r := cluster.Open(0)
	a := try.Get(tpvm.Enrol(deadline(t), tpvm.WithContext(r), tpvm.WithVM("test")))(t)
	t.Cleanup(func() { _ = a.Exit(context.Background()) })
	x := &box{t: t, a: a, b: enrol(t, cluster.Open(0)), kill: func() { _ = r.Close() }}
	put(t, a.Thread, "x", "a", flags, 0, nil)
	if flags&tpvm.Persistent != 0 {
		wantCopies(t, x.b, "x")
	}
	x.c = enrol(t, cluster.Open(0))
	return x
}

// want waits until the entries with a name have these values, in the order of their indices.
func (x *box) want(values ...string) {
	x.t.Helper()
	eventually.True(x.t, fmt.Sprintf("the message box has %q", values), func() bool {
		es, err := x.c.Infos(deadline(x.t), "^x$")
		if err != nil || len(es) != len(values) {
			return false
		}
		for i, e := range es {
			if s, err := info(x.t, x.c.Thread, "x", e.Index, 0); err != nil || s != values[i] {
				return false
			}
		}
		return true
	})
}

// While nobody keeps the entry of a killed task, another entry gets its index. Both stay.
//
// Promise (Package tpvm): A `Persistent` entry is not lost or taken twice when tasks put, take and
// take over at once. See also TestMessageBoxKilledTake.
func TestMessageBoxIndexTaken(t *testing.T) {
	const flags = tpvm.Persistent | tpvm.MultiInstance
	for _, persistent := range []tpvm.InfoFlags{0, tpvm.Persistent} {
		x := newBox(t, flags)
		release := x.b.HoldInfo()
		x.kill()
		x.want()
		done := make(chan struct{})
		go func() {
			defer close(done)
			put(t, x.c.Thread, "x", "c", tpvm.MultiInstance|persistent, 0, nil)
		}()
		x.want("c")
		release()
		<-done
		x.want("c", "a")
	}
}

// While nobody keeps the entry of a killed task, a task replaces it. The new entry stays alone.
func TestMessageBoxReplacedInTakeover(t *testing.T) {
	x := newBox(t, tpvm.Persistent|tpvm.OverWritable)
	release := x.b.HoldInfo()
	x.kill()
	x.want()
	put(t, x.c.Thread, "x", "c", tpvm.OverWritable, 0, nil)
	release()
	wantCopies(t, x.b)
	x.want("c")
}

// A task that keeps an entry is killed while it gives the entry to another task. If that task has
// the entry, it does not come back. Otherwise it does.
func TestMessageBoxKilledTake(t *testing.T) {
	for _, has := range []bool{false, true} {
		for _, late := range []bool{false, true} { // the other task learns of it late
			x := newBox(t, tpvm.Persistent|tpvm.OverWritable)
			got, _, err := x.a.TakeInfo(deadline(t), "x", x.c)
			try.OK(t, err)
			wantCopies(t, x.b, "x")
			x.want()
			if !late {
				got(has)
			}
			x.kill()
			if late {
				put(t, x.c.Thread, "y", "c", tpvm.Persistent, 0, nil) // its copy shows that b answers
				wantCopies(t, x.b, "x", "y")
				got(has)
			}
			if has {
				eventually.True(t, "no copy is left", func() bool { return !slices.Contains(x.b.InfoCopies(), "x") })
				x.want()
			} else {
				x.want("a")
			}
		}
	}
}

// The answer to a task that takes an entry is lost, for example because the call has ended. The
// entry stays, with its owner and its copy. If another entry has its index, it gets the next free
// one.
//
// Promise (Package tpvm): An entry taken by `ReadAndDelete` whose answer was lost is in the box
// again. See also TestMessageBoxCancelledTakes.
func TestMessageBoxAnswerLost(t *testing.T) {
	for _, flags := range []tpvm.InfoFlags{0, tpvm.Persistent} {
		for _, taken := range []bool{false, true} { // the index is
			x := newBox(t, flags|tpvm.OverWritable|tpvm.MultiInstance)
			got, sent, err := x.a.TakeInfo(deadline(t), "x", x.c)
			try.OK(t, err)
			want := []string{"a"}
			if taken {
				put(t, x.c.Thread, "x", "c", tpvm.MultiInstance, 0, nil)
				want = []string{"c", "a"}
			}
			got(false)
			sent()
			x.want(want...)
			es, err := x.c.Infos(deadline(t), "^x$")
			if err != nil || es[len(es)-1].Owner != x.a.ID() {
				t.Error(es, err)
			}
			if flags == tpvm.Persistent {
				x.kill()
				x.want(want...)
			}
		}
	}
}

// Calls that take entries end while they wait for the answer. Each entry is taken once, or stays.
func TestMessageBoxCancelledTakes(t *testing.T) {
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	const entries = 40
	for i := range entries {
		put(t, a.Thread, "x", fmt.Sprint(i), tpvm.MultiInstance|tpvm.OverWritable, i, nil)
	}
	got := map[string]bool{}
	take := func(ctx context.Context) bool {
		m, err := b.RecvInfo(ctx, "x", 0, tpvm.FirstAvail|tpvm.ReadAndDelete|tpvm.WaitForInfo)
		if err != nil {
			return false
		}
		defer m.Release()
		s, err := m.UnpackString()
		if err != nil || got[s] {
			t.Errorf("%q a second time, %v", s, err)
		}
		got[s] = true
		return true
	}
	for i := range entries / 2 {
		ctx, cancel := context.WithTimeout(deadline(t), time.Duration(i*50)*time.Microsecond)
		take(ctx)
		cancel()
	}
	for len(got) < entries && take(deadline(t)) {
	}
	if len(got) < entries {
		t.Errorf("%d of %d entries are left", len(got), entries)
	}
}

// A copy that arrives after the news that its keeper has ended is taken over too. A task that has
// taken over an entry has no copy of it left. The entry does not come back when it has been taken,
// and the task then learns once more that its first keeper has ended.
func TestMessageBoxTakenOverOnce(t *testing.T) {
	x := newBox(t, tpvm.Persistent|tpvm.OverWritable)
	x.kill()
	wantInfo(t, x.c.Thread, "x", 0, tpvm.ReadAndDelete|tpvm.WaitForInfo, "a", nil)
	data := try.Get(tpvm.EncodeInfo(str(t, x.b.Thread, "late")))(t)
	ident := x.a.PodID()
	try.OK(t, x.b.CopyInfo(deadline(t), "late", data, x.a.PodID(), ident))
	wantInfo(t, x.c.Thread, "late", 0, tpvm.WaitForInfo, "late", nil)
	wantCopies(t, x.b)
	x.want()
}

// A pod that has ended may still answer, and the directory may still have its entry. The task with
// the copy does not give the copy up for that.
func TestMessageBoxEndedKeeperAnswers(t *testing.T) {
	x := newBox(t, tpvm.Persistent)
	if x.b.AdoptInfo(deadline(t), "x") {
		t.Error("the copy was given up for an entry of the task that has ended")
	}
	wantCopies(t, x.b, "x")
	x.kill()
	x.want("a")
}

// The directory has an entry of the same name and index that no task keeps. A task has registered
// it that was asked too late to keep the entry, and is about to withdraw it. Or it is an invalid
// one of another program. The task that takes over waits until it is gone.
func TestMessageBoxKeeperGivesUp(t *testing.T) {
	for _, flags := range []string{"1", "?"} {
		x := newBox(t, tpvm.Persistent)
		first := try.Get(x.c.Rocl().Find(deadline(t), rocl.Match{"type": "mbox", "vm": x.c.VM(), "name": "x"}))(t)
		r := try.Get(x.c.Rocl().Register(deadline(t), rocl.Attrs{
			"type": "mbox", "vm": x.c.VM(), "name": "x", "index": "0", "owner": "none", "flags": flags, "entry": first.ID.String(),
			"systhread": x.c.PodID().String(),
		}))(t)
		x.kill()
		eventually.True(t, "the first entry is gone", func() bool {
			return errors.Is(second(x.c.Rocl().Lookup(deadline(t), first.ID)), rocl.ErrNotFound)
		})
		if x.b.AdoptInfo(deadline(t), "x") {
			t.Error("the copy was given up for an entry that no task keeps")
		}
		try.OK(t, r.Close())
		x.want("a")
	}
}

// An entry keeps its identity when a task of another process replaces it, and when that task exits.
// By the identity a copy is told from another entry of the same name.
func TestMessageBoxIdentity(t *testing.T) {
	x := newBox(t, tpvm.Persistent|tpvm.OverWritable)
	find := func() (id, ident string) {
		t.Helper()
		f := try.Get(x.b.Rocl().Find(deadline(t), rocl.Match{"type": "mbox", "vm": x.b.VM(), "name": "x"}, rocl.Want("entry")))(t)
		b, _ := f.Attrs.Get("entry")
		return f.ID.String(), string(b)
	}
	first, _ := find()
	put(t, x.c.Thread, "x", "c", tpvm.Persistent|tpvm.OverWritable, 0, nil)
	if _, s := find(); s != first {
		t.Errorf("replaced: the identity is %q, want %q", s, first)
	}
	try.OK(t, x.c.Exit(deadline(t)))
	if _, s := find(); s != first {
		t.Errorf("moved: the identity is %q, want %q", s, first)
	}
}

// An observer, which ends soon, keeps no copies.
func TestMessageBoxObserver(t *testing.T) {
	c := alone(t)
	a, o := enrol(t, c), enrol(t, c, tpvm.Observing())
	put(t, a.Thread, "state", "x", tpvm.Persistent, 0, nil)
	if names := o.InfoCopies(); len(names) > 0 {
		t.Error(names)
	}
}

func init() {
	programs["putter"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // puts entries, and waits to be killed
		for name, e := range map[string]struct {
			s     string
			flags tpvm.InfoFlags
		}{"goes": {"gone", 0}, "stays": {"here", tpvm.Persistent}} {
			b := t.Buffer(pack.Default)
			if err := b.PackString(e.s); err != nil {
				return err
			}
			if _, err := t.PutInfo(ctx, name, b, e.flags); err != nil {
				return err
			}
		}
		if err := t.Send(ctx, t.Parent(), 1, nil); err != nil {
			return err
		}
		_, err := t.Recv(ctx, t.Parent(), 99)
		return err
	})
}

// A payload that another program has put into the directory is refused, or unpacked without harm. A
// payload of PutInfo is unpacked as it was.
func FuzzInfoMessage(f *testing.F) {
	for _, enc := range []pack.Encoding{pack.Default, pack.Raw, pack.InPlace} {
		for _, opts := range [][]pack.Option{nil, {pack.WithTypes()}} {
			b := pack.NewBuffer(enc, opts...)
			try.OK(f, errors.Join(pack.Pack(b, []int32{1, 2}, 1), b.PackString("abc")))
			p := try.Get(tpvm.EncodeInfo(b))(f)
			f.Add(p)
		}
	}
	f.Add([]byte{})
	f.Add([]byte("of another program"))
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := tpvm.InfoMessage(p)
		if err != nil {
			if !errors.Is(err, tpvm.ErrForeign) && !errors.Is(err, pack.ErrDamaged) {
				t.Error(err)
			}
			return
		}
		if m.Len() > len(p)-1 || !m.Typed() && m.Len() != len(p)-1 || m.Tag() != 0 || m.IsGone() {
			t.Error(m.Len(), m.Tag(), m.IsGone())
		}
		v := make([]int32, 2)
		_ = pack.Unpack(&m.Reader, v, 1)
		_, _ = m.UnpackString()
		b := pack.NewBuffer(m.Encoding())
		_ = b.PackMessage(&m.Reader)
		m.Release()
	})
}
