// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/rocl-go/rocl"
	roclcontext "github.com/rocl-go/rocl/context"
)

// findAllMost limits the time of FindAll for each resource, in microseconds.
const findAllMost = 0.3

// findAll measures FindAll of count resources of the node in three ways: by the context that serves
// the directory itself and, with a directory in another process, from its index in shared memory
// and over its socket.
func findAll(ctx context.Context, o *options) (first *Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d, err := startDirectory(ctx, o.count)
	if err != nil {
		return nil, err
	}
	defer d.close()
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	open := func(sock string, opts ...rocl.Option) (*rocl.Context, error) {
		return rocl.Open(ctx, append(opts, rocl.WithSocket(sock), rocl.WithPoll(policy))...)
	}
	serving, err := open(filepath.Join(d.dir, "serving.sock"))
	if err != nil {
		return nil, err
	}
	defer serving.Close()
	bare := make(map[string]rocl.GID, o.count)
	for i := range o.count {
		r, err := serving.Register(ctx, rocl.Attrs{"type": "worker", "site": "porto", "name": nameOf(i), "slot": nameOf(i)})
		if err != nil {
			return nil, err
		}
		bare[nameOf(i)] = r.ID()
	}
	index, err := open(d.sock, rocl.JoinOnly())
	if err != nil {
		return nil, err
	}
	defer index.Close()
	socket, err := open(d.sock, rocl.JoinOnly(), roclcontext.WithoutIndex())
	if err != nil {
		return nil, err
	}
	defer socket.Close()

	ids := make([]rocl.GID, 0, o.count)
	walk := func() error {
		ids = ids[:0]
		for _, id := range bare {
			ids = append(ids, id)
		}
		return nil
	}
	list := func(c *rocl.Context) func() error {
		return func() error {
			ids = ids[:0]
			for f, err := range c.FindAll(ctx, rocl.Match{"type": "worker"}) {
				if err != nil {
					return err
				}
				ids = append(ids, f.ID)
			}
			if len(ids) != o.count {
				return fmt.Errorf("%d of %d listed", len(ids), o.count)
			}
			return nil
		}
	}
	sides := []struct {
		name string
		f    func() error
		t    *times
	}{{"", walk, newTimes()}, {"serving", list(serving), newTimes()}, {"index", list(index), newTimes()}, {"socket", list(socket), newTimes()}}
	if err := awaitIndex(ctx, index); err != nil {
		return nil, err
	}
	const each = 100 // listings of a round
	allocs := make([]float64, len(sides))
	for range o.rounds {
		for i, side := range sides {
			before := mallocs()
			if err := side.t.round(each, side.f); err != nil {
				return nil, err
			}
			allocs[i] = (mallocs() - before) / each
		}
	}
	for i := len(sides) - 1; i > 0; i-- {
		t := sides[i].t
		most := findAllMost * float64(o.count)
		r := &Result{Bench: "findall", Transport: sides[i].name, Count: o.count, Unit: "µs", What: fmt.Sprintf("the required %.4g µs", most),
			P50: t.p50(), P99: t.p99(), Raw: most, Ratio: t.p50() / most, Target: 1, Allocs: allocs[i], Also: first}
		r.Extra = fmt.Sprintf("%d resources; a walk of a Go map that copies as many identifiers p50 %.2f; %.0f allocations", o.count, sides[0].t.p50(), allocs[i])
		first = r
	}
	return first, nil
}

// awaitIndex asks until c has the directory's index.
func awaitIndex(ctx context.Context, c *rocl.Context) error {
	for c.Stats().Mapped == 0 {
		if _, err := c.Find(ctx, rocl.Match{"name": nameOf(0)}); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return nil
}
