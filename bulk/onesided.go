// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// One-sided transfers. Over a transport that can do it, the target reads and writes the memory of a
// region itself (rocl.RemoteMemory), and the origin's endpoint gets no message.
//
//	target                                          origin
//	------                                          ------
//	the second transfer with a handle, or a large one
//	asks for the keys of its bytes  ── tagExport ─► exposes exactly these bytes, for the handle's rights
//	keeps them                      ◄─ keys ─────── notes the target
//	reads and writes
//	                                                Revoke: later transfers are refused
//	lets no operation begin         ◄─ tagRecall ── asks each target to stop
//	and waits for those in progress ── empty ─────► closes the exposures
//
// A target that has ended answers no more, and a target that is stopped makes Revoke wait, as one
// with a view does. The keys reach no more than the handle allows.

const (
	exportParts   = 16               // segments of a handle at most; with more, messages are used
	exportRanges  = 64               // different ranges and rights of a region that are exposed at most
	exportTargets = 1 << 10          // endpoints that have keys of a region at most
	exportLeast   = 1 << 20          // bytes of a transfer for which the target asks for keys at once
	exported      = 0xff             // first byte of a reply with keys; an error has a code there
	sourcesMost   = 1 << 10          // handles that a target remembers
	sourcePause   = 10 * time.Second // after a failure, messages are used so long
)

// exports is what targets of a region access directly.
type exports struct {
	mu      sync.Mutex
	isOver  bool
	ranges  map[step]*export
	targets map[rocl.GID]struct{} // endpoints that may have keys
	over    chan struct{}         // closed when no target has keys any more; nil before the recall
}

// An export is exposed memory of a region.
type export struct {
	parts []*rocl.ExposedMemory
	reply []byte
}

// export replies to a target with the keys of the bytes of its handle: see answer.
//
//	0xff | of each segment: length u64, bytes of the key u16, key
func (ep *Endpoint) export(m *rocl.Message, q *request) error {
	s := (*Handle)(&q.Handle).last()
	r, _, err := ep.admit(q, s.Rights)
	if err != nil {
		return err
	}
	ep.server.Go(func() { // exposing may take long
		defer r.end()
		reply, err := r.exportTo(m.From(), s)
		if err != nil {
			ep.refuse(m, 0, err)
			return
		}
		ep.replyBytes(m, reply)
	})
	return nil
}

// exportTo exposes the bytes of a step of a region, unless they are already, and returns the reply.
// The region is in use, so it is not recalled meanwhile.
func (r *Region) exportTo(target rocl.GID, s step) ([]byte, error) {
	e := &r.exports
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.ranges[s]
	if _, isKnown := e.targets[target]; e.isOver || !isKnown && len(e.targets) >= exportTargets || x == nil && len(e.ranges) >= exportRanges {
		return nil, errElsewhere
	}
	if x == nil {
		var err error
		if x, err = r.expose(s); err != nil {
			return nil, err
		}
		if e.ranges == nil {
			e.ranges, e.targets = map[step]*export{}, map[rocl.GID]struct{}{}
		}
		e.ranges[s] = x
	}
	e.targets[target] = struct{}{}
	return x.reply, nil
}

func (r *Region) expose(s step) (*export, error) {
	parts := slices.Collect(r.mem.within(int64(s.Off), int64(s.Len)))
	if len(parts) == 0 || len(parts) > exportParts {
		return nil, errElsewhere
	}
	x := &export{reply: []byte{exported}}
	for _, p := range parts {
		m, err := r.ep.c.ExposeMemory(p, s.Rights&ReadOnly != 0, s.Rights&WriteOnly != 0)
		if err != nil {
			x.close()
			return nil, fmt.Errorf("%w: %w", errElsewhere, err)
		}
		x.parts = append(x.parts, m)
		x.reply = binary.LittleEndian.AppendUint64(x.reply, uint64(len(p)))
		x.reply = binary.LittleEndian.AppendUint16(x.reply, uint16(len(m.Key())))
		x.reply = append(x.reply, m.Key()...)
	}
	return x, nil
}

func (x *export) close() {
	for _, m := range x.parts {
		m.Close()
	}
}

