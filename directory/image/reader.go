// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/resource"
)

// A Verdict is how a question to an image ended.
type Verdict int

// Verdicts.
const (
	Ask   Verdict = iota // the image cannot tell: ask the server
	Found                // it is so
	None                 // nothing in the image matches; see Alone
	Over                 // the image has ended, or is none: do not use it again
)

const (
	// maxTries is how often a reader tries again because of a change.
	maxTries = 16
	// maxLooks is how many records a question looks at.
	maxLooks = 1024
	// maxProbes is how many slots it looks at for each attribute.
	maxProbes = 1024
)

// A Reader answers from an image that is mapped. All methods may be called
// concurrently; none of them makes a system call.
type Reader struct {
	key
	mem   []byte
	w     []atomic.Uint64
	uses  atomic.Int64 // readers within; far below 0 once closed
	wrong atomic.Bool  // nonsense was read
	turn  atomic.Uint32
}

const closing = -1 << 40

// Open maps the image of another process. It does not keep fd.
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

func newReader(mem []byte) *Reader {
	w := wordsOf(mem)
	if w[atMagic].Load() != magic {
		return nil
	}
	r := &Reader{mem: mem, w: w, key: key{w[atKey].Load(), w[atKey+1].Load()}}
	r.turn.Store(rand.Uint32()) // not all readers begin with the same one
	return r
}

// Close unmaps the image when nobody reads in it any more.
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

func (r *Reader) enter() bool {
	if r.uses.Add(1) > 0 {
		return true
	}
	r.leave()
	return false
}

func (r *Reader) leave() {
	if r.uses.Add(-1) == closing {
		r.unmap()
	}
}

// unmap does so, once, if it is closed and nobody is within.
func (r *Reader) unmap() {
	if r.uses.CompareAndSwap(closing, 2*closing) {
		memfd.Unmap(r.mem)
	}
}

// good says whether the image can be read.
func (r *Reader) good() bool { return !r.wrong.Load() && r.w[atState].Load() == live }

// Alone says whether what is not in the image is nowhere.
func (r *Reader) Alone() bool {
	if !r.enter() {
		return false
	}
	defer r.leave()
	return r.good() && r.w[atAlone].Load() == 1
}

// Find returns one resource that matches a pattern; among several, which one
// differs from call to call. The attributes lie in buf if it has room. What has an
// order, or an owner, the server is to be asked.
func (r *Reader) Find(pattern *resource.List, buf []byte) (Record, Verdict) {
	if pattern.Conditional() {
		_, _, ordered := pattern.Order()
		if _, owned := pattern.Owner(); ordered || owned {
			return Record{}, Ask
		}
	}
	if !r.enter() {
		return Record{}, Over
	}
	defer r.leave()
	s := search{Reader: r, buf: buf, looks: maxLooks}
	s.system = resource.SeesSystem(pattern)
	return s.run(func() outcome { return s.find(pattern) })
}

// Lookup returns the resource with an identifier, as Find does.
func (r *Reader) Lookup(id resource.GID, buf []byte) (Record, Verdict) {
	if !r.enter() {
		return Record{}, Over
	}
	defer r.leave()
	s := search{Reader: r, buf: buf, looks: maxLooks}
	return s.run(func() outcome { return s.lookup(id) })
}

// outcome is how looking at something ended.
type outcome int

const (
	no    outcome = iota // for certain
	yes                  // s.rec is it
	torn                 // it changes: try again
	large                // its list is not kept
	nonsense
	enough // more is not looked at
)

// search is one question.
type search struct {
	*Reader
	buf    []byte
	looks  int
	system bool
	rec    Record
}

func (s *search) run(once func() outcome) (Record, Verdict) {
	for range maxTries {
		if !s.good() {
			return Record{}, Over
		}
		switch once() {
		case yes:
			return s.rec, Found
		case no:
			return Record{}, None
		case nonsense:
			s.wrong.Store(true)
			return Record{}, Over
		case large, enough:
			return Record{}, Ask
		}
	}
	return Record{}, Ask
}

