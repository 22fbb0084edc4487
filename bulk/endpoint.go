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
	serving serving
	flight  flight
	counts  counts

	mu       sync.Mutex
	isClosed bool
	last     uint64 // number of a region
	regions  map[uint64]*Region
}

// An Option changes one default of [Open]. PieceSize and Depth are for [Pipeline] too.
type Option func(*config)

type config struct {
	piece  int // bytes
	large  int // bytes where a piece is not received into memory of the context
	placed int // bytes that are read where they lie
	depth  int
	most   int // requests served at a time
	eager  int // bytes of a region that travel in an argument
}

// PieceSize sets into how large pieces transfers are split, in bytes: by default 1 MiB; 8 MiB for Pull into one slice, and for
// Pull and Push over shared memory; and 64 MiB where these read the memory of the other process where it lies. It fails if
// it is less than 1 or more than a message may have.
func PieceSize(bytes int) Option {
	return func(c *config) { c.piece, c.large, c.placed = bytes, bytes, bytes }
}

// Depth sets how many pieces of one transfer are under way at a time: 4 by default, and fewer while several transfers of
// the endpoint that do not go over shared memory would have more than 32 MiB under way together. It fails if it is less than 1.
func Depth(n int) Option { return func(c *config) { c.depth = n } }

// Eager sets up to how many bytes of a region travel within its [Region.Argument]: 8 KiB by default. With less than 0 none do.
func Eager(bytes int) Option { return func(c *config) { c.eager = bytes } }

// MaxRequests limits how many requests an endpoint serves at a time: 1024 by default, and for one target, a context, at most a
// quarter of them. Others are refused, and their targets try again after some milliseconds, so that transfers take longer, and do
// not fail. What requests need of memory is limited by rocl.WithMemory. It fails if it is less than 1.
func MaxRequests(n int) Option { return func(c *config) { c.most = n } }

func newConfig(opts []Option) (config, error) {
	c := config{defaultPiece, largePiece, placedPiece, defaultDepth, defaultRequests, copied}
	for _, o := range opts {
		o(&c)
	}
	if c.depth < 1 || c.most < 1 || c.piece < 1 || c.piece > rocl.MaxMessage-requestLen {
		return c, fmt.Errorf("%w: pieces of %d bytes, %d at a time, %d requests", ErrRange, c.piece, c.depth, c.most)
	}
	return c, nil
}

const (
	defaultPiece = 1 << 20
	largePiece   = 8 << 20  // where a piece is not received into memory of the context
	placedPiece  = 64 << 20 // where each piece costs the same time
	defaultDepth = 4

	defaultRequests = 1024
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
	errs := []error{ep.r.Close()}
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
	Serving int // requests that are served now: see MaxRequests

	// What other endpoints, and this one, did with the regions:
	Reads, Writes           uint64 // requests that were granted; one transfer makes one for each piece
	ReadBytes, WrittenBytes uint64
	Refused                 uint64

	Transfers uint64 // requests that this endpoint made

	// Denied counts contexts with which memory is shared, and between whose processes and this one plain memory
	// cannot be read where it lies, because the system does not allow it (ptrace), or the process has another PID
	// namespace. Large transfers of plain memory with them take a copy more.
	Denied int
}

type counts struct{ reads, writes, readBytes, writtenBytes, refused, transfers atomic.Uint64 }

// Stats returns the counts as of now.
func (ep *Endpoint) Stats() Stats {
	ep.mu.Lock()
	n := len(ep.regions)
	ep.mu.Unlock()
	c := &ep.counts
	return Stats{n, ep.serving.count(), c.reads.Load(), c.writes.Load(), c.readBytes.Load(), c.writtenBytes.Load(), c.refused.Load(), c.transfers.Load(), ep.sharing.countDenied()}
}