// recall asks all targets that have keys of a revoked region to stop, once no transfer by messages
// is in progress. The channel is closed when they have and nothing is exposed any more.
func (r *Region) recall() <-chan struct{} {
	e := &r.exports
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over != nil {
		return e.over
	}
	e.isOver, e.over = true, make(chan struct{})
	if len(e.targets) == 0 {
		close(e.over)
		return e.over
	}
	q := request{Handle: rawHandle{origin: r.ep.ID(), region: r.number}}
	var asking sync.WaitGroup
	for target := range e.targets {
		asking.Go(func() {
			_ = patiently(r.ep.life, func() error { // an error: the target, or this endpoint, has ended
				m, err := r.ep.ask(r.ep.life, target, tagRecall, nil, q)
				if err != nil {
					return err
				}
				return done(m)
			})
		})
	}
	go func() {
		asking.Wait()
		r.closeExports()
		close(e.over)
	}()
	return e.over
}

// isExported reports whether targets may have keys of a revoked region.
func (r *Region) isExported() bool {
	select {
	case <-r.recall():
		return false
	default:
		return true
	}
}

// closeExports ends all access to a revoked region, whether or not targets have stopped.
func (r *Region) closeExports() {
	r.exports.mu.Lock()
	defer r.exports.mu.Unlock()
	for _, x := range r.exports.ranges {
		x.close()
	}
	clear(r.exports.ranges)
}

// awaitRecall waits until no target accesses the revoked region directly, or ctx ends. After that
// no access begins.
func (r *Region) awaitRecall(ctx context.Context) error {
	select {
	case <-r.recall():
		return nil
	case <-ctx.Done():
		r.closeExports()
		return context.Cause(ctx)
	}
}

// sources are the handles whose memory this endpoint has accessed lately.
type sources struct {
	mu       sync.Mutex
	isClosed bool
	all      map[Handle]*source
}

// A source is what this endpoint knows of a handle. sources.mu guards it.
type source struct {
	isUsed    bool         // there was a transfer
	isAsking  bool         // a request for keys is in progress
	isRefused bool         // the origin does not give keys
	pause     time.Time    // until when messages are used after a failure
	parts     []remotePart // nil: no keys yet
}

// A remotePart is a segment of the origin.
type remotePart struct {
	end int64 // offset behind it from the beginning of the handle's bytes
	*rocl.RemoteMemory
}

// oneSided returns the function that moves pieces without the origin's endpoint, and the one that
// cuts them. It returns nil if the transfer has to use messages.
func (ep *Endpoint) oneSided(ctx context.Context, want Rights, mv *move) (pieceFunc, func(int) cutFunc) {
	if mv.h.origin.Context() == ep.ID().Context() || !ep.c.IsOneSided(mv.h.origin) {
		return nil, nil
	}
	parts := ep.partsOf(ctx, mv)
	if parts == nil {
		return nil, nil
	}
	find := func(at int64) (i int, off int64) {
		for at >= parts[i].end {
			i++
		}
		if i > 0 {
			off = parts[i-1].end
		}
		return i, at - off
	}
	cut := func(size int) cutFunc {
		return func(at int64) int64 {
			i, _ := find(mv.off + at)
			return min(int64(size), mv.n-at, parts[i].end-mv.off-at)
		}
	}
	return func(ctx context.Context, at, n int64) error {
		i, off := find(mv.off + at)
		local := slices.Collect(mv.local.within(mv.at+at, n))
		ep.counts.oneSided.Add(1)
		var err error
		if want == ReadOnly {
			ep.counts.copiedBytes.Add(uint64(n))
			err = parts[i].Read(ctx, off, local...)
		} else {
			err = parts[i].Write(ctx, off, local...)
		}
		if err != nil && ctx.Err() == nil {
			if !errors.Is(err, rocl.ErrLimit) {
				ep.sources.fail(mv.h)
			}
			err = fmt.Errorf("%w: %w", errElsewhere, err)
		}
		return err
	}, cut
}

// partsOf returns the segments of a transfer's handle, or nil if they are not accessed directly
// now.
func (ep *Endpoint) partsOf(ctx context.Context, mv *move) []remotePart {
	s := ep.sources.use(mv.h)
	ep.sources.mu.Lock()
	parts := s.parts
	asks := parts == nil && !s.isAsking && !s.isRefused && (s.isUsed || mv.n >= exportLeast)
	isPaused := time.Now().Before(s.pause)
	s.isUsed, s.isAsking = true, s.isAsking || asks
	ep.sources.mu.Unlock()
	if isPaused {
		return nil
	}
	if asks {
		return ep.askParts(ctx, mv.h, s)
	}
	return parts
}

