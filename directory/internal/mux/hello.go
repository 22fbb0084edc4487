// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/resource"
)

// A hello asks whether a member of the cluster is at an address, before the two know each other's
// incarnations. A recorded hello is answered too, with as many bytes. It only makes the receiver
// look for its sender.
//
//	asks or answers u8 | token u64
const (
	helloAsks = iota
	helloAnswers
	helloLen = 9

	helloAgain = 250 * time.Millisecond // for an answer to come
	helloTries = 4
)

// Errors of Hello and Probe.
var (
	ErrSilent  = errors.New("mux: no answer")
	ErrOwn     = errors.New("mux: the address is this port's own")
	ErrRefused = errors.New("mux: the program there refuses this member")
)

// hellos are the calls of Hello that wait for an answer.
type hellos struct {
	mu   sync.Mutex
	wait map[uint64]*greeting // by token
}

// A greeting is one call of Hello. hellos.mu guards own and by.
type greeting struct {
	heard chan struct{} // closed when the answer has come
	by    resource.NodeID
	own   bool // the hello came to this port itself
}

// Hello asks whether a member of the cluster is at addr, a few times within a second, and returns
// its node. It returns ErrSilent if none answers, and ErrOwn if the hello came to this port itself.
func (x *Mux) Hello(ctx context.Context, addr *net.UDPAddr) (resource.NodeID, error) {
	token, g := random(), &greeting{heard: make(chan struct{})}
	x.hellos.mu.Lock()
	x.hellos.wait[token] = g
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
			return 0, err
		}
		select {
		case <-g.heard:
			return g.by, nil
		case <-again.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-x.lifetime.Done():
			return 0, ErrClosed
		}
		x.hellos.mu.Lock()
		own := g.own
		x.hellos.mu.Unlock()
		if own {
			return 0, ErrOwn
		}
	}
	return 0, ErrSilent
}

// A RefusedError says that a program accepts connections and does not take this member for one of
// its own, or takes only its streams or only its datagrams. It matches ErrRefused.
type RefusedError struct {
	Addr string
	Err  error // what is known of the reason
}

func (e *RefusedError) Error() string   { return fmt.Sprintf("%v: %s: %v", ErrRefused, e.Addr, e.Err) }
func (e *RefusedError) Unwrap() []error { return []error{ErrRefused, e.Err} }

// Probe asks by a stream what is at an address at which Hello was not answered. It returns a
// *RefusedError if a program there accepts connections. Any other error means that no program
// answers.
func (x *Mux) Probe(ctx context.Context, addr *net.UDPAddr) error {
	nc, err := x.dialStream(ctx, hostPort(addr))
	if err != nil {
		return fmt.Errorf("mux: probing: %w", err)
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	if x.cfg.TLS.Client != nil {
		if _, err = x.cfg.TLS.Client(ctx, nc); err == nil {
			err = errDeaf
		} else {
			err = fmt.Errorf("it has another key, another cluster name or other certificates, or is no member: %w", err)
		}
	} else {
		// A program that runs closes a connection on which nothing comes any more. A program that
		// is stopped does not.
		_ = nc.(interface{ CloseWrite() error }).CloseWrite()
		if _, err = io.Copy(io.Discard, nc); err == nil {
			err = errEnded
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("mux: probing %s: %w", addr, context.Cause(ctx))
	}
	return &RefusedError{addr.String(), err}
}

// Reasons of a RefusedError. With certificates that the operator has made, a program takes the
// streams of a member that has another key.
var (
	errDeaf  = errors.New("it answers streams and no datagrams: a firewall blocks UDP, or only its certificates are this cluster's")
	errEnded = errors.New("it accepts streams and answers no datagrams: it has a key or another cluster name, or is no member, or a firewall blocks UDP")
)

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
	_, err := x.sendOne(kind, random(), plain, to, func(k *keys) cipher.AEAD { return s.get(k, 0, what) })
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
	g := x.hellos.wait[token]
	isAnswer := g != nil && plain[0] == helloAnswers
	switch {
	case g == nil:
	case isAnswer:
		delete(x.hellos.wait, token)
		g.by = senderOf(b)
		close(g.heard)
	default:
		g.own = true // another member's answer may still come
	}
	x.hellos.mu.Unlock()
	if isAnswer && x.cfg.Answer != nil {
		x.cfg.Answer(senderOf(b), from)
	}
	if plain[0] == helloAsks && g == nil {
		_ = x.sayHello(helloAnswers, token, from)
	}
	if id := senderOf(b); g == nil && id != x.cfg.Self && x.cfg.Hello != nil {
		x.cfg.Hello(id, from)
	}
	return true
}

// refused logs that a hello did not open: nothing else tells an operator that the cluster's name or
// a key is wrong.
func (x *Mux) refused(from *net.UDPAddr, sender resource.NodeID) {
	// Cause: a process with another `--cluster` or key contacts this node. Remedy: correct or stop
	// it.
	x.often.Info(netsource.Of(from), "mux: gossip refused: of another cluster, or with another key", "remote", from, "node", sender)
}
