// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// Errors of this package.
var (
	// ErrLost is the reason of [Term.Err] if another process holds the name too, by an older claim.
	ErrLost = errors.New("election: another process holds the name by an older claim")
	// ErrClosed is the reason of [Term.Err] after [Term.Close].
	ErrClosed = errors.New("election: the term was closed")
	// ErrNumbers is returned if a claim, or [Above], leaves no number above it.
	ErrNumbers = errors.New("election: there is no number above that of a claim")
)

// An Option changes a default of [Hold].
type Option func(*config)

type config struct {
	above    uint64
	register []rocl.RegisterOption
}

// Above makes the fencing number greater than n. A program whose storage keeps the greatest number
// that it has seen gives it to Hold. Then numbers grow even if all processes have ended meanwhile
// and the clock was set back.
func Above(n uint64) Option { return func(c *config) { c.above = max(c.above, n) } }

// WithRegister sets options for the registration of the term's resource, such as
// [rocl.MailboxMessages].
func WithRegister(opts ...rocl.RegisterOption) Option {
	return func(c *config) { c.register = append(c.register, opts...) }
}

// A standby that cannot know whether it is its turn asks again after a pause, and then after twice
// that.
const (
	leastPause = 5 * time.Millisecond
	mostPause  = 500 * time.Millisecond

	// placePause is the first pause for a claim that is registered and has no place yet.
	placePause = 50 * time.Microsecond

	// silencePause is how often a standby looks whether the link with a dead node has noticed that.
	silencePause = 20 * time.Millisecond
)

// tagEnded is the tag of the monitors of claims.
const tagEnded = 1<<63 | 0x656c656374 // elect

// Hold waits until this process holds the name, and returns its term. The attributes are the name:
// processes that hold the same attributes, in whichever order, compete. Until then the process is a
// standby. Standbys take the name in the order of their calls of Hold, as far as these did not
// overlap. ctx ends the waiting, and does not end the term.
//
// Hold registers a resource, the claim. As a standby's it has only the attributes [AttrName] and
// [AttrClaim], so a find of the name does not find it. As the holder's it also has the attributes
// of the name, and [AttrNumber].
//
// Hold takes the name when every node has answered that neither a holder nor an older claim is
// left. While a node cannot be asked (rocl.ErrPartial), Hold waits: until the node answers, or is
// taken for dead. It fails with the cause of ctx's end, which also matches rocl.ErrPartial if Hold
// has waited for a node. It fails with rocl.ErrIncomplete for a name without attributes, with
// rocl.ErrReservedName for an attribute that begins with "election.", with ErrNumbers, and with the
// errors of [rocl.Context.Register] and [rocl.Context.Watch]. If Hold fails, it has withdrawn the
// claim.
func Hold(ctx context.Context, c *rocl.Context, name rocl.Attributes, opts ...Option) (*Term, error) {
	if c == nil {
		return nil, fmt.Errorf("election: hold: %w: the context is nil", fs.ErrInvalid)
	}
	t := &Term{c: c, ended: make(chan struct{})}
	if name != nil {
		if err := name.AppendAttrs(&t.name); err != nil {
			return nil, fmt.Errorf("election: hold: %w", err)
		}
	}
	err := t.hold(ctx, opts)
	if err != nil {
		if t.r != nil {
			err = errors.Join(err, t.r.Close())
		}
		return nil, fmt.Errorf("election: hold %s: %w", t.text, err)
	}
	pass(t.Number())
	t.ctx, t.end = context.WithCancelCause(context.Background())
	go t.watch()
	return t, nil
}

// hold is Hold without the text of its errors, and without what follows when the name is held. It
// leaves the claim to Hold.
//
// Two claims do not both get the name. A claim is settled when, after it was registered, all nodes
// were asked and no claim was greater. So of two settled claims the older one was registered when
// the younger one asked, and the younger one waits for it. For the same reason the number of a
// claim is above that of each holder that it has waited for.
//
// A claim is registered before it gets its place, and those that see it wait until it has one
// (Lamport's bakery algorithm: a process says that it is choosing). Otherwise a claim could get a
// place, another one could take the name with a greater number and end, and only then would the
// first one be registered.
func (t *Term) hold(ctx context.Context, opts []Option) (err error) {
	var cfg config
	for _, o := range opts {
		if o != nil {
			o(&cfg)
		}
	}
	if t.text, err = nameText(&t.name); err != nil {
		return err
	}
	t.greatest = cfg.above
	if err := t.claim(ctx, cfg.above, cfg.register); err != nil {
		return err
	}
	return t.queue(ctx, cfg.register)
}

