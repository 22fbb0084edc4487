// SPDX-License-Identifier: Apache-2.0

package index

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/resource"
)

// A Verdict is the result of a question to an index.
type Verdict int

// Verdicts.
const (
	Ask   Verdict = iota // the index cannot tell: ask the server
	Found                // the answer is certain
	None                 // nothing in the index matches; see Alone
	Ended                // the index has ended, or is malformed: do not use it again
)

const (
	// maxTries limits how often a reader tries again because of a change.
	maxTries = 16
	// maxLooks limits the records that a question reads.
	maxLooks = 1024
	// maxProbes limits the slots that a question reads for each attribute.
	maxProbes = 1024
)

// A Reader answers questions from an index that is mapped. All methods may be called concurrently;
// none of them makes a system call, except that the last one to end after Close unmaps the index.
type Reader struct {
	key
	mem   []byte
	w     []atomic.Uint64
	uses  atomic.Int64  // calls under way; far below 0 once closed
	wrong atomic.Bool   // invalid content was read
	turn  atomic.Uint32 // the start of a search among equal records, which rotates
}

// closing is added to uses by Close.
const closing = -1 << 40

// Open maps the index of another process. fd is a descriptor of the index, which Open does not
// keep, and size is its size. ErrMalformed says that the file is not an index.
func Open(fd, size int) (*Reader, error) {
	if size < minSize || size%8 != 0 {
		return nil, ErrMalformed
	}
	mem, err := memfd.OpenReserved(fd, size)
	if err != nil {
		return nil, err
	}
	r := newReader(mem)
	if r == nil {
		memfd.Unmap(mem)
		return nil, ErrMalformed
	}
	return r, nil
}

// newReader returns a Reader of mapped memory, nil if that is not an index.
func newReader(mem []byte) *Reader {
	w := wordsOf(mem)
	if w[atMagic].Load() != magic {
		return nil
	}
	r := &Reader{mem: mem, w: w, key: key{w[atKey].Load(), w[atKey+1].Load()}}
	r.turn.Store(rand.Uint32()) // readers begin at different records
	return r
}

// Close unmaps the index as soon as no call reads it any more. Later calls return Ended.
func (r *Reader) Close() {
	for {
		n := r.uses.Load()
		if n < 0 {
			return
		}
		if r.uses.CompareAndSwap(n, n+closing) {
			r.unmap()
			return
		}
	}
}

// enter begins a call. It reports false if the Reader is closed. Each enter that reports true needs
// one leave.
func (r *Reader) enter() bool {
	if r.uses.Add(1) > 0 {
		return true
	}
	r.leave()
	return false
}

// leave ends a call. The last one after Close unmaps the index.
func (r *Reader) leave() {
	if r.uses.Add(-1) == closing {
		r.unmap()
	}
}

// unmap unmaps the index, once, if the Reader is closed and no call is under way.
func (r *Reader) unmap() {
	if r.uses.CompareAndSwap(closing, 2*closing) {
		memfd.Unmap(r.mem)
	}
}

// good reports whether the index can be read.
func (r *Reader) good() bool { return !r.wrong.Load() && r.w[atState].Load() == live }

// Alone reports whether the node is alone: then a resource that is not in the index does not exist.
func (r *Reader) Alone() bool {
	if !r.enter() {
		return false
	}
	defer r.leave()
	return r.good() && r.w[atAlone].Load() == 1
}

// answers reports whether an index can answer a pattern: it has neither an order nor an owner.
func answers(pattern *resource.List) bool {
	if !pattern.Conditional() {
		return true
	}
	_, _, ordered := pattern.Order()
	_, owned := pattern.Owner()
	return !ordered && !owned
}

// Find returns one resource that matches a pattern. Among several, it returns a different one from
// call to call. The attributes lie in buf if it is large enough. For a pattern with an order or an
// owner the verdict is Ask.
func (r *Reader) Find(pattern *resource.List, buf []byte) (resource.Record, Verdict) {
	if !answers(pattern) {
		return resource.Record{}, Ask
	}
	if !r.enter() {
		return resource.Record{}, Ended
	}
	defer r.leave()
	s := lookup{Reader: r, buf: buf, looks: maxLooks, system: resource.SeesSystem(pattern)}
	return s.run(func() outcome { return s.find(pattern) })
}

