// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A Directory is the client of a context. It counts questions, and its errors match
// dispatch.ErrClosed when the lifetime of the context has ended.
type Directory struct {
	*directory.Client
	life      *Lifetime
	questions atomic.Uint64
}

// NewDirectory returns the client of a context with the given lifetime.
func NewDirectory(c *directory.Client, life *Lifetime) *Directory {
	return &Directory{Client: c, life: life}
}

// Questions returns the number of finds, lookups and watches.
func (d *Directory) Questions() uint64 { return d.questions.Load() }

// wrap makes an error match dispatch.ErrClosed if the lifetime has ended.
func (d *Directory) wrap(err error) error {
	if err != nil && d.life.HasEnded() && !errors.Is(err, dispatch.ErrClosed) {
		return fmt.Errorf("%w: %w", dispatch.ErrClosed, err)
	}
	return err
}

// Lookup is directory.Client.Lookup.
func (d *Directory) Lookup(ctx context.Context, id resource.GID, want ...string) (resource.Record, error) {
	d.questions.Add(1)
	r, err := d.Client.Lookup(ctx, id, want...)
	return r, d.wrap(err)
}

// Find is directory.Client.Find, or Best for a pattern with an order.
func (d *Directory) Find(ctx context.Context, p *resource.List, cov *directory.Coverage) (r resource.Record, err error) {
	d.questions.Add(1)
	if _, _, ordered := p.Order(); ordered {
		r, err = d.Client.Best(ctx, p, cov)
	} else {
		r, err = d.Client.Find(ctx, p)
	}
	return r, d.wrap(err)
}

// FindAll is directory.Client.FindCovering.
func (d *Directory) FindAll(ctx context.Context, p *resource.List, cov *directory.Coverage) iter.Seq2[resource.Record, error] {
	return question(d, d.FindCovering(ctx, p, cov))
}

// Watch is directory.Client.Watch.
func (d *Directory) Watch(ctx context.Context, p *resource.List) iter.Seq2[directory.Event, error] {
	return question(d, d.Client.Watch(ctx, p))
}

// question counts a question to d, and yields the answers all.
func question[T any](d *Directory, all iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		d.questions.Add(1)
		for one, err := range all {
			if !yield(one, d.wrap(err)) {
				return
			}
		}
	}
}

// Register registers the resource id with the attributes l. With names in unique it fails if
// another resource has the same values of these: see claim.
func (d *Directory) Register(ctx context.Context, id resource.GID, l *resource.List, unique ...string) (rev uint64, err error) {
	if len(unique) == 0 {
		rev, err = d.Client.Register(ctx, id, l)
		return rev, d.wrap(err)
	}
	k, err := newClaim(d, id, l, unique)
	if err == nil {
		rev, err = k.register(ctx, l)
	}
	return rev, d.wrap(err)
}

// Update is directory.Client.Update.
func (d *Directory) Update(ctx context.Context, id resource.GID, rev uint64, l *resource.List) (uint64, error) {
	rev, err := d.Client.Update(ctx, id, rev, l)
	return rev, d.wrap(err)
}

// Delete is directory.Client.Delete.
func (d *Directory) Delete(ctx context.Context, id resource.GID) error {
	return d.wrap(d.Client.Delete(ctx, id))
}
