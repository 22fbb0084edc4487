// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// own is a resource that the context has registered.
type own struct {
	revision uint64 // 0: not acknowledged yet
	attrs    resource.List
}

// Register makes a resource of the context known and returns its revision. ErrExists is returned if
// the context has registered the identifier already, ErrIncomplete if an attribute has no value.
func (c *Client) Register(ctx context.Context, id resource.GID, l *resource.List) (uint64, error) {
	if !l.Complete() {
		return 0, fmt.Errorf("%w: %v", ErrIncomplete, l)
	}
	if ctx.Err() != nil { // nothing was sent yet
		return 0, context.Cause(ctx)
	}
	o := &own{attrs: l.Clone()}
	c.mu.Lock()
	if c.owned[id] != nil {
		c.mu.Unlock()
		return 0, fmt.Errorf("%w: %v", ErrExists, id)
	}
	c.owned[id] = o
	c.mu.Unlock()
	asked := uint64(0)
	rev, maybeSent, err := c.call(ctx, request{typ: wire.MsgRegister, id: id,
		body: func(b *wire.Builder) {
			b.U64(asked)
			b.Append(o.attrs.Wire())
			asked = 1 // asked a second time, the server may have the resource already
		},
		// The revision is noted before the caller can run: the next server is offered what the last
		// one has acknowledged.
		acknowledged: func(rev uint64) { c.recordRevision(id, o, rev, nil) },
	})
	if err != nil {
		c.mu.Lock()
		delete(c.owned, id)
		c.mu.Unlock()
		if maybeSent && ctx.Err() != nil {
			c.notify(wire.MsgDelete, id)
		}
		return 0, err
	}
	return rev, nil
}

// Attrs returns the attributes of a resource of the context, as the context has set them last, or
// an empty list if the context has no such resource. The caller must not change the list.
func (c *Client) Attrs(id resource.GID) resource.List {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.owned[id]; o != nil {
		return o.attrs
	}
	return resource.List{}
}

// recordRevision records what the server has acknowledged of o. attrs is nil if the attributes are
// the same.
func (c *Client) recordRevision(id resource.GID, o *own, rev uint64, attrs *resource.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owned[id] != o || rev <= o.revision {
		return
	}
	o.revision = rev
	if attrs != nil {
		o.attrs = *attrs
	}
}

// Update replaces the attributes of a resource of the context if its revision is expect (0: any),
// and returns the new revision. ErrRevision is returned if the revision is another one.
func (c *Client) Update(ctx context.Context, id resource.GID, expect uint64, l *resource.List) (uint64, error) {
	if !l.Complete() {
		return 0, fmt.Errorf("%w: %v", ErrIncomplete, l)
	}
	attrs := l.Clone()
	c.mu.Lock()
	o := c.owned[id]
	c.mu.Unlock()
	rev, _, err := c.call(ctx, request{typ: wire.MsgUpdate, id: id,
		body: func(b *wire.Builder) {
			b.U64(expect)
			b.Append(attrs.Wire())
		},
		acknowledged: func(rev uint64) {
			if o != nil {
				c.recordRevision(id, o, rev, &attrs)
			}
		},
	})
	if err != nil {
		return 0, err
	}
	return rev, nil
}

// Change calls change with the attributes of a resource of the context, and stores the result if
// the attributes are still the same. Otherwise it calls change again with the present attributes.
// It returns the new revision.
func (c *Client) Change(ctx context.Context, id resource.GID, change func(*resource.List) error) (uint64, error) {
	if ctx.Err() != nil { // nothing was sent yet
		return 0, context.Cause(ctx)
	}
	c.mu.Lock()
	var expect uint64
	var l resource.List
	if o := c.owned[id]; o != nil {
		expect, l = o.revision, o.attrs.Clone()
	}
	c.mu.Unlock()
	for {
		if expect == 0 { // this client does not know the revision
			ans, err := c.Lookup(ctx, id)
			if err != nil {
				return 0, err
			}
			expect, l = ans.Revision, ans.Attrs.Clone()
		}
		if err := change(&l); err != nil {
			return 0, err
		}
		rev, err := c.Update(ctx, id, expect, &l)
		if !errors.Is(err, ErrRevision) {
			return rev, err
		}
		expect = 0
	}
}

// Delete makes a resource of the context unknown. If ctx ends first, the resource is still deleted
// as soon as a server answers again.
func (c *Client) Delete(ctx context.Context, id resource.GID) error {
	c.mu.Lock()
	had := c.owned[id] != nil
	delete(c.owned, id)
	c.mu.Unlock()
	_, _, err := c.call(ctx, request{typ: wire.MsgDelete, id: id, mustSend: had})
	if had && errors.Is(err, ErrNotFound) {
		return nil // a new server serves, to which the resource was not offered any more
	}
	return err
}

// Withdraw deletes all resources of the context except the context's own. It returns when the
// server has deleted them.
func (c *Client) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	ids := make([]resource.GID, 0, len(c.owned))
	for id := range c.owned {
		if id != c.self {
			ids = append(ids, id)
			delete(c.owned, id)
		}
	}
	c.mu.Unlock()
	for i, id := range ids {
		if i+1 < len(ids) {
			c.notify(wire.MsgDelete, id)
			continue
		}
		// Answers come in order, so the last one says that all are deleted.
		if err := c.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}
