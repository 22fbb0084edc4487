// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The process that serves the directory of a node without a daemon is killed. Its end is noticed as
// that of any other process is: calls, monitors and watches do not wait for a time to pass. A busy
// machine may delay one takeover, so the fastest of several counts.
//
// Promise (Resources): The end of the serving process is noticed like that of any other. If all
// living contexts have `JoinOnly`, it is given up after `WithGiveUp`. See also
// TestRecoveryTakesNoTime.
func TestServingProcessEndNoticed(t *testing.T) {
	const (
		most     = 200 * time.Millisecond // less than each constant that a takeover could wait for
		attempts = 20
	)
	var fastest map[string]time.Duration
	for range attempts {
		took := serverKilled(t)
		if fastest == nil {
			fastest = took
		}
		isSlow := false
		for what, d := range took {
			fastest[what] = min(fastest[what], d)
			isSlow = isSlow || fastest[what] > most
		}
		if !isSlow {
			t.Log(fastest)
			return
		}
	}
	t.Errorf("in %d takeovers the fastest news of the end took %v", attempts, fastest)
}

// serverKilled kills the process that serves a new node, and returns how long it took until a call,
// a monitor and a watch had noticed.
func serverKilled(t *testing.T) (took map[string]time.Duration) {
	sock := socket(t)
	first := start(t, "-", rocl, "register", "--socket", sock, "i=first")
	near, far := open(t, sock), open(t, sock)
	me, caller := register(t, near, nil), register(t, far, nil)
	ctx, cancel := context.WithCancel(eventually.Context(t))
	defer cancel()
	target := try.Get(near.Find(ctx, lib.Match{"i": "first"}))(t)
	try.Get(me.Monitor(ctx, target.ID, 1))(t)
	type news struct {
		what string
		err  error
	}
	all := make(chan news, 3)
	go func() {
		m, err := me.Recv(ctx)
		if err == nil {
			if !m.IsGone() {
				err = errors.New("another message")
			}
			m.Release()
		}
		all <- news{"monitor", err}
	}()
	go func() {
		_, err := caller.CallBytes(ctx, target.ID, 1, nil)
		if errors.Is(err, lib.ErrGone) {
			err = nil
		}
		all <- news{"call", err}
	}()
	synced := make(chan struct{})
	go func() {
		for ev, err := range near.Watch(ctx, lib.Match{"i": "first"}) {
			if err == nil && ev.Kind == directory.Synced {
				close(synced)
			}
			if err != nil || ev.Kind == directory.Gone {
				all <- news{"watch", err}
				return
			}
		}
	}()
	<-synced
	eventually.True(t, "the call is under way", func() bool { return far.Stats().Calls > 0 })
	killed := time.Now()
	first.Kill()
	took = map[string]time.Duration{}
	for range cap(all) {
		n := <-all
		took[n.what] = time.Since(killed)
		try.OK(t, n.err, "the %s ended with", n.what)
	}
	if _, err := far.Find(ctx, lib.Match{"i": "first"}); !errors.Is(err, lib.ErrNotFound) {
		t.Fatal(err)
	}
	return took
}

// If the process that serves the directory is killed, and no other one may serve, a context gives
// up those of that process after WithGiveUp.
func TestNoProcessTakesOver(t *testing.T) {
	sock := socket(t)
	first := start(t, "-", rocl, "register", "--socket", sock, "i=first")
	c := open(t, sock, lib.JoinOnly(), lib.WithGiveUp(100*time.Millisecond))
	me := register(t, c, nil)
	ctx := eventually.Context(t)
	target := try.Get(c.Find(ctx, lib.Match{"i": "first"}))(t)
	ended := make(chan error, 1)
	go func() {
		_, err := me.CallBytes(ctx, target.ID, 1, nil)
		ended <- err
	}()
	eventually.True(t, "the call is under way", func() bool { return c.Stats().Calls > 0 })
	first.Kill()
	if err := <-ended; !errors.Is(err, lib.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