// hit is a posting, and the version of its part before it was read.
type hit struct {
	posting
	part, version uint64
}

// stood says whether what was found in a part is all there is.
func (s *search) stood(h *hit) bool {
	return h.version&1 == 0 && s.w[h.part].Load() == h.version
}

// posting finds that of a hash; empty if there is none. Whether that is so stood
// tells.
func (s *search) posting(h uint64) (hit, outcome) {
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
		return got, torn // a table is never full
	}
	return got, enough
}

// shortest finds the shortest posting among the known attributes of a pattern; some is
// false if the pattern has none. The outcome is no, or why there is no posting.
func (s *search) shortest(pattern *resource.List) (best hit, some bool, how outcome) {
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

func (s *search) find(pattern *resource.List) outcome {
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

// any finds what matches a pattern that knows nothing. It is never certain that
// there is none.
func (s *search) any(pattern *resource.List) outcome {
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

// candidate is the record at a place of a posting.
func (s *search) candidate(p posting, place uint32) (i uint32, how outcome) {
	e := p.ref()
	if p.list() {
		at := uint64(e)
		if at < atData || at+listLen(p.len()) > uint64(len(s.w)) {
			return 0, nonsense
		}
		e = half(s.w[at+1+uint64(place/2)].Load(), place)
	}
	if e == 0 {
		return 0, torn
	}
	return e - 1, yes
}

// match copies record i and says whether it matches.
func (s *search) match(i uint32, pattern *resource.List) outcome {
	how, system := s.read(i)
	if how != yes {
		return how
	}
	if system && !s.system || !resource.Matches(&s.rec.Attrs, pattern) {
		return no
	}
	return yes
}

func (s *search) lookup(id resource.GID) outcome {
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

// read copies record i to s.rec, as it was at one time; no: it is nobody's.
func (s *search) read(i uint32) (how outcome, system bool) {
	n := i / pageLen
	if n >= maxPages {
		return torn, false // from a list that has become something else
	}
	page := uint64(half(s.w[atPages+n/2].Load(), n))
	if page == 0 {
		return torn, false
	}
	at := page + uint64(i%pageLen)*recordLen
	if page < atData || at+recordLen > uint64(len(s.w)) {
		return nonsense, false
	}
	r := s.w[at : at+recordLen : at+recordLen]
	seq := r[0].Load()
	if seq&1 != 0 {
		return torn, false
	}
	id, desc := joinGID(r[1].Load(), r[2].Load()), r[3].Load()
	size := int(desc & sizeMask)
	switch {
	case desc == 0:
		how = no
	case desc&flagLarge != 0:
		how = large
	case desc&flagBlock != 0:
		block := r[recordHead].Load()
		if block < atData || size > maxKept || block > uint64(len(s.w))-blockLen(size) {
			if r[0].Load() != seq { // a list was written where the place was
				return torn, false
			}
			return nonsense, false
		}
		b := s.w[block : block+blockLen(size)]
		s.rec = Record{ID: id, Owner: joinGID(b[0].Load(), b[1].Load())}
		s.copy(b[blockHead:])
		how = yes
	case size <= maxWithin:
		s.rec = Record{ID: id, Owner: id.Context()}
		s.copy(r[recordHead : recordHead+(size+7)/8])
		how = yes
	default:
		return nonsense, false
	}
	s.rec.Revision = r[4].Load()
	if r[0].Load() != seq {
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

// copy copies words to s.buf.
func (s *search) copy(words []atomic.Uint64) {
	if cap(s.buf) < 8*len(words) {
		s.buf = make([]byte, 8*len(words))
	}
	b := s.buf[:8*len(words)]
	for k := range words {
		binary.NativeEndian.PutUint64(b[8*k:], words[k].Load())
	}
}