// queue waits until it is the claim's turn, and takes the name.
func (t *Term) queue(ctx context.Context, opts []rocl.RegisterOption) error {
	isSettled, pause, last := false, leastPause, rocl.GID{}
	for {
		others, err := t.look(ctx)
		if err != nil {
			return err
		}
		if greatest := t.greatestOf(others); !isSettled && greatest >= t.own.order {
			if err := t.r.Delete(ctx); err != nil {
				return err
			}
			if err := t.claim(ctx, greatest, opts); err != nil {
				return err
			}
			continue
		}
		isSettled = true
		id := t.before(others)
		if id.IsZero() {
			return t.take(ctx)
		}
		if id != last {
			pause, last = leastPause, id
		} else if err := wait(ctx, pause); err != nil { // it has ended, but not for the directory
			return err
		}
		pause = min(2*pause, mostPause)
		if err := t.awaitEnd(ctx, id); err != nil {
			return err
		}
	}
}

// claim registers a claim that is younger than the given number.
func (t *Term) claim(ctx context.Context, than uint64, opts []rocl.RegisterOption) error {
	if err := t.register(ctx, opts); err != nil {
		return err
	}
	return t.place(ctx, than)
}

// register registers a claim without a place.
func (t *Term) register(ctx context.Context, opts []rocl.RegisterOption) (err error) {
	if t.r, err = t.c.Register(ctx, rocl.Attrs{AttrName: t.text}, opts...); err == nil {
		t.own.id = t.r.ID()
	}
	return err
}

// place gives the claim its place, behind the given number.
func (t *Term) place(ctx context.Context, than uint64) (err error) {
	if t.own.order, err = next(than); err != nil {
		return err
	}
	return t.r.Set(ctx, AttrClaim, text(t.own.order))
}

// attrs returns the attributes of a standby's claim, or if number is not 0, of the holder's.
func (t *Term) attrs(number uint64) (l *rocl.List, err error) {
	l = new(rocl.List)
	if number != 0 {
		err = errors.Join(t.name.AppendAttrs(l), l.AddString(AttrNumber, text(number)))
	}
	return l, errors.Join(err, l.AddString(AttrName, t.text), l.AddString(AttrClaim, text(t.own.order)))
}

func text(n uint64) string { return strconv.FormatUint(n, 10) }

// look returns the other claims, when all nodes have told theirs and all have a place.
func (t *Term) look(ctx context.Context) (others []claim, err error) {
	for pause := placePause; ; pause = min(2*pause, mostPause) {
		others = others[:0]
		areAllPlaced := true
		for f, ferr := range t.c.FindAll(ctx, rocl.Match{AttrName: t.text}, wanted) {
			if err = ferr; err != nil {
				break
			}
			if _, isPlaced := f.Attrs.Get(AttrClaim); !isPlaced {
				areAllPlaced = false
			}
			if o, ok := claimOf(&f); ok && o.id != t.own.id {
				others = append(others, o)
				t.greatest = max(t.greatest, o.greatest())
			}
		}
		switch isPartial := errors.Is(err, rocl.ErrPartial); {
		case err != nil && !isPartial || err == nil && areAllPlaced:
			return others, err
		case isPartial:
			pause = max(pause, leastPause)
		}
		if cause := wait(ctx, pause); cause != nil {
			if err != nil {
				cause = fmt.Errorf("%w; %w", cause, err)
			}
			return nil, cause
		}
	}
}

// wait waits for the pause. It returns the cause of ctx's end.
func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// greatestOf returns the greatest number of claims, and of all holders that were seen.
func (t *Term) greatestOf(others []claim) uint64 {
	greatest := t.greatest
	for _, o := range others {
		greatest = max(greatest, o.order)
	}
	return greatest
}

