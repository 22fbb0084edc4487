// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
)

// memory registers the arenas of pools with an endpoint. It implements [buffers.Registrar]. An
// arena that the provider refuses, for instance because of RLIMIT_MEMLOCK, stays unregistered: what
// lies in it is copied.
type memory struct {
	ep      *fabric.Endpoint
	refused func(error) // told of each refusal

	mu       sync.Mutex
	isClosed bool
	exposed  map[*exposure]struct{}
	areas    atomic.Pointer[[]area] // in the order of their addresses; read without mu
}

// An area is registered memory.
type area struct {
	from, to uintptr
	*fabric.Region
}

// register is replaced by tests.
var register = (*fabric.Endpoint).Register

// RegisterArena implements [buffers.Registrar]. It always returns nil.
func (m *memory) RegisterArena(a buffers.Arena) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isClosed {
		return nil
	}
	var key [8]byte
	_, _ = rand.Read(key[:]) // a peer must not guess the key
	r, err := register(m.ep, a.Mem, binary.LittleEndian.Uint64(key[:]))
	if err != nil {
		m.refused(err)
		return nil
	}
	from := addressOf(a.Mem)
	all := *m.areas.Load()
	i, _ := slices.BinarySearchFunc(all, from, compare)
	all = slices.Insert(slices.Clone(all), i, area{from, from + uintptr(len(a.Mem)), r})
	m.areas.Store(&all)
	return nil
}

// UnregisterArena implements [buffers.Registrar].
func (m *memory) UnregisterArena(a buffers.Arena) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := *m.areas.Load()
	i, isThere := slices.BinarySearchFunc(all, addressOf(a.Mem), compare)
	if !isThere {
		return
	}
	m.ep.Unregister(all[i].Region)
	all = slices.Delete(slices.Clone(all), i, i+1)
	m.areas.Store(&all)
}

// close unregisters everything, and registers nothing more.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isClosed = true
	for x := range m.exposed {
		m.ep.Unregister(x.region)
		x.region = nil
	}
	clear(m.exposed)
	for _, a := range *m.areas.Swap(new([]area)) {
		m.ep.Unregister(a.Region)
	}
}

// find returns the area in which b lies, or one without a region.
func (m *memory) find(b []byte) area {
	at, all := addressOf(b), *m.areas.Load()
	i, isThere := slices.BinarySearchFunc(all, at, compare)
	if !isThere {
		i--
	}
	if i >= 0 && at+uintptr(len(b)) <= all[i].to {
		return all[i]
	}
	return area{}
}

// desc returns what the provider wants to know of local memory. ok is false if the memory must be
// registered and is not.
func (m *memory) desc(b []byte) (desc uintptr, ok bool) {
	if !m.ep.NeedsLocal() {
		return 0, true
	}
	a := m.find(b)
	if a.Region == nil {
		return 0, false
	}
	return a.Desc, true
}

func compare(a area, at uintptr) int {
	switch {
	case a.from < at:
		return -1
	case a.from > at:
		return 1
	}
	return 0
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
