// SPDX-License-Identifier: Apache-2.0

// Package relay passes the connections of a transport over TCP through a relay in the same process,
// so that a test can break them.
package relay

import (
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/rocl-go/rocl/subsys"
)

// New returns a transport like t, which is over TCP, whose ports are reached through a relay. The
// relay calls begin for each connection that it has accepted. begin returns a function that the
// relay calls for each of the two directions, in a goroutine of its own: it passes bytes on until
// the connection is to break. The relay closes the connection when one of the two calls returns.
func New(t subsys.Transport, begin func(accepted net.Conn) (pass func(to, from net.Conn))) subsys.Transport {
	return &transport{t, begin}
}

type transport struct {
	subsys.Transport
	begin func(net.Conn) func(to, from net.Conn)
}

// Listen returns a port that is reached through a relay.
func (t *transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	p, err := t.Transport.Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	r := &relay{Port: p, begin: t.begin, ln: ln}
	r.done.Go(r.accept)
	return r, nil
}

type relay struct {
	subsys.Port
	begin func(net.Conn) func(to, from net.Conn)
	ln    net.Listener
	done  sync.WaitGroup
}

// Addr returns the address of the relay.
func (r *relay) Addr() string {
	scheme, _, _ := strings.Cut(r.Port.Addr(), "://")
	return scheme + "://" + r.ln.Addr().String()
}

// Close closes the port, and waits until the goroutines of the relay have ended.
func (r *relay) Close() error {
	r.ln.Close()
	err := r.Port.Close()
	r.done.Wait()
	return err
}

func (r *relay) accept() {
	for {
		a, err := r.ln.Accept()
		if err != nil {
			return
		}
		_, host, _ := strings.Cut(r.Port.Addr(), "://")
		b, err := net.Dial("tcp", host)
		if err != nil {
			a.Close()
			continue
		}
		pass := r.begin(a)
		for _, x := range [][2]net.Conn{{a, b}, {b, a}} {
			r.done.Go(func() {
				defer x[0].Close()
				defer x[1].Close()
				pass(x[0], x[1])
			})
		}
	}
}
