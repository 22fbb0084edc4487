// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A Number is what attributes are compared with; see [At].
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// At narrows a pattern to the resources whose attribute is a number for which op holds:
// At("cores", rocl.Ge, 4) matches what has 4 cores or more. Several conditions must all
// hold.
//
// The attribute's value is a decimal text of at most 128 bytes, such as 4, -0.25 or
// 1e9, and is compared without rounding. An attribute that is no number, or missing,
// does not match, not even rocl.Ne. Of several attributes with the name the first one
// counts.
//
// Each node compares what is registered there. A find by the node's index in shared
// memory compares there. A watch, and with it Await, compares in the watching process.
// A pattern has at most 16 conditions. A node of a version that does not know them does
// not answer in a cluster, which is ErrPartial. If this node's directory does not know them,
// the error is that of the standard library, errors.ErrUnsupported, and not
// rocl.ErrUnsupported. A number that is not finite is an error.
func At[N Number](name string, op resource.Op, n N) FindOption {
	text := format(n)
	return func(c *findConfig) {
		c.conditions = append(c.conditions, func(l *resource.List) error { return l.Compare(name, op, text) })
	}
}

// format writes a number as a decimal text. It does not use fmt, for which a type may
// have a String method.
func format[N Number](n N) string {
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

// Least orders by the number in an attribute, the least first: Find with Least("load")
// returns the resource with the least load. A resource whose attribute is no number, or
// missing, comes last; among equal ones, which is first varies. A pattern has one order.
//
// Find asks every node for its first one and returns the first among the answers. So it
// takes as long as the slowest node, up to some seconds where a node does not answer and
// is not known to be dead, where Find without an order returns the first answer that
// comes. Nodes that could not be asked are left out; [Covered] tells which.
//
// FindAll with an order yields nothing before all answers have come, and then all in
// that order. Await returns what it has found in that order. Watch refuses an order.
func Least(name string) FindOption { return orderBy(name, false) }

// Most is Least with the greatest number first.
func Most(name string) FindOption { return orderBy(name, true) }

func orderBy(name string, most bool) FindOption {
	return func(c *findConfig) {
		c.conditions = append(c.conditions, func(l *resource.List) error { return l.OrderBy(name, most) })
	}
}

var noOptions findConfig // not changed

// refine adds to a pattern what the options say. A known AttrContext becomes its owner:
// no resource has that attribute among its own.
func (cfg *findConfig) refine(l *resource.List) (*resource.List, error) {
	for _, add := range cfg.conditions {
		if err := add(l); err != nil {
			return nil, err
		}
	}
	if _, named := l.Get(AttrContext); !named {
		return l, nil
	}
	var owners []resource.GID
	for v := range l.Values(AttrContext) {
		id, err := resource.ParseGID(string(v))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", AttrContext, err)
		}
		owners = append(owners, id)
	}
	wanted := slices.Contains(slices.Collect(l.Wanted()), AttrContext)
	l.Remove(AttrContext)
	for _, id := range owners {
		if err := l.OwnedBy(id); err != nil {
			return nil, err
		}
	}
	if wanted {
		return l, l.Want(AttrContext)
	}
	return l, nil
}

// Await waits until at least n resources match the pattern a at the same time, and
// returns those that do: in the order in which it heard of them, or that of Least or
// Most. It does not poll: it watches. n is 1 or more. The options are those of Find.
//
// What Await returns matched as it returned, as far as the directory knew. It fails with
// the cause of ctx's end, and says how many there were, with the errors of
// [Context.Watch], and, for another n, at once.
func (c *Context) Await(ctx stdctx.Context, a resource.Attributes, n int, opts ...FindOption) ([]Found, error) {
	there, err := c.await(ctx, a, n, opts)
	if err != nil {
		return nil, fmt.Errorf("rocl: awaiting %d resources, %d are there: %w", n, len(there), err)
	}
	return there, nil
}

func (c *Context) await(ctx stdctx.Context, a resource.Attributes, n int, opts []FindOption) (there []Found, err error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: n must be 1 or more", resource.ErrCondition)
	}
	p, err := c.pattern(a, opts)
	if err != nil {
		return nil, err
	}
	order, most, ordered := p.Order()
	if ordered {
		if l := p.WithoutOrder(); p.Complete() {
			p = &l
		} else { // the answers must have it
			p = &l
			if err := p.Want(order); err != nil {
				return nil, err
			}
		}
	}
	c.asked.Add(1)
	synced := !ordered // in an order the first ones to be told are not the first
	for ev, err := range c.dir.Watch(ctx, p) {
		if err != nil {
			return there, c.wrap(err)
		}
		at := slices.IndexFunc(there, func(f Found) bool { return f.ID == ev.ID })
		switch {
		case ev.Kind == directory.Synced:
			synced = true
		case ev.Kind == directory.Gone:
			c.cache.forget(ev.ID)
			if at >= 0 {
				there = slices.Delete(there, at, at+1)
			}
		case at >= 0:
			there[at] = c.found(&ev.Answer, true)
		default:
			there = append(there, c.found(&ev.Answer, true))
		}
		if synced && len(there) >= n {
			break
		}
	}
	if ordered {
		slices.SortStableFunc(there, func(a, b Found) int {
			x, y := resource.RankOf(&a.Attrs, order, most), resource.RankOf(&b.Attrs, order, most)
			return x.Compare(&y)
		})
	}
	return there, nil
}

