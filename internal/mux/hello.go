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
func (x *Mux) Hello(ctx context.Context, addr *net.UDPAddr) error {
	token, heard := random(), make(chan struct{})
	x.hellos.mu.Lock()
	x.hellos.wait[token] = heard
	x.hellos.mu.Unlock()
	defer func() {
		x.hellos.mu.Lock()
		delete(x.hellos.wait, token)
		x.hellos.mu.Unlock()
	}()
	again := time.NewTicker(helloAgain)
	defer again.Stop()
	for range helloTries {
		if err := x.sayHello(helloAsks, token, addr); err != nil {
			return err
		}
		select {
		case <-heard:
			return nil
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-x.life.Done():
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
func (x *Mux) sayHello(what byte, token uint64, to *net.UDPAddr) error {
	plain := binary.LittleEndian.AppendUint64([]byte{what}, token)
	return x.sendToAddress(kindHello, plain, &x.helloOut, "hello", to)
}

// sendToAddress sends a datagram that all members can open to an address.
func (x *Mux) sendToAddress(kind byte, plain []byte, s *seals, what string, to *net.UDPAddr) error {
	k := x.keys.Load()
	w := writers.Get().(*writer)
	defer writers.Put(w)
	m := w.next(to)
	m.Buffers[0] = seal(m.Buffers[0][:0], s.get(k, 0, what), kind, k.tags[0], x.cfg.Self, random(), plain)
	_, _, err := w.flush(x.main)
	return err
}

// heardHello handles a hello, and reports whether it opens under the i-th key.
func (x *Mux) heardHello(b []byte, k *keys, i int, from *net.UDPAddr) bool {
	plain, ok := open(b, x.hellosIn.get(k, i, "hello"))
	if !ok || len(plain) != helloLen {
		return ok
	}
	token := binary.LittleEndian.Uint64(plain[1:])
	x.hellos.mu.Lock()
	heard := x.hellos.wait[token]
	isAnswer := heard != nil && plain[0] == helloAnswers
	if isAnswer {
		delete(x.hellos.wait, token)
		close(heard)
	}
	x.hellos.mu.Unlock()
	if isAnswer && x.cfg.Answer != nil {
		x.cfg.Answer(senderOf(b), from)
	}
	if plain[0] == helloAsks {
		_ = x.sayHello(helloAnswers, token, from)
	}
	return true
}

// refused logs that a hello did not open: nothing else tells an operator that the cluster's name or
// a key is wrong.
func (x *Mux) refused(from *net.UDPAddr, sender resource.NodeID) {
	x.often.Info(netsource.Of(from), "mux: gossip refused: of another cluster, or with another key", "remote", from, "node", sender)
}

// Knock tells the program at an address that this member is there, and at which port. A member that
// was started anew there may know no other member, and cannot open what is sealed for its former
// life.
func (x *Mux) Knock(addr *net.UDPAddr) {
	_ = x.sendToAddress(kindBeacon, x.beacon(), &x.beacons, "beacon", addr)
}
