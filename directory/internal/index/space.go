// SPDX-License-Identifier: Apache-2.0

package index

import "math/bits"

// space allocates blocks of words in the file of an index. It takes them from the lists of blocks
// that were given back, by size; else from larger blocks in these lists; else behind the words in
// use. Blocks that are given back are cut, and never joined; an index that is mostly empty is made
// anew (ErrWorn). Blocks of more than small words begin at a multiple of 16, which is two cache
// lines.
type space struct {
	next, there uint64                      // the end of the words in use, and of those that have memory
	size        uint64                      // words of the whole file
	commit      func(from, to uint64) error // gives memory to the words between from and to

	carve, carveEnd uint64            // the rest of a block that is cut into small ones
	free            [classes][]uint32 // blocks that were given back, by class
	idle            uint64            // words in free
}

const (
	small   = 64 // words; sizes up to here are even numbers, larger ones a quarter of a power of two apart
	classes = small/2 + 4*26 + 1
)

// class returns the class of the blocks that hold n words, and their size.
func class(n uint64) (c int, size uint64) {
	if n <= small {
		size = (n + 1) &^ 1
		return int(size / 2), size
	}
	e := bits.Len64(n - 1)
	step := uint64(1) << (e - 3)
	size = (n + step - 1) &^ (step - 1)
	return small/2 + 4*(e-7) + int((size-1<<(e-1))/step), size
}

// get returns a block of at least n words, with arbitrary content. ErrFull says that the file has
// no room.
func (s *space) get(n uint64) (at uint64, err error) {
	c, size := class(n)
	if c >= classes {
		return 0, ErrFull
	}
	if at, ok := s.pop(c); ok {
		return at, nil
	}
	if size > small {
		for l := c + 1; l < classes; l++ {
			if at, ok := s.pop(l); ok {
				s.putBlocks(at+size, sizeOf(l)-size)
				return at, nil
			}
		}
		return s.more(size)
	}
	if s.carveEnd-s.carve < size {
		if err := s.carveMore(); err != nil {
			return 0, err
		}
	}
	at = s.carve
	s.carve += size
	return at, nil
}

// pop takes a block of class c that was given back. It reports false if there is none.
func (s *space) pop(c int) (at uint64, ok bool) {
	f := s.free[c]
	if len(f) == 0 {
		return 0, false
	}
	s.free[c] = f[:len(f)-1]
	s.idle -= sizeOf(c)
	return uint64(f[len(f)-1]), true
}

// putBlocks gives back n words in as few blocks as the classes allow, the largest first.
func (s *space) putBlocks(at, n uint64) {
	for n > 0 {
		c, size := class(n)
		for size > n {
			c--
			size = sizeOf(c)
		}
		s.put(at, size)
		at += size
		n -= size
	}
}

// put gives back a block that get(n) returned.
func (s *space) put(at, n uint64) {
	c, size := class(n)
	s.free[c] = append(s.free[c], uint32(at))
	s.idle += size
}

// carveMore finds the next block to be cut into small ones.
func (s *space) carveMore() error {
	if rest := s.carveEnd - s.carve; rest > 0 {
		s.put(s.carve, rest) // less than small, and even, so a class has this size
	}
	s.carve, s.carveEnd = 0, 0
	for c := classes - 1; c > small/2; c-- {
		if at, ok := s.pop(c); ok {
			s.carve, s.carveEnd = at, at+sizeOf(c)
			return nil
		}
	}
	const fresh = 2048
	at, err := s.more(fresh)
	if err == nil {
		s.carve, s.carveEnd = at, at+fresh
	}
	return err
}

// sizeOf returns the size of the blocks of class c.
func sizeOf(c int) uint64 {
	if c <= small/2 {
		return uint64(c) * 2
	}
	c -= small/2 + 1
	e := c/4 + 7
	return 1<<(e-1) + uint64(c%4+1)<<(e-3)
}

// more takes n words at the end of those in use. ErrFull says that the file has no room.
func (s *space) more(n uint64) (at uint64, err error) {
	if n > s.size-s.next {
		return 0, ErrFull
	}
	if end := s.next + n; end > s.there {
		// A small piece at a time, because the goroutine that changes the database waits for it.
		const least, most = 4 << 10, 512 << 10
		to := min(max(end, s.there+min(max((s.next-atData)/8, least), most)+511)&^511, s.size)
		if err := s.commit(s.there, to); err != nil {
			return 0, err
		}
		s.there = to
	}
	at = s.next
	s.next += n
	return at, nil
}
