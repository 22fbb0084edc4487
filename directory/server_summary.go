// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// MaxSummary is how many bytes the summary of a node has at most.
const MaxSummary = 64 << 10

const (
	summaryTime  = 5 * time.Second        // the longest time in which a summary is made
	summaryFresh = 500 * time.Millisecond // how long one summary answers all questions
)

// WithSummary gives the server a function that sums up what goes on in the contexts of its node,
// for clients of the node and for other members. The result has at most MaxSummary bytes, and the
// directory does not look into it. f is called only when a summary is asked for, by one goroutine
// at a time, with the contexts that have joined. It must return soon after ctx has ended. A nil f
// is as no WithSummary.
func WithSummary(f func(ctx context.Context, contexts []resource.GID) ([]byte, error)) Option {
	return func(s *Server) { s.summary.make = f }
}

// A summary is the last summary of a node.
type summary struct {
	make func(context.Context, []resource.GID) ([]byte, error) // nil: there is none
	turn chan struct{}                                         // has an element while a goroutine uses the fields below

	last []byte
	at   time.Time // when last was made; zero: it was not
}

// Summary returns the summary of the node, as the function of [WithSummary] has made it within the
// last half second. It fails with ErrNoSummary without such a function, with the error of that
// function, and with the cause of ctx. The caller must not change the result.
func (s *Server) Summary(ctx context.Context) ([]byte, error) {
	y := &s.summary
	if y.make == nil {
		return nil, ErrNoSummary
	}
	ctx, cancel := context.WithTimeout(ctx, summaryTime)
	defer cancel()
	defer context.AfterFunc(s.lifetime, cancel)()
	select {
	case y.turn <- struct{}{}:
		defer func() { <-y.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if !y.at.IsZero() && time.Since(y.at) < summaryFresh {
		return y.last, nil
	}
	s.mu.Lock()
	contexts := slices.Collect(maps.Keys(s.contexts))
	s.mu.Unlock()
	b, err := y.make(ctx, contexts)
	switch {
	case err != nil:
		return nil, fmt.Errorf("directory: a summary of the node: %w", err)
	case len(b) > MaxSummary:
		return nil, fmt.Errorf("directory: a summary of the node has %d bytes, more than %d", len(b), MaxSummary)
	}
	y.last, y.at = b, time.Now()
	return b, nil
}

// summaryOf answers a question for the summary of a node.
func (a *askServer) summaryOf(m *wire.Message) error {
	p := m.Parser()
	node := resource.NodeID(p.U64())
	if err := p.End(); err != nil {
		return err
	}
	var b []byte
	err := ErrNoSummary
	if node == a.s.id.Node {
		b, err = a.s.Summary(a.ctx)
	} else if remote := a.s.attachedRemote(); remote != nil {
		b, err = remote.Summary(a.ctx, node)
	}
	if err != nil {
		return a.c.SendError(m.ID, err)
	}
	a.c.Begin(wire.MsgSummed, m.ID)
	a.c.Append(b)
	return a.c.Send()
}

// Summary returns the summary of a node of the cluster: see [WithSummary]. The bytes are those of
// another process, at most MaxSummary. Summary fails with ErrNoSummary, with ErrPartial if the node
// cannot be asked, and with the cause of ctx.
func (c *Client) Summary(ctx context.Context, node resource.NodeID) (sum []byte, err error) {
	err = c.withConn(ctx, func(a *askConn) error {
		b, err := a.exchange(ctx, wire.MsgSum, wire.MsgSummed, func(b *wire.Builder) { b.U64(uint64(node)) })
		if len(b) > MaxSummary {
			return fmt.Errorf("%w: a summary of %d bytes", ErrProtocol, len(b))
		}
		sum = append([]byte(nil), b...)
		return err
	})
	return sum, err
}