// Lookup returns the resource with an identifier. The attributes lie in buf if it is large enough.
func (r *Reader) Lookup(id resource.GID, buf []byte) (resource.Record, Verdict) {
	if !r.enter() {
		return resource.Record{}, Ended
	}
	defer r.leave()
	s := lookup{Reader: r, buf: buf, looks: maxLooks}
	return s.run(func() outcome { return s.lookup(id) })
}

// outcome is the result of reading one thing.
type outcome int

const (
	no       outcome = iota // certainly not
	yes                     // s.rec has the record
	torn                    // it changed while it was read: try again
	large                   // its list is not kept in the index
	nonsense                // the content is invalid
	enough                  // the question has reached a limit
)

// lookup is one question and its state.
type lookup struct {
	*Reader
	buf    []byte
	looks  int
	system bool
	rec    resource.Record
}

// run calls once until the outcome is not torn, at most maxTries times, and turns the outcome into
// a verdict.
func (s *lookup) run(once func() outcome) (resource.Record, Verdict) {
	for range maxTries {
		if !s.good() {
			return resource.Record{}, Ended
		}
		switch once() {
		case yes:
			return s.rec, Found
		case no:
			return resource.Record{}, None
		case nonsense:
			s.wrong.Store(true)
			return resource.Record{}, Ended
		case large, enough:
			return resource.Record{}, Ask
		}
	}
	return resource.Record{}, Ask
}

// hit is a posting, and the version of its part before the posting was read.
type hit struct {
	posting
	part, version uint64
}

// stood reports whether the part of h is unchanged since h was read. Then the posting is complete.
func (s *lookup) stood(h *hit) bool {
	return h.version&1 == 0 && s.w[h.part].Load() == h.version
}

// posting returns the posting of a hash; an empty one if there is none. The result is certain only
// if stood reports true afterwards.
func (s *lookup) posting(h uint64) (hit, outcome) {
	part := partOf(h)
	got := hit{part: part, version: s.w[part].Load()}
	t := s.w[part+1].Load()
	at, log := t>>32, t&0xff
	if at == 0 {
		return got, no
	}
	if at < atData || log > 32 || at+2<<log > uint64(len(s.w)) {
		return got, nonsense
	}
	mask := uint64(1)<<log - 1
	i := slotOf(h) & mask
	for range min(mask+1, maxProbes) {
		switch s.w[at+2*i].Load() {
		case h:
			got.posting = posting(s.w[at+2*i+1].Load())
			return got, yes
		case 0:
			return got, no
		}
		i = (i + 1) & mask
	}
	if mask < maxProbes {
		return got, torn // a valid table is never full
	}
	return got, enough
}

// shortest returns the shortest posting among the known attributes of a pattern; some is false if
// the pattern has none. The outcome is no, or the reason why there is no posting.
func (s *lookup) shortest(pattern *resource.List) (best hit, some bool, how outcome) {
	wire := pattern.Wire()
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		h, how := s.posting(s.of(a))
		if how > yes {
			return best, some, how
		}
		if !some || h.len() < best.len() {
			best = h
		}
		some = true
		if best.len() < 2 {
			break
		}
	}
	return best, some, no
}

// find looks for a record that matches a pattern.
func (s *lookup) find(pattern *resource.List) outcome {
	best, some, how := s.shortest(pattern)
	switch {
	case how != no:
		return how
	case !some:
		return s.any(pattern)
	}
	n := best.len()
	start, sure := uint32(0), no
	if n > 1 {
		start = s.turn.Add(1) % n
	}
	for k := range n {
		if s.looks--; s.looks < 0 {
			return enough
		}
		j := start + k
		if j >= n || j < start {
			j -= n
		}
		i, how := s.candidate(best.posting, j)
		if how == yes {
			how = s.match(i, pattern)
		}
		switch how {
		case yes, nonsense:
			return how
		case torn, large:
			sure = max(sure, how)
		}
	}
	if sure != no || s.stood(&best) {
		return sure
	}
	return torn
}

// any looks for a record that matches a pattern without known attributes. Its outcome is never no,
// because it does not look at all records at one time.
func (s *lookup) any(pattern *resource.List) outcome {
	made := uint32(min(s.w[atMade].Load(), pageLen*maxPages))
	if made == 0 {
		return enough
	}
	i := s.turn.Add(1) % made
	for range min(made, maxLooks) {
		if how := s.match(i, pattern); how == yes || how == nonsense {
			return how
		}
		if i++; i == made {
			i = 0
		}
	}
	return enough
}

