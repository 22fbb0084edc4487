// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// Attributes of a member's resource, besides those of the program.
const (
	attrGroup = "group" // the name of the group
	attrHost  = "host"  // the name of the machine
)

// The tags of messages between members.
const (
	tagHello  = 1 // call: an introduction; the reply is empty, or an introduction if the member stays
	tagDone   = 2 // the member has ended well
	tagFailed = 3 // the cause, as a notice
	tagGone   = 4 // of monitors
)

// settle is how long a function's error that says that another resource has ended waits for the
// news which member that is. That news comes from the monitors of the members, at about the same
// time.
const settle = time.Second

// tellWithin limits how long a member that ends waits for room at the others.
const tellWithin = time.Second

var (
	// ErrEnded is matched by the cause if a member has ended, or was cut off, before its functions
	// had returned.
	ErrEnded = errors.New("group: the member has ended")
	// ErrPanic is matched by the cause if a function has panicked.
	ErrPanic = errors.New("group: the function panicked")
)

// An Error is why a group has failed. Each member that learns of it in time returns it from Wait.
type Error struct {
	Group  string
	ID     rocl.GID // the member's resource
	Member string   // its attributes, as "role=worker shard=3"
	Host   string   // its machine
	// Err is the error of the member's function, or matches ErrEnded. In other processes it has the
	// text, and matches ErrEnded, ErrPanic, rocl.ErrGone, rocl.ErrUnreachable, context.Canceled and
	// context.DeadlineExceeded if the function's error did.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("group %s: member %s (%v) on %s: %v", e.Group, e.Member, e.ID, e.Host, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// A Group is this process's membership in a group. Its methods may be called concurrently.
type Group struct {
	name string
	c    *rocl.Context
	self *rocl.Resource
	me   Error // without Err

	ctx    context.Context // of functions
	cancel context.CancelCauseFunc
	work   sync.WaitGroup  // functions
	life   context.Context // of the goroutines below
	end    context.CancelFunc
	wg     sync.WaitGroup
	finish func() error // of Wait

	mu        sync.Mutex           // no call waits while it is held
	members   map[rocl.GID]*member // that know this member, and will tell it how they end
	greeted   []rocl.GID           // to which this member has said hello
	isClosed  bool                 // the context of this process is closed
	isOver    bool                 // the functions have ended well
	candidate *Error               // will be the cause, unless a better one comes soon
	cause     *Error               // why the group has failed
	decided   chan struct{}        // closed when there is a cause
	told      chan struct{}        // closed when the others were told the cause
}

// A member is another member of the group.
type member struct {
	about  Error // without Err
	isDone bool
}

// Join makes this process a member of the group with a name. The member has the attributes a, which
// name it in errors. Join returns when it knows the members that are there. Members that join later
// become known. The program calls Wait.
//
// The end of ctx ends the contexts of the functions. Join fails as rocl.Context.Register and Watch
// do.
func Join(ctx context.Context, c *rocl.Context, name string, a rocl.Attrs) (*Group, error) {
	if c == nil {
		return nil, fmt.Errorf("group: join %s: %w: the context is nil", name, fs.ErrInvalid)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	attrs := rocl.Attrs{}
	for k, v := range a {
		attrs[k] = v
	}
	attrs[attrGroup], attrs[attrHost] = name, host
	g := &Group{name: name, c: c, members: map[rocl.GID]*member{}, decided: make(chan struct{}), told: make(chan struct{})}
	if g.self, err = c.Register(ctx, attrs); err != nil {
		return nil, fmt.Errorf("group: join %s: %w", name, err)
	}
	var own rocl.List
	_ = attrs.AppendAttrs(&own) // has succeeded in Register
	g.me = describe(g.self.ID(), &own)
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.life, g.end = context.WithCancel(context.WithoutCancel(ctx))
	g.finish = sync.OnceValue(g.wait)
	synced := make(chan error, 1)
	g.wg.Go(func() { g.watch(synced) })
	g.wg.Go(g.receive)
	select {
	case err = <-synced:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		g.mu.Lock()
		g.isOver = true
		g.mu.Unlock()
		g.tell(tagDone, nil)
		g.end()
		g.cancel(err)
		g.wg.Wait()
		return nil, fmt.Errorf("group: join %s: %w", name, errors.Join(err, g.self.Close()))
	}
	return g, nil
}

// describe returns the Error of a member, without Err.
func describe(id rocl.GID, a *rocl.List) Error {
	e := Error{ID: id, Group: a.GetString(attrGroup), Host: a.GetString(attrHost)}
	var names []string
	for name, value := range a.All() {
		if name != attrGroup && name != attrHost {
			names = append(names, name+"="+string(value))
		}
	}
	slices.Sort(names)
	e.Member = strings.Join(names, " ")
	return e
}

// Go runs a function of this member in a goroutine. The ctx of f ends when the group has failed.
// The first error of a function, in any member, is the cause of the group's failure. A panic is an
// error that matches ErrPanic. Go must not be called after Wait has returned.
func (g *Group) Go(f func(ctx context.Context) error) {
	g.work.Go(func() {
		if err := protect(g.ctx, f); err != nil {
			e := g.me
			e.Err = err
			isSure := !errors.Is(err, rocl.ErrGone) && !errors.Is(err, rocl.ErrUnreachable)
			g.fail(&e, isSure)
		}
	})
}

func protect(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v\n%s", ErrPanic, v, debug.Stack())
		}
	}()
	return f(ctx)
}

// Wait waits until the functions of this member have returned, takes leave of the others, and
// returns the *Error with the first cause that this member knows, or nil if the group has not
// failed. The other members may go on after Wait has returned nil.
func (g *Group) Wait() error { return g.finish() }

func (g *Group) wait() error {
	g.work.Wait()
	g.mu.Lock()
	isOpen := g.candidate != nil && g.cause == nil
	g.mu.Unlock()
	if isOpen {
		<-g.decided
	}
	g.mu.Lock()
	cause := g.cause
	if cause == nil {
		g.isOver = true
	}
	g.mu.Unlock()
	if cause == nil {
		g.tell(tagDone, nil)
	} else {
		<-g.told
	}
	g.end()
	g.wg.Wait()
	err := g.self.Close()
	if cause != nil {
		return cause
	}
	return err
}

// fail ends the group with a cause. If it is not sure, because it may be the consequence of another
// one, the group waits a bit for that one.
func (g *Group) fail(e *Error, isSure bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.cause != nil || g.isOver:
		return
	case isSure:
		g.cause = e
		close(g.decided)
		g.wg.Go(func() {
			defer close(g.told)
			g.tell(tagFailed, newNotice(e))
		})
	case g.candidate == nil:
		g.candidate = e
		time.AfterFunc(settle, func() { g.fail(e, true) })
	}
	g.cancel(e)
}
