// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl"
)

// An Endpoint serves transfers of this process's regions, and makes transfers with regions of other
// endpoints. A process needs one. Its methods may be called concurrently.
type Endpoint struct {
	c        *rocl.Context
	r        *rocl.Resource
	cfg      config
	memory   int64 // the limit of the context's memory; 0: none
	secret   [sha256.Size]byte
	life     context.Context // ends with the endpoint, and with it the sending of replies
	end      context.CancelCauseFunc
	server   sync.WaitGroup
	sharing  sharing
	serving  serving
	fetching serving // requests for bytes that this endpoint pushes
	flight   flight
	sources  sources
	counts   counts
	helped   sync.Map // texts of helpFor that were logged

	mu       sync.Mutex
	isClosed bool
	last     uint64             // number of the region that was exposed last
	regions  map[uint64]*Region // the exposed regions
	retired  map[uint64]*Region // revoked regions whose memory may still be used
}

// An Option changes one default of [Open]. PieceSize and Depth apply to [Pipeline] too.
type Option func(*config)

type config struct {
	piece   int // bytes of a piece
	large   int // bytes of a piece that is not received into memory of the context
	inPlace int // bytes of a piece that is read where it lies
	depth   int
	most    int // requests served at the same time
	eager   int // bytes of the largest region whose Argument has its bytes
	log     *slog.Logger
	done    func(context.Context, Transferred) // nil: no function of the program is called

	registration []rocl.RegisterOption
}

// A Transferred is a Pull or Push that has ended.
type Transferred struct {
	Operation string // "pull" or "push"
	Origin    rocl.GID
	Bytes     int64 // that were copied
	Err       error // nil: all were
}

// OnTransfer calls f when a Pull or Push of the endpoint ends, before it returns, with the ctx that
// it was given. f is called by the goroutine of the transfer and must not block. Package otelrocl
// has such a function for OpenTelemetry.
func OnTransfer(f func(ctx context.Context, t Transferred)) Option {
	return func(c *config) { c.done = f }
}

// WithRegister adds options to the registration of the endpoint's resource, such as
// rocl.MailboxMessages.
func WithRegister(opts ...rocl.RegisterOption) Option {
	return func(c *config) { c.registration = append(c.registration, opts...) }
}

// PieceSize sets the size in bytes of the pieces of a transfer. Without it, the size is 1 MiB. It
// is 8 MiB for Pull into one slice, and for Pull and Push over shared memory, and 64 MiB where
// these read the memory of the other process where it lies. Pieces are smaller where the memory of
// one side (rocl.WithMemory) is too small for them. Open fails if bytes is less than 1 or more than
// a message may have.
func PieceSize(bytes int) Option {
	return func(c *config) { c.piece, c.large, c.inPlace = bytes, bytes, bytes }
}

// Depth sets how many pieces of one transfer are in progress at a time: 4 by default. Transfers use
// fewer while several of them that do not go over shared memory would have more than 32 MiB in
// progress together. A [Pipeline] uses fewer if its pieces would take more than a quarter of the
// memory that rocl.WithMemory allows. Open fails if n is less than 1.
func Depth(n int) Option { return func(c *config) { c.depth = n } }

// Eager sets the size in bytes up to which a region travels within its [Region.Argument]: 8 KiB by
// default. With a negative size no region does.
func Eager(bytes int) Option { return func(c *config) { c.eager = bytes } }

// MaxRequests limits how many requests an endpoint serves at a time: 1024 by default. The requests
// of one target, a context, are at most a quarter of them. The endpoint refuses further requests,
// and their targets try again after some milliseconds. So transfers take longer, and do not fail.
// Requests for the bytes that this endpoint pushes have a second limit of the same size.
// rocl.WithMemory limits the memory that requests need. Open fails if n is less than 1.
func MaxRequests(n int) Option { return func(c *config) { c.most = n } }

func newConfig(opts []Option) (config, error) {
	c := config{defaultPiece, largePiece, inPlacePiece, defaultDepth, defaultRequests, copied, slog.New(slog.DiscardHandler), nil, nil}
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	if c.depth < 1 || c.most < 1 || c.piece < 1 || c.piece > rocl.MaxMessage-requestLen {
		return c, fmt.Errorf("%w: pieces of %d bytes, %d at a time, %d requests", ErrRange, c.piece, c.depth, c.most)
	}
	return c, nil
}