// askParts asks the origin for the keys of a handle's bytes.
func (ep *Endpoint) askParts(ctx context.Context, h *Handle, s *source) []remotePart {
	m, err := ep.ask(ctx, h.origin, tagExport, nil, request{Handle: rawHandle(*h)})
	var parts []remotePart
	if err == nil {
		parts, err = parseParts(h, m.Bytes(), ep.c.RemoteMemory)
		m.Release()
	}
	ep.sources.mu.Lock()
	defer ep.sources.mu.Unlock()
	s.isAsking = false
	if err != nil {
		s.isRefused = errors.Is(err, errElsewhere) || errors.Is(err, errProtocol)
		return nil
	}
	if ep.sources.all[*h] == s { // else it was recalled, or this endpoint is closed
		s.parts = parts
	}
	return s.parts
}

// parseParts returns the segments that the reply p describes. memory is rocl.Context.RemoteMemory.
func parseParts(h *Handle, p []byte, memory func(rocl.GID, []byte) (*rocl.RemoteMemory, error)) (parts []remotePart, err error) {
	if len(p) == 0 || p[0] != exported {
		return nil, parseError(p)
	}
	end := int64(0)
	for p = p[1:]; len(p) > 0; {
		if len(p) < 10 || len(parts) == exportParts {
			return nil, errProtocol
		}
		n, behind := binary.LittleEndian.Uint64(p), 10+int(binary.LittleEndian.Uint16(p[8:]))
		if n == 0 || n > uint64(h.Len()-end) || len(p) < behind {
			return nil, errProtocol
		}
		m, err := memory(h.origin, p[10:behind])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errProtocol, err)
		}
		end += int64(n)
		parts, p = append(parts, remotePart{end, m}), p[behind:]
	}
	if end != h.Len() {
		return nil, errProtocol
	}
	return parts, nil
}

// use returns what is known of a handle. If there are too many, it forgets others that are not used
// now.
func (s *sources) use(h *Handle) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[*h]; x != nil {
		return x
	}
	for k, x := range s.all {
		if len(s.all) < sourcesMost {
			break
		}
		if !x.isAsking && closeAll(ended, x.parts) == nil {
			delete(s.all, k)
		}
	}
	x := new(source)
	if len(s.all) < sourcesMost && !s.isClosed {
		if s.all == nil {
			s.all = map[Handle]*source{}
		}
		s.all[*h] = x
	} else {
		x.isRefused = true
	}
	return x
}

// fail makes transfers with a handle use messages for a while.
func (s *sources) fail(h *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[*h]; x != nil {
		x.pause = time.Now().Add(sourcePause)
	}
}

// take forgets the handles that is reports, and returns their memory.
func (s *sources) take(is func(Handle) bool) (all []remotePart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, x := range s.all {
		if is(k) {
			delete(s.all, k)
			all = append(all, x.parts...)
			x.parts = nil
		}
	}
	return all
}

// closeAll waits until nothing accesses the memory of parts, or ctx ends.
func closeAll(ctx context.Context, parts []remotePart) (err error) {
	for _, p := range parts {
		if e := p.Close(ctx); e != nil {
			err = e
		}
	}
	return err
}

// close forgets all handles, and waits until nothing accesses their memory, or ctx ends.
func (s *sources) close(ctx context.Context) error {
	s.mu.Lock()
	s.isClosed = true
	s.mu.Unlock()
	return closeAll(ctx, s.take(func(Handle) bool { return true }))
}

// recalled stops the direct access to a region of another endpoint: see answer.
func (ep *Endpoint) recalled(m *rocl.Message, q *request) error {
	if q.Handle.origin != m.From() {
		return errProtocol
	}
	parts := ep.sources.take(func(h Handle) bool { return h.origin == q.Handle.origin && h.region == q.Handle.region })
	ep.server.Go(func() {
		if err := closeAll(ep.life, parts); err != nil {
			ep.served(m) // this endpoint has ended
			return
		}
		ep.replyBytes(m, nil)
	})
	return nil
}
