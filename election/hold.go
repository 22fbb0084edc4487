// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// Between two looks at the claims that changed nothing, a claim that may be the next one waits for
// a change, or as long as this.
const (
	leastPause = 5 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

// Hold waits until this process holds the name, and returns its term. The attributes are the name:
// processes that hold the same attributes, in whichever order, compete. Until then the process is a
// standby. Standbys take the name in the order of their calls of Hold, as far as these did not
// overlap. ctx ends the waiting, and does not end the term.
//
// Hold registers a resource, the claim. As a standby's it has only the attributes [AttrName] and
// [AttrClaim], so a find of the name does not find it. As the holder's it also has the attributes of
// the name, and [AttrNumber].
//
// Hold takes the name when every node has answered that neither a holder nor an older claim is
// left. While a node cannot be asked (rocl.ErrPartial), Hold waits: until the node answers, or is
// taken for dead. It fails with the cause of ctx's end, which also matches rocl.ErrPartial if Hold
// has waited for a node. It fails with rocl.ErrIncomplete for a name without attributes, with
// rocl.ErrReservedName for an attribute that begins with "election.", with ErrNumbers, and with the
// errors of [rocl.Context.Register] and [rocl.Context.Watch]. If Hold fails, it has withdrawn the
// claim.
func Hold(ctx context.Context, c *rocl.Context, name rocl.Attributes, opts ...Option) (*Term, error) {
	t := &Term{c: c, claims: map[rocl.GID]claim{}, changed: make(chan struct{}, 1), ended: make(chan struct{})}
	if name != nil {
		if err := name.AppendAttrs(&t.name); err != nil {
			return nil, fmt.Errorf("election: hold: %w", err)
		}
	}
	err := t.hold(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("election: hold %s: %w", t.text, err)
	}
	return t, nil
}

// hold is Hold without the text of its errors.
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
	if t.own.order, err = next(cfg.above); err != nil {
		return err
	}
	if t.r, err = t.c.Register(ctx, t.attrs(0), cfg.register...); err != nil {
		return err
	}
	t.own.id = t.r.ID()
	t.ctx, t.end = context.WithCancelCause(context.Background())
	go t.watch()
	if err := t.await(ctx); err != nil {
		t.end(err)
		<-t.ended
		return err
	}
	pass(t.Number())
	return nil
}

// attrs returns the attributes of a standby's claim, or if number is not 0, of the holder's.
func (t *Term) attrs(number uint64) rocl.Attributes {
	l := new(rocl.List)
	var err error
	if number != 0 {
		err = errors.Join(t.name.AppendAttrs(l), l.AddString(AttrNumber, text(number)))
	}
	return checked{l, errors.Join(err, l.AddString(AttrName, t.text), l.AddString(AttrClaim, text(t.own.order)))}
}

// checked is a list that could be made, or the reason why it could not.
type checked struct {
	*rocl.List
	err error
}

func (c checked) AppendAttrs(to *rocl.List) error {
	if c.err != nil {
		return c.err
	}
	return c.List.AppendAttrs(to)
}

func text(n uint64) string { return strconv.FormatUint(n, 10) }

// await waits until the claim is the holder's.
func (t *Term) await(ctx context.Context) error {
	pause := leastPause
	for {
		took, err := t.try(ctx)
		if took || err != nil && !errors.Is(err, rocl.ErrPartial) {
			return err
		}
		if cause := t.awaitTurn(ctx, &pause); cause != nil && err != nil {
			return fmt.Errorf("%w; %w", cause, err)
		} else if cause != nil {
			return cause
		}
	}
}

// awaitTurn returns when it may be this claim's turn, as far as the watch has told. If that is so
// already, awaitTurn waits for a change, or for the pause, which it makes longer.
func (t *Term) awaitTurn(ctx context.Context, pause *time.Duration) error {
	var again <-chan time.Time
	if t.isNext() {
		timer := time.NewTimer(*pause)
		defer timer.Stop()
		again = timer.C
		*pause = min(2**pause, mostPause)
	}
	for {
		select {
		case <-t.changed:
			if t.isNext() {
				*pause = leastPause
				return nil
			}
		case <-again:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		}
	}
}

// try asks all nodes for the claims, and makes this claim the holder's if it is its turn.
//
// Two claims do not both get that far. A claim is settled when, after its order was registered, all
// nodes were asked and no claim had a greater one. So of two settled claims the one with the lesser
// order was registered when the other one asked, and the other one waits for it. For the same
// reason the order is greater than the number of each holder before.
func (t *Term) try(ctx context.Context) (took bool, err error) {
	for {
		others, err := t.look(ctx)
		if err != nil {
			return false, err
		}
		greatest := t.greatestNumber()
		for _, o := range others {
			greatest = max(greatest, o.order)
		}
		if t.isSettled || greatest < t.own.order {
			t.isSettled = true
			return t.take(ctx, others)
		}
		order, err := next(greatest)
		if err != nil {
			return false, err
		}
		t.setOrder(order)
		if err := t.r.Set(ctx, AttrClaim, text(order)); err != nil {
			return false, err
		}
	}
}

// look asks all nodes for the other claims.
func (t *Term) look(ctx context.Context) (others []claim, err error) {
	for f, err := range t.c.FindAll(ctx, rocl.Match{AttrName: t.text}, rocl.Want(AttrClaim, AttrNumber)) {
		if err != nil {
			return nil, err
		}
		if o, ok := claimOf(&f); ok && o.id != t.own.id {
			t.saw(o)
			others = append(others, o)
		}
	}
	return others, nil
}

// take makes this claim the holder's, unless one of the others holds the name or is older.
func (t *Term) take(ctx context.Context, others []claim) (took bool, err error) {
	for _, o := range others {
		if o.number != 0 || o.isOlder(t.own) {
			return false, nil
		}
	}
	number := t.own.order
	if seen := t.greatestNumber(); seen >= number { // of a holder that came before while it was cut off
		if number, err = next(seen); err != nil {
			return false, err
		}
	}
	if err := t.r.Update(ctx, t.attrs(number)); err != nil {
		return false, err
	}
	t.number.Store(number)
	if err := t.rival(); err != nil { // the watch may have told of it before the line above
		t.end(err)
	}
	return true, nil
}
