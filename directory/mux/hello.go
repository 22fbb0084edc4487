// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/netsource"
	"github.com/rocl-go/rocl/resource"
)

// A hello asks whether a member of the cluster is at an address, before the two know each other's
// lives. A recorded hello is answered too, with as many bytes. It changes nothing.
//
//	asks or answers u8 | token u64
const (
	helloAsks = iota
	helloAnswers
	helloLen = 9

	helloAgain = 80 * time.Millisecond // for an answer to come
	helloTries = 2
)

var errSilent = errors.New("mux: no answer")

// hellos are the calls of Hello that wait for an answer.
type hellos struct {
	mu   sync.Mutex
	wait map[uint64]chan struct{} // by token
}

// Hello returns nil if any member of the cluster answers at addr.
func (p *Mux) Hello(ctx context.Context, addr *net.UDPAddr) error {
	token, heard := random(), make(chan struct{})
	p.hellos.mu.Lock()
	p.hellos.wait[token] = heard
	p.hellos.mu.Unlock()
	defer func() {
		p.hellos.mu.Lock()
		delete(p.hellos.wait, token)
		p.hellos.mu.Unlock()
	}()
	again := time.NewTicker(helloAgain)
	defer again.Stop()
	for range helloTries {
		if err := p.sayHello(helloAsks, token, addr); err != nil {
			return err
		}
		select {
		case <-heard:
			return nil
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.life.Done():
			return ErrClosed
		}
	}
	return errSilent
}

// random returns 64 random bits.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// sayHello sends a hello that asks or answers.
func (p *Mux) sayHello(what byte, token uint64, to *net.UDPAddr) error {
	plain := binary.LittleEndian.AppendUint64([]byte{what}, token)
	return p.sendToAddress(kindHello, plain, &p.helloOut, "hello", to)
}

// sendToAddress sends a datagram that all members can open to an address.
func (p *Mux) sendToAddress(kind byte, plain []byte, s *seals, what string, to *net.UDPAddr) error {
	k := p.keys.Load()
	w := writers.Get().(*writer)
	defer writers.Put(w)
	m := w.next(to)
	m.Buffers[0] = seal(m.Buffers[0][:0], s.get(k, 0, what), kind, k.tags[0], p.cfg.Self, random(), plain)
	_, _, err := w.flush(p.main)
	return err
}

// heardHello handles a hello, and reports whether it opens under the i-th key.
func (p *Mux) heardHello(b []byte, k *keys, i int, from *net.UDPAddr) bool {
	plain, ok := open(b, p.hellosIn.get(k, i, "hello"))
	if !ok || len(plain) != helloLen {
		return ok
	}
	token := binary.LittleEndian.Uint64(plain[1:])
	p.hellos.mu.Lock()
	heard := p.hellos.wait[token]
	if heard != nil && plain[0] == helloAnswers {
		delete(p.hellos.wait, token)
		close(heard)
	}
	p.hellos.mu.Unlock()
	if plain[0] == helloAsks {
		_ = p.sayHello(helloAnswers, token, from)
	}
	return true
}

// refused logs that a hello did not open: nothing else tells an operator that the cluster's name or
// a key is wrong.
func (p *Mux) refused(from *net.UDPAddr, sender resource.NodeID) {
	p.often.Info(netsource.Of(from), "mux: gossip refused: of another cluster, or with another key", "remote", from, "node", sender)
}

// Knock tells the program at an address that this member is there, and at which port. A member that
// was started anew there may know no other member, and cannot open what is sealed for its former
// life.
func (p *Mux) Knock(addr *net.UDPAddr) {
	_ = p.sendToAddress(kindBeacon, p.beacon(), &p.beacons, "beacon", addr)
}
