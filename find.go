// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unsafe"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A number is a type of the numbers with which [At] compares attributes.
type number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// At narrows a pattern to the resources whose attribute is a number for which op holds. At("cores",
// rocl.Ge, 4) matches resources with 4 cores or more. Several conditions must all hold. A pattern
// has at most 16. n is any integer or floating-point
// number; one that is not finite is an error.
//
// The attribute's value is a decimal text of at most 128 bytes, such as 4, -0.25 or 1e9, and is
// compared without rounding. An attribute that is missing, or is not a number, does not match, not
// even rocl.Ne. If several attributes have the name, the first counts.
//
// Each node compares the resources that are registered there. A find by the node's index in shared
// memory compares in this process, and so do a watch and Await.
func At[N number](name string, op Op, n N) FindOption {
	text := format(n)
	return func(c *findConfig) {
		c.conditions = append(c.conditions, func(l *List) error { return l.Compare(name, op, text) })
	}
}

// format returns a number as a decimal text. It does not use fmt, because the number's type may
// have a String method.
func format[N number](n N) string {
	one := N(1)
	switch {
	case one/2 != 0 && unsafe.Sizeof(n) == 4:
		return strconv.FormatFloat(float64(n), 'g', -1, 32)
	case one/2 != 0:
		return strconv.FormatFloat(float64(n), 'g', -1, 64)
	case n < 0:
		return strconv.FormatInt(int64(n), 10)
	}
	return strconv.FormatUint(uint64(n), 10)
}

// Least orders the answers by the number in an attribute, the least first. Find with Least("load")
// returns the resource with the least load. A resource whose attribute is missing, or is not a
// number, comes last. Among equal resources the choice of the first varies. A pattern has one
// order.
//
// Find asks every node for its first resource and returns the first among the answers. So it takes
// as long as the slowest node: some seconds if a node does not answer and is not known to be dead.
// Find without an order returns the first answer that comes. Nodes that could not be asked are left
// out; [Covered] tells which.
//
// FindAll with an order yields nothing before all answers have come, and then yields them in that
// order. Await returns the resources in that order. Watch refuses an order.
func Least(name string) FindOption { return orderBy(name, false) }

// Most orders the answers by the number in an attribute, the greatest first. Otherwise it is like
// [Least].
func Most(name string) FindOption { return orderBy(name, true) }

// orderBy returns the option of Least or Most.
func orderBy(name string, most bool) FindOption {
	return func(c *findConfig) {
		c.conditions = append(c.conditions, func(l *List) error { return l.OrderBy(name, most) })
	}
}

var noOptions findConfig // not changed

// Await waits until at least n resources match the pattern a at the same time. Without an order it
// returns n of them, in the order in which the directory named them. With [Least] or [Most] it
// returns all that match, in that order. Await watches and does not poll. n is 1 or more. The
// options are those of [Context.Find].
//
// The resources matched as Await returned, as far as the directory knew. If ctx ends, Await fails
// with its cause, and the error says how many resources matched. Await also fails with the errors
// of [Context.Watch], and with ErrCondition at once for an n below 1.
func (c *Context) Await(ctx context.Context, a Attributes, n int, opts ...FindOption) ([]Found, error) {
	found, matching, err := c.await(ctx, a, n, opts)
	if err != nil {
		return nil, fmt.Errorf("rocl: await %d resources: %d match: %w", n, matching, err)
	}
	return found, nil
}

// await is Await without the text of its error. It also returns how many resources match.
func (c *Context) await(ctx context.Context, a Attributes, n int, opts []FindOption) (found []Found, matching int, err error) {
	if n < 1 {
		return nil, 0, fmt.Errorf("%w: n must be 1 or more", resource.ErrCondition)
	}
	p, _, err := newPattern(a, opts)
	if err != nil {
		return nil, 0, err
	}
	o, p, err := orderOf(p)
	if err != nil {
		return nil, 0, err
	}
	there, err := c.gather(ctx, p, n, o.isSet)
	if err != nil {
		return nil, len(there), err
	}
	for _, m := range slices.SortedFunc(maps.Values(there), func(a, b match) int { return cmp.Compare(a.nth, b.nth) }) {
		found = append(found, m.Found)
	}
	o.sort(found)
	return found, len(found), nil
}

// An order is that of the resources that Await returns.
type order struct {
	isSet   bool // [Least] or [Most] was given
	by      string
	most    bool
	isAdded bool // the answers have the attribute only for the comparison
}

// orderOf returns the order of a pattern, and the pattern without it, whose answers have the
// attribute of the order.
func orderOf(p *List) (order, *List, error) {
	var o order
	if o.by, o.most, o.isSet = p.Order(); !o.isSet {
		return o, p, nil
	}
	l := p.WithoutOrder()
	if o.isAdded = !p.Complete() && !isAnswered(p, o.by); o.isAdded {
		if err := l.Want(o.by); err != nil {
			return o, nil, err
		}
	}
	return o, &l, nil
}

// sort sorts the resources, and removes the attribute that they have only for that.
func (o *order) sort(found []Found) {
	if !o.isSet {
		return
	}
	slices.SortStableFunc(found, func(a, b Found) int {
		x, y := resource.RankOf(&a.Attrs, o.by, o.most), resource.RankOf(&b.Attrs, o.by, o.most)
		return x.Compare(&y)
	})
	for i := range found {
		if o.isAdded {
			found[i].Attrs.Remove(o.by)
		}
	}
}

