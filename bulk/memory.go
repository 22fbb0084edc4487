// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"iter"
	"math"
	"sort"
)

// A memory is several slices that are read and written as one sequence of bytes.
type memory struct {
	parts  [][]byte
	starts []int64 // offset of each part, and the size at the end; nil for a single part
}

// newMemory reports false if the sizes of the parts add up to more than an int64 holds.
func newMemory(parts [][]byte) (m memory, ok bool) {
	m.parts = parts
	if len(parts) == 1 {
		return m, true
	}
	m.starts = make([]int64, len(parts)+1)
	for i, p := range parts {
		if int64(len(p)) > math.MaxInt64-m.starts[i] {
			return m, false
		}
		m.starts[i+1] = m.starts[i] + int64(len(p))
	}
	return m, true
}

func (m *memory) size() int64 {
	if m.starts == nil {
		return int64(len(m.parts[0]))
	}
	return m.starts[len(m.parts)]
}

// find returns the part that has the byte at off, and the offset in it. off must be less than the
// size.
func (m *memory) find(off int64) (part int, at int) {
	if m.starts == nil {
		return 0, int(off)
	}
	part = sort.Search(len(m.parts), func(i int) bool { return m.starts[i+1] > off })
	return part, int(off - m.starts[part])
}

// slice returns the n bytes from off if they lie in one part, else nil.
func (m *memory) slice(off, n int64) []byte {
	if n == 0 {
		return nil
	}
	i, at := m.find(off)
	if p := m.parts[i][at:]; int64(len(p)) >= n {
		return p[:n:n]
	}
	return nil
}

// segmentLeast is the least size of a large segment. Its bytes are sent from where they lie and
// received where they belong, with a request of their own. For fewer bytes a copy costs less than a
// request.
const segmentLeast = 64 << 10

// run returns how many of the n bytes from off one request is for. They lie in one large segment,
// or in the small ones before the next large one.
func (m *memory) run(off, n int64) int64 {
	if m.starts == nil {
		return n
	}
	i, at := m.find(off)
	size := int64(len(m.parts[i]) - at)
	if size >= segmentLeast {
		return min(size, n)
	}
	for i++; size < n && len(m.parts[i]) < segmentLeast; i++ {
		size += int64(len(m.parts[i]))
	}
	return min(size, n)
}

// part returns how many of the n bytes from off one reply has: those of a run, or more if they are
// too few for a part.
func (m *memory) part(off int64, n int) int {
	if n <= partLeast {
		return n
	}
	return max(int(m.run(off, int64(n))), partLeast)
}

// within yields the n bytes from off, part by part. They must be within the memory.
func (m *memory) within(off, n int64) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if n == 0 {
			return
		}
		for i, at := m.find(off); n > 0; i, at = i+1, 0 {
			p := m.parts[i][at:]
			p = p[:min(int64(len(p)), n)]
			n -= int64(len(p))
			if len(p) > 0 && !yield(p) {
				return
			}
		}
	}
}

// read copies the bytes from off to p.
func (m *memory) read(p []byte, off int64) {
	for from := range m.within(off, int64(len(p))) {
		p = p[copy(p, from):]
	}
}

// write copies p to the bytes from off.
func (m *memory) write(p []byte, off int64) {
	for to := range m.within(off, int64(len(p))) {
		p = p[copy(to, p):]
	}
}

// isWithin reports whether n bytes from off lie within size bytes.
func isWithin(off, n, size int64) bool { return off >= 0 && n >= 0 && off <= size && n <= size-off }
