// SPDX-License-Identifier: Apache-2.0

package index

import "github.com/rocl-go/rocl/resource"

const (
	// maxListed limits the candidates that a Listing takes from an index.
	maxListed = 1 << 20
	// slabBytes is the size of the memory that small lists of a Listing share. A caller that keeps
	// one of these lists keeps all that memory.
	slabBytes = 2 << 10
	// slabLeast is the size below which the rest of that memory is replaced.
	slabLeast = 256
)

// A Listing reads all records that match a pattern. Only one goroutine may use it at a time.
type Listing struct {
	r       *Reader
	pattern *resource.List
	system  bool     // the library's own resources may match
	left    []uint32 // record numbers that have not been read
	slab    []byte   // for the lists of records
}

// List begins a Listing. Records that match now and still match when they are read are returned
// once. Records that are added later may be missed. The pattern must not change.
//
// The verdict is Found if the index can tell which records match, even if none does. Otherwise it
// is Ask or Ended, and there is no Listing. The index cannot answer a pattern with an order, with
// an owner, or without any known attribute.
func (r *Reader) List(pattern *resource.List) (*Listing, Verdict) {
	if !answers(pattern) {
		return nil, Ask
	}
	if !r.enter() {
		return nil, Ended
	}
	defer r.leave()
	l := &Listing{r: r, pattern: pattern, system: resource.SeesSystem(pattern)}
	s := lookup{Reader: r}
	if _, v := s.run(func() outcome { return l.candidates(&s) }); v != None {
		return nil, v
	}
	return l, Found
}

// Left returns an upper limit for the number of records that are still to come.
func (l *Listing) Left() int { return len(l.left) }

// candidates copies the shortest posting of the pattern's attributes. The outcome is no if the copy
// is complete.
func (l *Listing) candidates(s *lookup) outcome {
	best, some, how := s.shortest(l.pattern)
	switch n := best.len(); {
	case how != no:
		return how
	case !some || n > maxListed:
		return enough
	default:
		l.left = make([]uint32, n)
	}
	for k := range l.left {
		if l.left[k], how = s.candidate(best.posting, uint32(k)); how != yes {
			return how
		}
	}
	if !s.stood(&best) {
		return torn
	}
	return no
}

// Next appends the next records to recs until recs has no more capacity. Their attributes are
// copies. The verdict Found says that all is well; if recs has capacity left then, there are no
// more records. Ask and Ended say that the index cannot tell what follows.
func (l *Listing) Next(recs []resource.Record) ([]resource.Record, Verdict) {
	if !l.r.enter() {
		return recs, Ended
	}
	defer l.r.leave()
	s := lookup{Reader: l.r, system: l.system}
	complete := l.pattern.Complete()
	for len(l.left) > 0 && len(recs) < cap(recs) {
		if !s.good() {
			return recs, Ended
		}
		if len(l.slab) < slabLeast {
			l.slab = make([]byte, slabBytes)
		}
		how := torn
		for try := 0; how == torn && try < maxTries; try++ {
			s.buf = l.slab[:0:len(l.slab)]
			how = s.match(l.left[0], l.pattern)
		}
		switch how {
		case yes:
			if !complete {
				s.rec.Attrs = l.pattern.Answer(&s.rec.Attrs)
			} else if n := (len(s.rec.Attrs.Wire()) + 7) &^ 7; n <= len(l.slab) {
				l.slab = l.slab[n:]
			}
			recs = append(recs, s.rec)
		case no:
		case nonsense:
			s.wrong.Store(true)
			return recs, Ended
		default:
			return recs, Ask
		}
		l.left = l.left[1:]
	}
	return recs, Found
}
