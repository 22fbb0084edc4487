// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/group"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A member is one member of a group in a test, on a context of its own.
type member struct {
	*rocl.Context
	*group.Group
	done chan error
}

// members joins members with the roles.
func members(t *testing.T, roles ...string) (all []*member) {
	c := rocltest.Cluster(t, 1)
	for _, role := range roles {
		m := &member{Context: c.Open(0), done: make(chan error, 1)}
		m.Group = try.Get(group.Join(t.Context(), m.Context, "g", rocl.Attrs{"role": role}))(t)
		all = append(all, m)
	}
	return all
}

// start runs the functions of members, and their Waits.
func start(all []*member, f ...func(context.Context) error) {
	for i, m := range all {
		m.Go(f[i])
		go func() { m.done <- m.Wait() }()
	}
}

func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// names checks that err has the member as the first cause.
func names(t *testing.T, err error, role string, kind error) {
	t.Helper()
	var e *group.Error
	if !errors.As(err, &e) || e.Member != "role="+role || e.Group != "g" || e.ID.IsZero() || e.Host == "" || kind != nil && !errors.Is(err, kind) {
		t.Errorf("the cause is %v, not %s with %v", err, role, kind)
	}
}

// Promise (Package group): When a member is killed, each other member returns an error that names
// it, and not the error of a function that has noticed.
func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := members(t, "source", "worker", "sink")
		me := try.Get(all[1].Register(t.Context(), nil))(t)
		from := try.Get(all[0].Register(t.Context(), nil))(t)
		start(all, func(ctx context.Context) error {
			for {
				if err := from.SendBytes(ctx, me.ID(), 1, nil); err != nil {
					return errors.Join(errors.New("the worker takes nothing"), err)
				}
				time.Sleep(time.Millisecond) // in a bubble: the source's pace
			}
		}, untilEnd, untilEnd)
		time.Sleep(time.Second)   // in a bubble: something was sent
		try.OK(t, all[1].Close()) // for the others, as if the process were killed
		names(t, <-all[0].done, "worker", group.ErrEnded)
		names(t, <-all[2].done, "worker", rocl.ErrGone)
		try.Rejects(<-all[1].done)(t)
	})
}

// Promise (Package group): The first error of a function, or its panic, is the cause in all
// members.
func TestFailed(t *testing.T) {
	for _, c := range []struct {
		f    func(context.Context) error
		is   error
		text string
	}{
		{func(context.Context) error { return errors.New("the disk is full") }, nil, "the disk is full"},
		{func(context.Context) error { panic("oops") }, group.ErrPanic, "oops"},
		{func(ctx context.Context) error { return context.DeadlineExceeded }, context.DeadlineExceeded, "deadline"},
		{func(ctx context.Context) error { return rocl.ErrUnreachable }, rocl.ErrUnreachable, "reached"}, // of something else
	} {
		synctest.Test(t, func(t *testing.T) {
			all := members(t, "source", "worker", "sink")
			start(all, untilEnd, c.f, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Minute) // in a bubble: a function that takes its time to end
				return errors.New("a consequence")
			})
			for _, m := range all {
				err := <-m.done
				names(t, err, "worker", c.is)
				if !strings.Contains(err.Error(), c.text) {
					t.Errorf("%v does not say %s", err, c.text)
				}
				try.Equal(t, m.Wait(), err)
			}
		})
	}
}

// Promise (Package group): A member that ends well ends no other, and neither does one that joins
// or leaves at the same time as another.
func TestEndsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 1)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		done := make(chan error)
		const n = 30
		for i := range n {
			rc := c.Open(0)
			go func() {
				time.Sleep(time.Duration(i/3) * time.Millisecond) // in a bubble: some at one time
				g, err := group.Join(ctx, rc, "g", rocl.Attrs{"role": "short"})
				if err == nil {
					g.Go(func(context.Context) error { time.Sleep(time.Duration(i%4) * time.Millisecond); return nil })
					err = g.Wait()
				}
				done <- errors.Join(err, rc.Close())
			}()
		}
		for range n {
			try.OK(t, <-done)
		}
		rc := c.Open(0)
		early, end := context.WithCancel(ctx)
		end()
		try.Fails(group.Join(early, rc, "g", nil))(t, context.Canceled)
	})
}

// Promise (Package group): The end of the context of one member is the failure of the group.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		var all []*member
		for i, ctx := range []context.Context{ctx, t.Context()} {
			m := &member{Context: c.Open(i), done: make(chan error, 1)}
			m.Group = try.Get(group.Join(ctx, m.Context, "g", rocl.Attrs{"role": []string{"first", "second"}[i]}))(t)
			all = append(all, m)
		}
		start(all, untilEnd, untilEnd)
		cancel()
		for _, m := range all {
			names(t, <-m.done, "first", context.Canceled)
		}
	})
}
