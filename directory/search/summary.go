package search

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl/resource"
)

// wrong is how often a summary says that it may have what it has not.
const wrong = 0.01

// maxSummary bounds the bits of a summary that is read, 1 MiB.
const maxSummary = 8 << 20

// A Summary says which attributes a node may hold. It only grows: what is
// gone stays in it until the node makes a new one. Not for concurrent use.
type Summary struct {
	Version uint64 // counts the changes since the node began
	filter  *bloom.BloomFilter
	room    uint // attributes it was made for
	added   uint
}

// NewSummary makes a summary with room for n attributes.
func NewSummary(n uint) *Summary {
	n = max(n, 64)
	return &Summary{filter: bloom.NewWithEstimates(n, wrong), room: n}
}

// keys yields the hashes of the known attributes of a list: of name and value
// together, which is what a pattern knows.
func keys(l *resource.List, yield func(uint64) bool) {
	wire := l.Wire()
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		if !yield(xxhash.Sum64(a)) {
			return
		}
	}
}

// Add puts the attributes of a resource in, and returns the hashes that were
// not in yet, which is what others have to be told.
func (s *Summary) Add(l *resource.List) (fresh []uint64) {
	keys(l, func(k uint64) bool {
		if s.addKey(k) {
			fresh = append(fresh, k)
		}
		return true
	})
	if len(fresh) > 0 {
		s.Version++
	}
	return fresh
}

func (s *Summary) addKey(k uint64) bool {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], k)
	if s.filter.TestOrAdd(b[:]) {
		return false
	}
	s.added++
	return true
}

// Full says that the summary has more in it than it was made for, and a new
// one is due.
func (s *Summary) Full() bool { return s.added > s.room }

// May says whether a node with this summary may hold what the pattern asks for.
func (s *Summary) May(pattern *resource.List) (may bool) {
	may = true
	keys(pattern, func(k uint64) bool {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], k)
		may = s.filter.Test(b[:])
		return may
	})
	return may
}

// Apply brings a summary from one version to the next by the hashes that came.
// It says whether they fit: else the whole summary has to be asked for.
func (s *Summary) Apply(from, to uint64, fresh []uint64) bool {
	if from != s.Version || to < from {
		return false
	}
	for _, k := range fresh {
		s.addKey(k)
	}
	s.Version = to
	return true
}

// Bytes is the size of the summary in memory, about.
func (s *Summary) Bytes() int { return int(s.filter.Cap()/8) + 96 }

// ErrSummary says that bytes are no summary.
var ErrSummary = errors.New("search: malformed summary")

// Append writes the summary to b.
func (s *Summary) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.Version)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.room))
	b = binary.LittleEndian.AppendUint32(b, uint32(s.filter.K()))
	b = binary.LittleEndian.AppendUint32(b, uint32(s.filter.Cap()))
	for _, w := range s.filter.BitSet().Words() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// ParseSummary reads what Append wrote.
func ParseSummary(b []byte) (*Summary, error) {
	if len(b) < 20 {
		return nil, fmt.Errorf("%w: %d bytes", ErrSummary, len(b))
	}
	k, m := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])
	words := (int(m) + 63) / 64
	if m == 0 || m > maxSummary || k == 0 || k > 64 || len(b) != 20+8*words {
		return nil, fmt.Errorf("%w: %d bits in %d bytes, %d hashes", ErrSummary, m, len(b), k)
	}
	s := &Summary{Version: binary.LittleEndian.Uint64(b), room: uint(binary.LittleEndian.Uint32(b[8:]))}
	data := make([]uint64, words)
	for i := range data {
		data[i] = binary.LittleEndian.Uint64(b[20+8*i:])
	}
	s.filter = bloom.FromWithM(data, uint(m), uint(k))
	return s, nil
}