const (
	defaultPiece = 1 << 20
	largePiece   = 8 << 20  // if a piece is not received into memory of the context
	inPlacePiece = 64 << 20 // if each piece costs the same time
	defaultDepth = 4

	defaultRequests = 1024
)

// Open registers a resource with the attribute bulk=1, which serves transfers until Close. It fails
// with ErrRange if an option is out of range, and as [rocl.Context.Register] does.
func Open(ctx context.Context, c *rocl.Context, opts ...Option) (*Endpoint, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("bulk: open: %w", err)
	}
	ep := &Endpoint{c: c, cfg: cfg, regions: map[uint64]*Region{}, retired: map[uint64]*Region{}}
	_, _ = rand.Read(ep.secret[:]) // never fails
	ep.life, ep.end = context.WithCancelCause(context.Background())
	if ep.r, err = c.Register(ctx, rocl.Attrs{"bulk": "1"}, cfg.registration...); err != nil {
		return nil, fmt.Errorf("bulk: open: %w", err)
	}
	ep.memory = c.Stats().Buffers.Limit
	ep.server.Go(ep.receive)
	return ep, nil
}

// ID returns the identifier of the endpoint's resource, which the endpoint's handles name as their
// origin.
func (ep *Endpoint) ID() rocl.GID { return ep.r.ID() }

// Close ends the endpoint. Transfers that use its memory fail with ErrRevoked or rocl.ErrGone, and
// its own transfers with rocl.ErrClosed. Close revokes all regions and waits until nothing uses
// their memory, nor that of regions revoked before. If ctx ends first, Close returns its cause.
// Another Close then waits for the rest.
func (ep *Endpoint) Close(ctx context.Context) error {
	ep.mu.Lock()
	ep.isClosed = true
	regions := slices.AppendSeq(slices.Collect(maps.Values(ep.regions)), maps.Values(ep.retired))
	ep.mu.Unlock()
	for _, r := range regions {
		r.revoke()
		r.recall()
	}
	for _, r := range regions {
		_ = r.awaitRecall(ctx) // if it fails, so does Revoke
	}
	errs := []error{ep.sources.close(ctx)}
	ep.end(rocl.ErrClosed)
	errs = append(errs, ep.r.Close())
	for _, r := range regions {
		errs = append(errs, r.Revoke(ctx))
	}
	ep.server.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bulk: close endpoint %v: %w", ep.ID(), err)
	}
	return nil
}

// Stats describes an endpoint: its regions, and counts since Open.
type Stats struct {
	Regions int // regions that are exposed now
	Serving int // requests that are served now: see MaxRequests

	// Requests of this and other endpoints for the regions, and for the bytes of this endpoint's
	// pushes:
	Reads, Writes           uint64 // requests that were granted; a transfer makes one for each piece
	ReadBytes, WrittenBytes uint64
	Refused                 uint64

	Transfers uint64 // requests that this endpoint made
	OneSided  uint64 // pieces that this endpoint read or wrote itself, without a request; no origin counts them

	// CopiedBytes counts the bytes that this endpoint has copied between messages and the memory of
	// regions and slices. rocl.Stats counts further copies.
	CopiedBytes uint64

	// Denied counts contexts that share memory with this one, but with which plain memory cannot be
	// read where it lies: the system does not allow it (ptrace), or the process has another PID
	// namespace. Large transfers of plain memory with them take one copy more. See WithLogger.
	Denied int
}

type counts struct{ reads, writes, readBytes, writtenBytes, refused, transfers, oneSided, copiedBytes atomic.Uint64 }

// Stats returns the current counts.
func (ep *Endpoint) Stats() Stats {
	ep.mu.Lock()
	n := len(ep.regions)
	ep.mu.Unlock()
	c := &ep.counts
	return Stats{n, ep.serving.count(), c.reads.Load(), c.writes.Load(), c.readBytes.Load(), c.writtenBytes.Load(), c.refused.Load(), c.transfers.Load(), c.oneSided.Load(), c.copiedBytes.Load(), ep.sharing.countDenied()}
}
