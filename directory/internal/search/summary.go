// SPDX-License-Identifier: Apache-2.0

package search

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl/resource"
)

const (
	// wrong is how often a full summary of a small cluster wrongly says that it may have an
	// attribute.
	wrong = 0.01
	// rightest is the same for a large cluster, at least.
	rightest   = 1e-5
	growth     = 1.5     // capacity of a new summary, in units of its content
	least      = 64      // attributes that the smallest summary is made for
	maxSummary = 8 << 20 // bits, 1 MiB
	maxHashes  = 32      // of one attribute
)

// A Summary tells which attributes a node may hold. It only grows: attributes that are gone stay in
// it until the node makes a new one. It is not for concurrent use.
type Summary struct {
	Epoch    uint32 // which of the node's summaries this is; random
	Version  uint32 // how many attributes were added
	filter   *bloom.BloomFilter
	capacity uint // attributes it was made for
}

// NewSummary makes a summary of the resources that a node holds, with capacity to grow. The more
// members the cluster has, the rarer a wrong suspicion must be: about one member of all is
// suspected wrongly if the summaries are full.
func NewSummary(all iter.Seq[*resource.List], members int) *Summary {
	var there []uint32
	if all != nil {
		for l := range all {
			keys(l, func(k uint32) { there = append(there, k) })
		}
	}
	slices.Sort(there)
	there = slices.Compact(there)
	s := &Summary{Epoch: rand.Uint32() | 1, capacity: max(least, uint(growth*float64(len(there))))}
	m, k := bloom.EstimateParameters(s.capacity, wrongAmong(members))
	if m > maxSummary {
		m = maxSummary
		k = max(1, uint(math.Round(float64(m)/float64(s.capacity)*math.Ln2)))
	}
	s.filter = bloom.New(m, k)
	for _, k := range there {
		s.add(k)
	}
	return s
}

// wrongAmong returns how often a full summary may be wrong in a cluster of so many members.
func wrongAmong(members int) float64 {
	return min(wrong, max(rightest, 1/float64(max(members, 1))))
}

// keys yields the hashes of the known attributes of a list. A hash is of name and value together,
// which is what a pattern knows. 32 bits collide less often than a filter is wrong, and halve what
// travels.
func keys(l *resource.List, yield func(uint32)) {
	wire := l.Wire()
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		yield(uint32(xxhash.Sum64(a)))
	}
}

// add adds k, and reports whether k is new, so that it has to be sent to other nodes.
func (s *Summary) add(k uint32) bool {
	if s.filter.TestOrAdd(binary.LittleEndian.AppendUint32(nil, k)) {
		return false
	}
	s.Version++
	return true
}

// Stale reports whether a new summary is due: this one has more attributes than it was made for, or
// the cluster has far more members than its error rate suits.
func (s *Summary) Stale(members int) bool {
	return uint(s.Version) > s.capacity || float64(s.filter.K()) < 0.75*math.Log2(1/wrongAmong(members)) && s.filter.Cap() < maxSummary
}

// worth returns how many keys are better sent one by one than as a whole summary: as many as fill
// half its size, or one packet.
func (s *Summary) worth() int { return max(maxDelta, int(s.filter.Cap()/64)) }

// May reports whether a node with this summary may hold what the pattern asks for.
func (s *Summary) May(pattern *resource.List) bool { return s.may(newProbe(pattern)) }

// A probe has the hashes by which a filter is tested for each attribute of a pattern. They are
// computed once for thousands of filters.
type probe [][]uint64

// newProbe returns the probe for a pattern.
func newProbe(pattern *resource.List) (p probe) {
	keys(pattern, func(k uint32) {
		p = append(p, bloom.Locations(binary.LittleEndian.AppendUint32(nil, k), maxHashes))
	})
	return p
}

// may is May with a probe.
func (s *Summary) may(p probe) bool {
	for _, at := range p {
		if !s.filter.TestLocations(at[:s.filter.K()]) {
			return false
		}
	}
	return true
}

// apply adds the keys that came after version from, and reports whether they fit to the summary. If
// they do not, the caller has to ask for what is missing. Keys that are in the summary already do
// no harm.
func (s *Summary) apply(epoch, from uint32, fresh []uint32) bool {
	if epoch != s.Epoch || from > s.Version {
		return false
	}
	if to := uint64(from) + uint64(len(fresh)); to > uint64(s.Version) {
		for _, k := range fresh {
			s.add(k)
		}
		s.Version = uint32(to)
	}
	return true
}

// Bytes returns the approximate size of the summary in memory.
func (s *Summary) Bytes() int { return int(s.filter.Cap()+63)/64*8 + 96 }

// ErrSummary is returned for bytes that are no summary.
var ErrSummary = errors.New("search: malformed summary")

const summaryHead = 20

// Append appends the summary to b:
//
//	epoch u32 | version u32 | capacity u32 | hashes u32 | bits u32 | words × u64
func (s *Summary) Append(b []byte) []byte {
	for _, v := range []uint32{s.Epoch, s.Version, uint32(s.capacity), uint32(s.filter.K()), uint32(s.filter.Cap())} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, w := range s.filter.BitSet().Words() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// ParseSummary reads a summary that Append wrote.
func ParseSummary(b []byte) (*Summary, error) {
	if len(b) < summaryHead {
		return nil, fmt.Errorf("%w: %d bytes", ErrSummary, len(b))
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	k, m := u32(12), u32(16)
	words := (int(m) + 63) / 64
	if m == 0 || m > maxSummary || k == 0 || k > maxHashes || len(b) != summaryHead+8*words {
		return nil, fmt.Errorf("%w: %d bits in %d bytes, %d hashes", ErrSummary, m, len(b), k)
	}
	s := &Summary{Epoch: u32(0), Version: u32(4), capacity: uint(u32(8))}
	data := make([]uint64, words)
	for i := range data {
		data[i] = binary.LittleEndian.Uint64(b[summaryHead+8*i:])
	}
	s.filter = bloom.FromWithM(data, uint(m), uint(k))
	return s, nil
}
