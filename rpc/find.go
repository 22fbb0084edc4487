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
// [Finding], the first in an order. If that call fails, CallAny does not call another provider,
// because the first may have done the work. It fails with rocl.ErrNotFound or rocl.ErrPartial if no
// provider matches, and as Call does.
func CallAny[In, Out any](ctx context.Context, c *Client, a rocl.Attributes, name string, in In, opts ...Option) (Answer[Out], error) {
	cfg := newConfig(opts)
	id, err := c.provider(ctx, a, &cfg)
	if err != nil {
		return Answer[Out]{}, fmt.Errorf("rpc: call %q: find a provider: %w", name, unsentError{err})
	}
	v, err := Call[In, Out](ctx, c, id, name, in, opts...)
	return Answer[Out]{id, v}, err
}

// CallAll calls the name at every provider that matches the pattern a, all at once, and yields the
// answers as they arrive. The Answer beside an error names the provider that the error is from. If
// its Provider is the zero GID, the error is from the search: rocl.ErrPartial if some nodes could
// not be asked. Leaving the loop ends the calls that wait.
func CallAll[In, Out any](ctx context.Context, c *Client, a rocl.Attributes, name string, in In, opts ...Option) iter.Seq2[Answer[Out], error] {
	type result struct {
		Answer[Out]
		err error
	}
	return func(yield func(Answer[Out], error) bool) {
		cfg := newConfig(opts)
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
					v, err := Call[In, Out](ctx, c, id, name, in, opts...)
					results <- result{Answer[Out]{id, v}, err}
				})
			}
		}()
		defer func() {
			end()
			for range results { // closed when all calls have ended
			}
		}()
		for r := range results {
			if !yield(r.Answer, r.err) {
				return
			}
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
