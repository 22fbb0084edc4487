// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
)

// follower is a watch of {type=watched}, in a context of this process.
type follower struct {
	t       *testing.T
	events  chan lib.Event
	outages []*outage
}

// An outage is a time in which the daemon of a node did not run. The contexts of the node live on.
type outage struct {
	resident     string    // the name of a resource of the node
	killed, back time.Time // back is zero while the daemon does not run
}

// mayHide reports whether the daemon has been away for about as long as the grace, because this
// machine is busy: then the resource with that name may have been gone for a moment.
func (o *outage) mayHide(name string) bool {
	back := o.back
	if back.IsZero() {
		back = time.Now()
	}
	return o.resident == name && back.Sub(o.killed) > directory.GoneGrace/2
}

// next returns the next event, or false after d. It leaves out events of a resource that an outage
// may hide, unless they are of the given kind and names.
func (f *follower) next(d time.Duration, kind directory.EventKind, names ...string) (lib.Event, bool) {
	for limit := time.After(d); ; {
		select {
		case ev := <-f.events:
			name := ev.Attrs.GetString("name")
			mayBeHidden := slices.ContainsFunc(f.outages, func(o *outage) bool { return o.mayHide(name) })
			if !mayBeHidden || ev.Kind == kind && slices.Contains(names, name) {
				return ev, true
			}
		case <-limit:
			return lib.Event{}, false
		}
	}
}

func follow(t *testing.T, c *lib.Context) *follower {
	f := &follower{t: t, events: make(chan lib.Event, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev, err := range c.Watch(ctx, lib.Match{"type": "watched"}) {
			if err != nil {
				return
			}
			f.events <- ev
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return f
}

// want waits for one event of each name, and fails the test on any other event.
func (f *follower) want(kind directory.EventKind, names ...string) {
	f.t.Helper()
	for len(names) > 0 {
		ev, ok := f.next(eventually.Timeout, kind, names...)
		if !ok {
			f.t.Fatalf("not %v: %q", kind, names)
		}
		name := ev.Attrs.GetString("name")
		i := slices.Index(names, name)
		if ev.Kind != kind || i < 0 {
			f.t.Fatalf("%v %q, want %v %q", ev.Kind, name, kind, names)
		}
		names = slices.Delete(names, i, i+1)
	}
}

// none checks that no event comes for a while.
func (f *follower) none(what string, d time.Duration) {
	f.t.Helper()
	if ev, ok := f.next(d, 0); ok {
		f.t.Fatalf("%s: %v %q", what, ev.Kind, ev.Attrs.GetString("name"))
	}
}

// A watch at one node sees processes at another node come and be killed. If the daemon of either
// node is killed and started again, the watch yields only what is different, also what happened
// meanwhile. A node that dies takes its resources with it, until it is back.
//
// Promise (Watches): Resources of a killed process leave every watch at once, and those of a dead
// node when gossip says so. Both appear again when they are back. See also TestProcessDeathSeen.
func TestClusterWatch(t *testing.T) {
	key := clusterKey(t)
	sockets, binds := []string{socket(t), socket(t)}, []string{freePort(t), freePort(t)}
	daemon := func(i int) *child {
		return start(t, "serving", dirserver, "--socket", sockets[i], "--bind", binds[i], "--join", binds[1-i], "--cluster", "test", "--key-file", key)
	}
	holder := func(name string) *child { // at the first node, which it serves as the same member if it must
		return asMember(t, cluster.Member{Bind: binds[0], Join: binds[1:], KeyFile: key}, func() *child {
			return start(t, "-", rocl, "register", "--socket", sockets[0], "type=watched", "name="+name)
		})
	}
	daemons := []*child{daemon(0), daemon(1)}
	stays := holder("stays")
	first := holder("first")
	me := open(t, sockets[1], lib.JoinOnly())
	register(t, me, lib.Attrs{"type": "watched", "name": "me"})
	here, there := follow(t, open(t, sockets[1], lib.JoinOnly())), follow(t, open(t, sockets[0], lib.JoinOnly()))
	for _, f := range []*follower{here, there} {
		f.want(lib.Appeared, "stays", "first", "me")
		f.want(lib.Synced, "")
	}
	first.Kill()
	here.want(lib.Gone, "first")
	there.want(lib.Gone, "first")

	// The death of a process is seen at once: before what the next process registers.
	both := func(kind directory.EventKind) {
		for _, f := range []*follower{here, there} {
			f.want(kind, "killed")
		}
	}
	c := holder("killed")
	both(lib.Appeared)
	for range 20 {
		c.Kill()
		c = holder("killed")
		both(lib.Gone)
		both(lib.Appeared)
	}
	c.Kill()
	both(lib.Gone)

	// restart kills a daemon, calls do, and starts the daemon again.
	restart := func(i int, resident string, do func()) {
		o := &outage{resident: resident, killed: time.Now()}
		here.outages, there.outages = append(here.outages, o), append(there.outages, o)
		daemons[i].Kill()
		do()
		daemons[i] = daemon(i)
		o.back = time.Now()
	}
	restart(0, "stays", func() {})
	second := holder("second")
	for _, f := range []*follower{here, there} {
		f.want(lib.Appeared, "second")
		f.none("through a restart", 1500*time.Millisecond) // longer than the grace
	}

	var third *child
	restart(1, "me", func() { // the daemon of the watcher's node
		second.Kill()
		third = holder("third")
		there.want(lib.Gone, "second")
		there.want(lib.Appeared, "third")
	})
	for range 2 { // in this order or in the other
		ev, ok := here.next(eventually.Timeout, 0)
		if !ok {
			t.Fatal("the watch has not noticed what happened meanwhile")
		}
		if name := ev.Attrs.GetString("name"); !(ev.Kind == lib.Gone && name == "second" || ev.Kind == lib.Appeared && name == "third") {
			t.Fatalf("after the restart: %v %q", ev.Kind, name)
		}
	}
	third.Kill()
	here.want(lib.Gone, "third")
	there.want(lib.Gone, "third")

	stays.Kill()
	here.want(lib.Gone, "stays")
	there.want(lib.Gone, "stays")
	holder("last")
	here.want(lib.Appeared, "last")
	there.want(lib.Appeared, "last")
	daemons[0].signal(t, posix.SIGSTOP) // the node is dead, for all that the other members can see
	here.want(lib.Gone, "last")
	daemons[0].signal(t, posix.SIGCONT)
	here.want(lib.Appeared, "last")
}