// isAnswered reports whether the answers to a pattern that is not complete have an attribute.
func isAnswered(p *List, name string) bool {
	_, known := p.Get(name)
	return known || icontext.Wants(p, name)
}

// A match is a resource that matches the pattern of Await, with its place among all that have
// matched.
type match struct {
	Found
	nth int
}

// gather watches until n resources match the pattern p, or until all that match are known if that
// is later and all is set. With an error it returns the resources that matched.
func (c *Context) gather(ctx context.Context, p *List, n int, all bool) (map[GID]match, error) {
	there, nth, synced := map[GID]match{}, 0, false
	for ev, err := range c.events(ctx, p) {
		if err != nil {
			return there, err
		}
		switch ev.Kind {
		case directory.Synced:
			synced = true
		case directory.Gone:
			delete(there, ev.ID)
		default:
			m, known := there[ev.ID]
			if !known {
				nth++
				m.nth = nth
			}
			m.Found = ev.Found
			there[ev.ID] = m
		}
		if len(there) >= n && (synced || !all) {
			break
		}
	}
	return there, nil
}

// Set gives one attribute of the resource a value and leaves the others as they are. The value
// replaces all values of that name, or the attribute is added. Watchers see the resource change,
// and a find sees all of the change or none of it, as with [Resource.Update]. Set, Update and
// CompareAndSet may be called concurrently: each Set changes the latest attributes, and undoes no
// other change. Set fails as [Resource.Update] does.
func (r *Resource) Set(ctx context.Context, name, value string) error {
	var probe List
	err := probe.AddString(name, value)
	if err == nil {
		err = resource.CheckUser(&probe)
	}
	if err == nil && r.deleting.Load() {
		err = dispatch.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("rocl: set %q of %v: %w", name, r.id, err)
	}
	rev, err := r.c.dir.Change(ctx, r.id, func(l *List) error { return l.Replace(name, []byte(value)) })
	if err != nil {
		return fmt.Errorf("rocl: set %q of %v: %w", name, r.id, r.wrap(err))
	}
	r.revised(rev)
	return nil
}

// revised notes a revision of the attributes, unless a later one is known.
func (r *Resource) revised(rev uint64) {
	for old := r.rev.Load(); rev > old && !r.rev.CompareAndSwap(old, rev); old = r.rev.Load() {
	}
}

// SendTo sends the message in b to one resource that matches the pattern a, and returns its
// identifier. It chooses any match, or with [Least] or [Most] the first in that order. If the
// resource is gone or cannot be reached, SendTo tries the other matches, one after another, until
// one accepts the message. It waits for a connection to each context once. The options are those of
// [Context.Find].
//
// nil means accepted, as for [Resource.Send], and SendTo has taken over the caller's reference to
// b. If SendTo fails, b stays the caller's. SendTo waits while the mailbox of the chosen resource
// has no room. It fails with ErrNotFound or ErrPartial if no resource matches. If all
// that match are gone or cannot be reached, it fails with the error of the last one.
//
// [Resource.SendToAll] sends to all matches.
func (r *Resource) SendTo(ctx context.Context, a Attributes, tag uint64, b *Buffer, opts ...FindOption) (GID, error) {
	f, err := r.c.Find(ctx, a, opts...)
	if err != nil {
		return GID{}, err
	}
	tried := map[GID]bool{} // resources, and contexts
	for {
		err := r.Send(ctx, f.ID, tag, b)
		if err == nil {
			return f.ID, nil
		}
		tried[f.ID] = true
		if dispatch.HasGivenUp(err) {
			tried[f.ID.Context()] = true
		}
		if !isLost(err) || ctx.Err() != nil {
			return GID{}, err
		}
		found := false
		for next, ferr := range r.c.FindAll(ctx, a, opts...) {
			if ferr != nil && !errors.Is(ferr, directory.ErrPartial) {
				return GID{}, ferr
			}
			if found = ferr == nil && !tried[next.ID] && !tried[next.ID.Context()]; found {
				f = next
				break
			}
		}
		if !found {
			return GID{}, err
		}
	}
}

// SendToAll sends the message in b to each resource that matches the pattern a, as
// [Resource.SendAll] does, and returns how many resources accepted it. The resource r itself is
// among them if it matches. If no resource matches, SendToAll returns 0 and nil. The options are
// those of [Context.FindAll].
//
// A resource that ends meanwhile is skipped. The other errors are those of SendAll. If a node could
// not be asked, the resources of the other nodes get the message and the error matches
// ErrPartial; with [Covered] only if nodes may exist that this one has not met.
//
// If SendToAll returns nil, it has taken over the caller's reference to b. If it fails, b stays the
// caller's, even if some resources accepted the message.
func (r *Resource) SendToAll(ctx context.Context, a Attributes, tag uint64, b *Buffer, opts ...FindOption) (int, error) {
	var ids []GID
	var partial error
	for f, err := range r.c.FindAll(ctx, a, opts...) {
		if partial = err; err == nil {
			ids = append(ids, f.ID)
		} else if !errors.Is(err, directory.ErrPartial) {
			return 0, err
		}
	}
	failed := r.sendAll(ctx, ids, tag, b)
	accepted := len(ids) - len(failed)
	failed = slices.DeleteFunc(failed, func(e *SendError) bool { return errors.Is(e, dispatch.ErrGone) })
	if len(failed) > 0 {
		return accepted, errors.Join(failed, partial)
	}
	if partial == nil {
		b.Release()
	}
	return accepted, partial
}
