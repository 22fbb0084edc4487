// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"

	"github.com/rocl-go/rocl"
)

// An Answer is the result of a call to a provider that was found by its attributes.
type Answer[Out any] struct {
	Provider rocl.GID
	Value    Out
}

// Finding adds options to the search for providers: rocl.At, rocl.Least, rocl.Most.
func Finding(opts ...rocl.FindOption) Option {
	return func(c *config) { c.find = append(c.find, opts...) }
}

// Nearest makes [CallAny] prefer a provider in the caller's process to one on its node, and one on
// its node to one on another node.
func Nearest() Option { return func(c *config) { c.isNearest = true } }

// servers returns the attributes of a server that the program gave the attributes a. As a pattern,
// they match the servers that match a.
func servers(a rocl.Attributes) (*rocl.List, error) {
	var l rocl.List
	if a != nil {
		if err := a.AppendAttrs(&l); err != nil {
			return nil, err
		}
	}
	return &l, l.Add(attrServer, []byte(strconv.Itoa(version)))
}

// provider finds a server that matches a.
func (c *Client) provider(ctx context.Context, a rocl.Attributes, cfg *config) (rocl.GID, error) {
	if !cfg.isNearest {
		l, err := servers(a)
		if err != nil {
			return rocl.GID{}, err
		}
		f, err := c.c.Find(ctx, l, cfg.find...)
		return f.ID, err
	}
	var nearest rocl.GID
	best := -1
	for id, err := range c.providers(ctx, a, cfg) {
		if err != nil {
			if best >= 0 && errors.Is(err, rocl.ErrPartial) {
				break
			}
			return rocl.GID{}, err
		}
		nearness := 0
		switch {
		case id.Context() == c.ID().Context():
			return id, nil
		case id.Node() == c.ID().Node():
			nearness = 1
		}
		if nearness > best {
			nearest, best = id, nearness
		}
	}
	if best < 0 {
		return rocl.GID{}, rocl.ErrNotFound
	}
	return nearest, nil
}

// CallAny calls the name at one provider that matches the pattern a: any, the [Nearest], or, with
// [Finding], the first in an order. [Among] replaces the search. If the call fails, CallAny calls
// another provider only as its [Policy] says, because the first may have done the work. It fails
// with rocl.ErrNotFound or rocl.ErrPartial if no provider matches, with ErrPolicy or ErrCircuit
// because of the policy, and as Call does.
func CallAny[In, Out any](ctx context.Context, c *Client, a rocl.Attributes, name string, in In, opts ...Option) (Answer[Out], error) {
	cfg := newConfig(opts)
	return callAnyOf[In, Out](ctx, c, &target{attrs: a}, name, in, &cfg, c.policy(name, &cfg))
}

// CallAll calls the name at every provider that matches the pattern a, all at once, and yields the
// answers as they arrive. The Answer beside an error names the provider that the error is from. If
// its Provider is the zero GID, the error is from the search: rocl.ErrPartial if some nodes could
// not be asked, or ErrTooFew if fewer than the Enough of the [Policy] have answered. Leaving the
// loop ends the calls that wait.
func CallAll[In, Out any](ctx context.Context, c *Client, a rocl.Attributes, name string, in In, opts ...Option) iter.Seq2[Answer[Out], error] {
	type result struct {
		Answer[Out]
		err error
	}
	return func(yield func(Answer[Out], error) bool) {
		cfg := newConfig(opts)
		p := c.policy(name, &cfg)
		ctx, end := context.WithCancel(ctx)
		results := make(chan result)
		go func() {
			defer close(results)
			var calls sync.WaitGroup
			defer calls.Wait()
			for id, err := range c.providers(ctx, a, &cfg) {
				if err != nil {
					results <- result{err: fmt.Errorf("rpc: call %q: find providers: %w", name, unsentError{err})}
					return
				}
				calls.Go(func() {
					a, err := callAnyOf[In, Out](ctx, c, &target{fixed: id}, name, in, &cfg, p)
					results <- result{Answer[Out]{id, a.Value}, err}
				})
			}
		}()
		defer func() {
			end()
			for range results { // closed when all calls have ended
			}
		}()
		n := 0
		for r := range results {
			if !yield(r.Answer, r.err) {
				return
			}
			if r.err == nil {
				n++
			}
			if p.Enough > 0 && n >= p.Enough {
				return
			}
		}
		if n < p.Enough {
			yield(Answer[Out]{}, fmt.Errorf("rpc: call %q: %w: %d of %d", name, ErrTooFew, n, p.Enough))
		}
	}
}

// providers yields the servers that match a.
func (c *Client) providers(ctx context.Context, a rocl.Attributes, cfg *config) iter.Seq2[rocl.GID, error] {
	return func(yield func(rocl.GID, error) bool) {
		l, err := servers(a)
		if err != nil {
			yield(rocl.GID{}, err)
			return
		}
		for f, err := range c.c.FindAll(ctx, l, cfg.find...) {
			if !yield(f.ID, err) {
				return
			}
		}
	}
}