// before returns the claim for whose end this one waits: the youngest of the older ones. If there
// is none, it returns the holder, which may be younger after a cut, or the zero identifier.
func (t *Term) before(others []claim) (id rocl.GID) {
	var last claim
	for _, o := range others {
		switch isOlder := o.isOlder(t.own); {
		case isOlder && (id.IsZero() || last.isOlder(o)):
			id, last = o.id, o
		case !isOlder && o.number != 0 && last.id.IsZero():
			id = o.id
		}
	}
	return id
}

// errNodeDead ends the wait for the end of a claim whose node is dead.
var errNodeDead = errors.New("election: the node of the claim is dead")

// awaitEnd waits until the process of a claim has ended, or the resource was deleted. A denial of
// the directory is not enough: its own process may have failed, or its connection with the process
// of the claim. A monitor tells the truth, but takes some seconds if another machine is dead.
func (t *Term) awaitEnd(ctx context.Context, id rocl.GID) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	stop, err := t.r.Monitor(ctx, id, tagEnded)
	if err == nil {
		watching.Go(func() { t.watchClaim(ctx, id, cancel) })
		var m *rocl.Message
		if m, err = t.r.Recv(ctx, rocl.From(id), rocl.Tag(tagEnded)); err == nil {
			m.Release()
		}
		stop()
		if m, err := t.r.TryRecv(rocl.From(id), rocl.Tag(tagEnded)); err == nil { // it came before stop
			m.Release()
		}
	}
	if errors.Is(err, rocl.ErrGone) || err != nil && context.Cause(ctx) == errNodeDead {
		return nil
	}
	return err
}

// watchClaim watches the claim for whose end this one waits, and its node. It notes the number of
// the holder, and tells it to the standbys behind, so that a number that has grown is known to the
// next holder. It ends the wait when the node is dead, as gossip says, and this context has no
// connection with that of the claim. So a claim stays if only the directory of its node has failed.
// watchClaim returns when ctx ends, or when the watch fails: then the monitor alone counts.
func (t *Term) watchClaim(ctx context.Context, id rocl.GID, end context.CancelCauseFunc) {
	var polling sync.WaitGroup
	defer polling.Wait()
	back := func() {} // ends the polling
	node, err := rocl.ParseGID(fmt.Sprintf("%012x-0-0", uint64(id.Node())))
	if err != nil {
		end(err)
		return
	}
	for ev, err := range t.c.WatchIDs(ctx, id, node) {
		switch {
		case err != nil:
			return
		case ev.ID == node && ev.Kind == rocl.Gone:
			dead, cancel := context.WithCancel(ctx)
			back = cancel
			polling.Go(func() {
				defer cancel()
				for err := error(nil); err == nil; err = wait(dead, silencePause) {
					if !t.isConnected(id) {
						end(errNodeDead)
						return
					}
				}
			})
		case ev.ID == node:
			back()
		case ev.Kind == rocl.Appeared || ev.Kind == rocl.Changed:
			if o, ok := claimOf(&ev.Found); ok && o.greatest() > t.greatest {
				if t.greatest = o.greatest(); t.greatest >= t.own.order && t.r.Set(ctx, attrAbove, text(t.greatest)) != nil {
					return
				}
			}
		}
	}
}

// isConnected reports whether this context has a connection with that of a resource.
func (t *Term) isConnected(id rocl.GID) bool {
	return slices.ContainsFunc(t.c.Routes(), func(r rocl.Route) bool {
		return r.Peer.Context() == id.Context() && r.Transport != ""
	})
}

// take makes this claim the holder's.
func (t *Term) take(ctx context.Context) (err error) {
	number := t.own.order
	if t.greatest >= number { // of a holder that came before this claim while it was cut off
		if number, err = next(t.greatest); err != nil {
			return err
		}
	}
	l, err := t.attrs(number)
	if err != nil {
		return err
	}
	if err := t.r.Update(ctx, l); err != nil {
		return err
	}
	t.number.Store(number)
	return nil
}
