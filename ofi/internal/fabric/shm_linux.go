// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package fabric

import "sync"

// The provider shm maps the memory of an endpoint once in a process, for the endpoint and for its
// peers in the process (smr_map_to_region of libfabric 1.17 to 2.6). Closing the endpoint unmaps
// it. A peer that reads its completion queue afterwards, and had sent to the endpoint, would crash
// the process. Therefore an endpoint is freed when each peer of the process is closed too. And an
// address is never removed: a message that waits in the queue leads to the memory of its sender.
type sharing struct {
	known    map[string]Address
	peers    []*Endpoint // of this process, that e has inserted
	users    int         // endpoints that have e in their peers
	isClosed bool
}

// shared has the endpoints of the provider shm in this process, by their names.
var shared = struct {
	sync.Mutex
	byName map[string]*Endpoint
}{byName: map[string]*Endpoint{}}

func (e *Endpoint) share() {
	shared.Lock()
	defer shared.Unlock()
	e.sharing = &sharing{known: map[string]Address{}}
	shared.byName[string(e.name)] = e
}

func (e *Endpoint) insertShared(name []byte) (Address, error) {
	shared.Lock()
	defer shared.Unlock()
	s := e.sharing
	if a, isKnown := s.known[string(name)]; isKnown {
		return a, nil
	}
	a, err := e.add(name)
	if err != nil {
		return 0, err
	}
	s.known[string(name)] = a
	if peer := shared.byName[string(name)]; peer != nil && peer != e {
		peer.sharing.users++
		s.peers = append(s.peers, peer)
	}
	return a, nil
}

// closeShared frees e and the closed endpoints that only e has used, as far as no open endpoint
// uses them. An endpoint that is closed and not yet freed touches no other's memory.
func (e *Endpoint) closeShared() {
	shared.Lock()
	defer shared.Unlock()
	e.sharing.isClosed = true
	for _, peer := range e.sharing.peers {
		peer.sharing.users--
		peer.freeUnused()
	}
	e.freeUnused()
}

func (e *Endpoint) freeUnused() {
	if e.sharing.isClosed && e.sharing.users == 0 {
		delete(shared.byName, string(e.name))
		e.free()
	}
}
