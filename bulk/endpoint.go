// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl"
)

// An Endpoint is what a process moves data with: it serves transfers of its regions, and makes
// transfers of those of other endpoints. A process needs one. Its methods may be called concurrently.
type Endpoint struct {
	c       *rocl.Context
	r       *rocl.Resource
	cfg     config
	secret  [sha256.Size]byte
	life    context.Context // of replies
	end     context.CancelCauseFunc
	server  sync.WaitGroup
	sharing sharing
	counts  counts

	mu       sync.Mutex
	isClosed bool
	last     uint64 // number of a region
	regions  map[uint64]*Region
}

// An Option changes one default of [Open], or of [Pipeline].
type Option func(*config)

type config struct{ piece, large, depth int }

// PieceSize sets into how large pieces transfers are split, in bytes: by default 1 MiB, and 8 MiB for
// Pull and Push over shared memory, and for Pull into one slice. It fails if it is less than 1 or more than a message may have.
func PieceSize(bytes int) Option { return func(c *config) { c.piece, c.large = bytes, bytes } }

// Depth sets how many pieces of one transfer are under way at a time: 4 by default. It fails if
// it is less than 1.
func Depth(n int) Option { return func(c *config) { c.depth = n } }

func newConfig(opts []Option) (config, error) {
	c := config{defaultPiece, largePiece, defaultDepth}
	for _, o := range opts {
		o(&c)
	}
	if c.depth < 1 || c.piece < 1 || c.piece > rocl.MaxMessage-requestLen {
		return c, fmt.Errorf("%w: pieces of %d bytes, %d at a time", ErrRange, c.piece, c.depth)
	}
	return c, nil
}

const (
	defaultPiece = 1 << 20
	largePiece   = 8 << 20 // where a piece is not received into memory of the context
	defaultDepth = 4
)

// Open registers a resource with the attribute bulk=1, which serves transfers until Close. It fails with
// ErrRange where an option makes no sense, and as [rocl.Context.Register] does.
func Open(ctx context.Context, c *rocl.Context, opts ...Option) (*Endpoint, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("bulk: open: %w", err)
	}
	ep := &Endpoint{c: c, cfg: cfg, regions: map[uint64]*Region{}}
	_, _ = rand.Read(ep.secret[:]) // never fails
	ep.life, ep.end = context.WithCancelCause(context.Background())
	if ep.r, err = c.Register(ctx, rocl.Attrs{"bulk": "1"}); err != nil {
		return nil, fmt.Errorf("bulk: open: %w", err)
	}
	ep.server.Go(ep.receive)
	return ep, nil
}

// ID returns the identifier of the endpoint's resource, which its handles name as their origin.
func (ep *Endpoint) ID() rocl.GID { return ep.r.ID() }

// Close ends the endpoint: transfers that use its memory fail with ErrRevoked or rocl.ErrGone,
// and its own with rocl.ErrClosed. It revokes all regions and waits until nothing uses their memory,
// or ctx ends; then it returns the cause. Closing a closed endpoint does nothing.
func (ep *Endpoint) Close(ctx context.Context) error {
	ep.mu.Lock()
	ep.isClosed = true
	regions := slices.Collect(maps.Values(ep.regions))
	ep.mu.Unlock()
	ep.end(rocl.ErrClosed)
	var errs []error
	if err := ep.r.Delete(context.WithoutCancel(ctx)); !errors.Is(err, rocl.ErrClosed) {
		errs = append(errs, err)
	}
	for _, r := range regions {
		errs = append(errs, r.Revoke(ctx))
	}
	ep.server.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bulk: close endpoint %v: %w", ep.ID(), err)
	}
	return nil
}

// Stats are counts of an endpoint since Open.
type Stats struct {
	Regions int // that are exposed now

	// What other endpoints, and this one, did with the regions:
	Reads, Writes           uint64 // requests that were granted; one transfer makes one for each piece
	ReadBytes, WrittenBytes uint64
	Refused                 uint64

	Transfers uint64 // requests that this endpoint made
}

type counts struct{ reads, writes, readBytes, writtenBytes, refused, transfers atomic.Uint64 }

// Stats returns the counts as of now.
func (ep *Endpoint) Stats() Stats {
	ep.mu.Lock()
	n := len(ep.regions)
	ep.mu.Unlock()
	c := &ep.counts
	return Stats{n, c.reads.Load(), c.writes.Load(), c.readBytes.Load(), c.writtenBytes.Load(), c.refused.Load(), c.transfers.Load()}
}