// Set gives one attribute of the resource a value and leaves the others as they are: the
// value takes the place of all values of that name, or the attribute is added. Watchers
// see the resource change. Set, Update and CompareAndSet may be called at once: each Set
// is applied to attributes that are the latest, and none undoes another one's change.
// It fails as [Resource.Update] does.
func (r *Resource) Set(ctx stdctx.Context, name, value string) error {
	var probe resource.List
	err := probe.AddString(name, value)
	if err == nil {
		err = resource.CheckUser(&probe)
	}
	if err == nil && r.gone.Load() {
		err = dispatch.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("rocl: setting %q of %v: %w", name, r.id, err)
	}
	rev, err := r.c.dir.Change(ctx, r.id, func(l *resource.List) error { return l.Replace(name, []byte(value)) })
	if err != nil {
		return fmt.Errorf("rocl: setting %q of %v: %w", name, r.id, r.c.wrap(err))
	}
	r.revised(rev)
	return nil
}

// revised notes a revision of the attributes.
func (r *Resource) revised(rev uint64) {
	for old := r.rev.Load(); rev > old && !r.rev.CompareAndSwap(old, rev); old = r.rev.Load() {
	}
}

// SendTo sends the message in b to one resource that matches the pattern a, and returns
// which: any one, or with [Least] or [Most] the first in that order. If the resource is
// gone, or cannot be reached, SendTo tries the others that match, one after the other,
// until one accepts the message. The options are those of [Context.Find].
//
// b and the result are as with [Resource.Send]: nil means accepted, and SendTo waits
// while the mailbox of the resource that it has chosen has no room. If SendTo fails, b
// stays the caller's. It fails with rocl.ErrNotFound or rocl.ErrPartial if none matches;
// if all that match are gone or cannot be reached, with the error of the last one.
//
// [Resource.SendToAll] sends to all.
func (r *Resource) SendTo(ctx stdctx.Context, a resource.Attributes, tag uint64, b *buffers.Buffer, opts ...FindOption) (resource.GID, error) {
	f, err := r.c.Find(ctx, a, opts...)
	if err != nil {
		return resource.GID{}, err
	}
	err = r.Send(ctx, f.ID, tag, b)
	if err == nil {
		return f.ID, nil
	}
	last, tried := err, map[resource.GID]bool{f.ID: true}
	for stale(last) && ctx.Err() == nil {
		next, found := resource.GID{}, false
		for f, err := range r.c.FindAll(ctx, a, opts...) {
			if err != nil && !errors.Is(err, directory.ErrPartial) {
				return resource.GID{}, err
			}
			if err == nil && !tried[f.ID] {
				next, found = f.ID, true
				break
			}
		}
		if !found {
			break
		}
		tried[next] = true
		if last = r.Send(ctx, next, tag, b); last == nil {
			return next, nil
		}
	}
	return resource.GID{}, last
}

// SendToAll sends the message in b to each resource that matches the pattern a, as
// [Resource.SendAll] does, and returns how many accepted it. The resource r itself is among
// them if it matches. The options are those of [Context.FindAll].
//
// A resource that is gone meanwhile is passed over. Otherwise the error is that of SendAll.
// Where a node could not be asked the error matches rocl.ErrPartial, and the resources of the
// others were sent to; with [Covered] that is no error. If no resource matches, SendToAll
// returns 0 and nil.
//
// If SendToAll returns nil, it has taken over the caller's reference to b. If it fails, b stays
// the caller's, also where some were sent to.
func (r *Resource) SendToAll(ctx stdctx.Context, a resource.Attributes, tag uint64, b *buffers.Buffer, opts ...FindOption) (int, error) {
	var ids []resource.GID
	var partial error
	for f, err := range r.c.FindAll(ctx, a, opts...) {
		if partial = err; err == nil {
			ids = append(ids, f.ID)
		} else if !errors.Is(err, directory.ErrPartial) {
			return 0, err
		}
	}
	b.Retain() // SendAll may keep its reference or not; this one is still here afterwards
	failed, err := 0, r.SendAll(ctx, ids, tag, b)
	var each SendErrors
	if errors.As(err, &each) {
		failed = len(each)
		if each = slices.DeleteFunc(each, func(e *SendError) bool { return errors.Is(e, dispatch.ErrGone) }); len(each) == 0 {
			b.Release() // SendAll left it here
			err = nil
		} else {
			err = each
		}
	}
	switch {
	case partial == nil && err == nil:
		b.Release()
		return len(ids) - failed, nil
	case err != nil:
		b.Release() // one of the two
	}
	return len(ids) - failed, errors.Join(err, partial)
}
