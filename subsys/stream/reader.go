// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/subsys"
)

const (
	firstRead = 16 << 10  // bytes per read at first, and after large payloads
	mostRead  = 256 << 10 // bytes per read when small frames fill every read
	largeFrom = 8 << 10   // a payload above this that has not arrived as a whole gets a buffer of its own
)

// ErrStarved is returned by Space when the context's memory is used up. The connection must not be
// read until the Reader calls the resume function of Start.
var ErrStarved = errors.New("stream: memory limit reached")

// A Reader makes frames of the bytes of a connection. Only the goroutine that makes progress uses
// it:
//
//	space, err := r.Space()     // where the next bytes go
//	n, err := …                 // read some
//	frames, err := r.Took(n)    // what is whole now goes to the sink
//
// An error cuts the connection. Its text names the connection.
type Reader struct {
	conn   subsys.Conn
	sink   subsys.Sink
	closed *atomic.Bool
	pool   *buffers.Pool
	count  *subsys.Counters

	block      *buffers.Buffer
	mem        []byte
	start, end int // bytes read and not yet delivered: mem[start:end]
	want       int // bytes of the next read

	large  subsys.Frame  // the frame whose payload is being read into its own buffer
	head   subsys.Header // argument of Room; a local variable would be allocated each time
	have   int
	begun  bool        // a large frame has begun, and Room had no memory for it
	skip   int         // remaining bytes of the payload of large, which are discarded
	frames *frameArray // nil while no frames come
	most   int         // entries of frames that were used

	starved atomic.Bool // Space has returned ErrStarved, and no memory has come back yet
	resume  func()
}

// A frameArray holds the frames of one call of a sink. Idle connections have none.
type frameArray [256]subsys.Frame

var frameArrays = sync.Pool{New: func() any { return new(frameArray) }}

// Start sets the connection that the Reader works for. While closed is true, the Reader delivers
// nothing. After Space has returned ErrStarved, resume is called once when memory may be free
// again. It is called from any goroutine and with locks held, so it only arranges that the
// connection is read.
func (r *Reader) Start(c subsys.Conn, s subsys.Sink, closed *atomic.Bool, cfg *subsys.Config, resume func()) {
	r.resume = resume
	r.conn, r.sink, r.closed, r.pool, r.count, r.want = c, s, closed, cfg.Pool, cfg.Count, firstRead
}

// Free releases the Reader's buffers.
func (r *Reader) Free() {
	if r.starved.Load() {
		r.pool.Unawait(r)
	}
	if r.block != nil {
		r.block.Release()
		r.block = nil
	}
	if r.large.Buf != nil && !planted.Is(planted.LeakedBuffer) {
		r.large.Buf.Release()
		r.large.Buf = nil
	}
	r.freeFrames()
}

// Whole reports whether every frame that has begun was delivered.
func (r *Reader) Whole() bool { return r.large.Buf == nil && r.skip == 0 && r.start == r.end }

// Trim releases memory that the Reader does not need while nothing arrives.
func (r *Reader) Trim() {
	if r.block != nil && r.Whole() {
		r.block.Release()
		r.block, r.mem, r.start, r.end, r.want = nil, nil, 0, 0, firstRead
	}
	r.freeFrames()
}

func (r *Reader) freeFrames() {
	if r.frames != nil {
		clear(r.frames[:r.most])
		frameArrays.Put(r.frames)
		r.frames, r.most = nil, 0
	}
}

// Starved reports whether the connection must not be read because there is no memory.
func (r *Reader) Starved() bool { return r.starved.Load() }

// get calls a function that allocates a buffer. If the pool's limit is reached, get arranges that
// resume is called, and returns ErrStarved.
func (r *Reader) get(get func() (*buffers.Buffer, error)) (*buffers.Buffer, error) {
	b, err := get()
	if !buffers.IsTemporary(err) {
		return b, err
	}
	r.starved.Store(true)
	r.pool.Await(r, func() {
		r.starved.Store(false)
		r.resume()
	})
	if b, err = get(); !buffers.IsTemporary(err) { // memory has come back meanwhile
		r.pool.Unawait(r)
		r.starved.Store(false)
		return b, err
	}
	return nil, ErrStarved
}

// Deliver gives fs to the sink. If the sink lacks memory for them, Deliver returns ErrStarved, and
// resume is called as after Space.
func (r *Reader) Deliver(fs []subsys.Frame) error {
	err := r.sink.Frames(r.conn, fs)
	if !buffers.IsTemporary(err) {
		return err
	}
	_, err = r.get(func() (*buffers.Buffer, error) { return nil, r.sink.Frames(r.conn, fs) })
	return err
}

// Space returns the memory for the next bytes, which is never empty. It returns ErrStarved if there
// is no memory at present.
func (r *Reader) Space() ([]byte, error) {
	if r.begun {
		if err := r.beginLarge(); err != nil {
			return nil, err
		}
	}
	if r.large.Buf != nil {
		if err := r.follow(); err != nil {
			return nil, err
		}
		return r.large.Data[r.have:], nil
	}
	if r.skip > 0 {
		r.want = mostRead
	}
	if err := r.prepareBlock(); err != nil {
		return nil, err
	}
	if r.skip > 0 {
		return r.mem[r.end:min(len(r.mem), r.end+r.skip)], nil
	}
	return r.mem[r.end:min(len(r.mem), r.end+r.want)], nil
}

// follow changes to another buffer if the lender has taken back the memory of the large frame's
// buffer.
func (r *Reader) follow() error {
	b, err := r.large.Buf.Moved()
	if err != nil {
		return r.from(err)
	}
	if b != nil {
		r.large.Buf.Release()
		r.large.Buf, r.large.Data = b, b.Bytes()[:r.large.Len:r.large.Len]
	}
	return nil
}