// candidate returns the number of the record at a position of a posting.
func (s *lookup) candidate(p posting, pos uint32) (i uint32, how outcome) {
	e := p.ref()
	if p.list() {
		at := uint64(e)
		if at < atData || at+listLen(p.len()) > uint64(len(s.w)) {
			return 0, nonsense
		}
		e = half(s.w[at+1+uint64(pos/2)].Load(), pos)
	}
	if e == 0 {
		return 0, torn
	}
	return e - 1, yes
}

// match copies record i to s.rec. Its outcome says whether the record matches.
func (s *lookup) match(i uint32, pattern *resource.List) outcome {
	how, system := s.read(i)
	if how != yes {
		return how
	}
	if system && !s.system || !resource.Matches(&s.rec.Attrs, pattern) {
		return no
	}
	return yes
}

// lookup looks for the record with an identifier.
func (s *lookup) lookup(id resource.GID) outcome {
	h, how := s.posting(s.ofID(id))
	if how > yes {
		return how
	}
	if how == yes && h.len() > 0 {
		var i uint32
		if i, how = s.candidate(h.posting, 0); how == yes {
			how, _ = s.read(i)
		}
		if how == yes && s.rec.ID != id {
			how = torn
		}
		if how != no {
			return how
		}
	}
	if !s.stood(&h) {
		return torn
	}
	return no
}

// read copies record i to s.rec in a state that it had at one time. The outcome no says that the
// record has no resource.
func (s *lookup) read(i uint32) (how outcome, system bool) {
	r, how := s.record(i)
	if how != yes {
		return how, false
	}
	seq := r[0].Load()
	if seq&1 != 0 {
		return torn, false
	}
	desc := r[3].Load()
	size := int(desc & sizeMask)
	how = s.copyRecord(r, desc, size)
	s.rec.Revision = r[4].Load()
	if r[0].Load() != seq { // perhaps a list was written where the place of the block was
		return torn, false
	}
	if how == yes {
		l, err := resource.ParseList(s.buf[:size])
		if err != nil {
			return nonsense, false
		}
		s.rec.Attrs = l
	}
	return how, desc&flagSystem != 0
}

// record returns the words of record i, if there is one.
func (s *lookup) record(i uint32) ([]atomic.Uint64, outcome) {
	n := i / pageLen
	if n >= maxPages {
		return nil, torn // the number came from a list whose memory is used for something else now
	}
	page := uint64(half(s.w[atPages+n/2].Load(), n))
	if page == 0 {
		return nil, torn
	}
	at := page + uint64(i%pageLen)*recordLen
	if page < atData || at+recordLen > uint64(len(s.w)) {
		return nil, nonsense
	}
	return s.w[at : at+recordLen : at+recordLen], yes
}

// copyRecord copies the words r of a record, which has a description and a list of size bytes, to
// s.rec and the list to s.buf. The outcome is certain only if the record has not changed meanwhile.
func (s *lookup) copyRecord(r []atomic.Uint64, desc uint64, size int) outcome {
	id := joinGID(r[1].Load(), r[2].Load())
	switch {
	case desc == 0:
		return no
	case desc&flagLarge != 0:
		return large
	case desc&flagBlock != 0:
		block := r[recordHead].Load()
		if block < atData || size > maxKept || block > uint64(len(s.w))-blockLen(size) {
			return nonsense
		}
		b := s.w[block : block+blockLen(size)]
		s.rec = resource.Record{ID: id, Owner: joinGID(b[0].Load(), b[1].Load())}
		s.copy(b[blockHead:])
		return yes
	case size <= maxWithin:
		s.rec = resource.Record{ID: id, Owner: id.Context()}
		s.copy(r[recordHead : recordHead+(size+7)/8])
		return yes
	}
	return nonsense
}

// copy copies words to s.buf, which it enlarges if necessary.
func (s *lookup) copy(words []atomic.Uint64) {
	if cap(s.buf) < 8*len(words) {
		s.buf = make([]byte, 8*len(words))
	}
	b := s.buf[:8*len(words)]
	for k := range words {
		binary.NativeEndian.PutUint64(b[8*k:], words[k].Load())
	}
}