// prepareBlock makes sure that the block has room for the next read and for the rest of a frame
// that has begun.
func (r *Reader) prepareBlock() error {
	unparsed := r.end - r.start
	if r.block != nil && unparsed == 0 && r.block.Refs() == 1 { // no message keeps a slice of it
		r.start, r.end = 0, 0
	}
	fresh := r.end == 0
	switch {
	case r.block == nil:
	case fresh && len(r.mem) < r.want: // reads have become larger than the block
	case len(r.mem)-r.end < largeFrom/2: // too little room to be worth a read
	case len(r.mem)-r.start < subsys.HeaderLen+largeFrom: // the frame may not fit
	default:
		return nil
	}
	size := max(r.want, 2*largeFrom)
	b, err := r.pool.GetReserved(size)
	if buffers.IsTemporary(err) {
		r.want = firstRead
		b, err = r.get(func() (*buffers.Buffer, error) { return r.pool.GetReserved(2 * largeFrom) })
	}
	if err != nil {
		return fmt.Errorf("%s: a block to read from %s: %w", r.conn.Transport(), r.conn.Remote(), err)
	}
	mem := b.Bytes()
	if unparsed > 0 {
		copy(mem, r.mem[r.start:r.end])
		r.count.Copies.Add(1)
		r.count.CopiedB.Add(uint64(unparsed))
	}
	if r.block != nil {
		r.block.Release()
	}
	r.block, r.mem, r.start, r.end = b, mem, 0, unparsed
	return nil
}

// Took delivers the frames that are complete after n more bytes have come into the Space.
func (r *Reader) Took(n int) (frames int, err error) {
	if r.frames == nil {
		r.frames = frameArrays.Get().(*frameArray)
	}
	switch {
	case r.large.Buf != nil:
		return r.tookLarge(n)
	case r.skip > 0:
		return r.tookSkipped(n)
	}
	filled := n == min(r.want, len(r.mem)-r.end)
	r.want = max(r.want, firstRead)
	r.end += n
	for {
		k, err := r.parse()
		if err != nil {
			return frames, err
		}
		if k == 0 {
			break
		}
		err = r.sink.Frames(r.conn, r.frames[:k])
		frames += k
		if err != nil || r.closed.Load() {
			return frames, err
		}
	}
	if filled && frames > 8 {
		r.want = min(r.want*2, mostRead)
	}
	if r.end-r.start >= subsys.HeaderLen {
		err = r.beginLarge()
	}
	if err != nil && errors.Is(err, ErrStarved) {
		err = nil // Space returns it
	}
	return frames, err
}

// parse makes frames of the bytes that have come, as many as are complete and r.frames has room
// for, and returns how many there are.
func (r *Reader) parse() (k int, err error) {
	for k < len(r.frames) && r.end-r.start >= subsys.HeaderLen {
		f := &r.frames[k]
		if err := f.Parse(r.mem[r.start:]); err != nil {
			return k, r.from(err)
		}
		body := r.start + subsys.HeaderLen
		if r.end-body < int(f.Len) {
			break
		}
		f.Data, f.Buf = r.mem[body:body+int(f.Len):body+int(f.Len)], r.block
		r.start = body + int(f.Len)
		k++
	}
	r.most = max(r.most, k)
	return k, nil
}

// tookLarge is Took while the payload of a large frame is being read into its own buffer.
func (r *Reader) tookLarge(n int) (frames int, err error) {
	if r.have += n; r.have < len(r.large.Data) {
		return 0, nil
	}
	r.frames[0] = r.large
	r.large, r.have = subsys.Frame{}, 0
	err = r.sink.Frames(r.conn, r.frames[:1])
	r.frames[0].Buf.Release()
	r.frames[0] = subsys.Frame{}
	r.want = subsys.HeaderLen // the next payload may be as large, and then its header is read alone
	return 1, err
}

// tookSkipped is Took while a payload is skipped. What was read stays outside start:end, and the
// next bytes overwrite it. Behind the payload, tookSkipped delivers the frame without it.
func (r *Reader) tookSkipped(n int) (frames int, err error) {
	if r.skip -= n; r.skip > 0 {
		return 0, nil
	}
	r.want = firstRead
	r.frames[0] = r.large
	r.large = subsys.Frame{}
	err = r.sink.Frames(r.conn, r.frames[:1])
	r.frames[0] = subsys.Frame{}
	return 1, err
}

// beginLarge gets a buffer of its own for the payload that has begun, if it is large. If the sink
// returns no buffer, the payload is skipped.
func (r *Reader) beginLarge() error {
	h := &r.head
	if err := h.Parse(r.mem[r.start:]); err != nil {
		return r.from(err)
	}
	if h.Len <= largeFrom {
		return nil
	}
	b, err := r.get(func() (*buffers.Buffer, error) { return r.sink.Room(r.conn, h) })
	if r.begun = errors.Is(err, ErrStarved); r.begun {
		return err
	}
	if err != nil {
		return r.from(err)
	}
	if b == nil {
		r.large = subsys.Frame{Header: *h}
		r.skip = int(h.Len) - (r.end - r.start - subsys.HeaderLen)
		r.start = r.end
		return nil
	}
	r.large = subsys.Frame{Header: *h, Data: b.Bytes()[:h.Len:h.Len], Buf: b}
	r.have = copy(r.large.Data, r.mem[r.start+subsys.HeaderLen:r.end])
	if r.have > 0 {
		r.count.Copies.Add(1)
		r.count.CopiedB.Add(uint64(r.have))
	}
	r.start = r.end
	r.want = firstRead
	return nil
}

func (r *Reader) from(err error) error {
	return fmt.Errorf("%s: from %s: %w", r.conn.Transport(), r.conn.Remote(), err)
}
