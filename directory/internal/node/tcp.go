// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// Protocol: The directory at a TCP port
//
// At a TCP port both ends prove, before the greeting, that they know the node's key: 32 bytes,
// hexadecimal behind `key` in `PATH.node`. The server sends `RDTC`, version 2 u8, 3 zero bytes and
// its nonce, 32 bytes. The client sends its nonce and proof, 32 bytes each, the server its proof. A
// proof is an HMAC-SHA256 under the key of `tcp server` or `tcp client` (the prover's role), the
// server's nonce, the client's nonce, and the server's address as the prover has it
// (`127.0.0.1:7946`). At a wrong or late proof (2 to 5 s) an end closes.

// Over TCP, both ends first prove that they know the node's key. A proof covers the role of the end
// that sends it, both nonces, and the server's address as that end sees it. So a proof is useless
// if it is sent back, or relayed from a server at another address.
const (
	tcpNonce = 32
	tcpProof = 32
	// serverTime is how long a client has to prove that it knows the key, clientTime how long a
	// server has.
	serverTime = 2 * time.Second
	clientTime = 5 * time.Second
)

// tcpHello begins a connection over TCP. Its fifth byte is the version.
var tcpHello = [8]byte{'R', 'D', 'T', 'C', 2}

// A handshake has the values of which the proofs of one connection are made.
type handshake struct {
	id             *Identity
	at             net.Addr // the server's address
	server, client [tcpNonce]byte
}

// proof returns the proof of the end with that role, "server" or "client".
func (h *handshake) proof(role string) [tcpProof]byte {
	at := h.at.String()
	if a, err := netip.ParseAddrPort(at); err == nil {
		at = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
	}
	b := append(append(h.server[:tcpNonce:tcpNonce], h.client[:]...), at...)
	return h.id.derive("tcp "+role, b)
}

// Limits of connections that have not proved to know the key, in all and from one address.
const (
	maxUnproved         = 256
	maxUnprovedOfSource = 128
)

// serverHandshake is the server's side of the handshake.
func serverHandshake(nc net.Conn, id *Identity) error {
	h := handshake{id: id, at: nc.LocalAddr()}
	_, _ = rand.Read(h.server[:])
	if _, err := nc.Write(append(tcpHello[:len(tcpHello):len(tcpHello)], h.server[:]...)); err != nil {
		return err
	}
	var answer [tcpNonce + tcpProof]byte
	if _, err := io.ReadFull(nc, answer[:]); err != nil {
		return err
	}
	copy(h.client[:], answer[:])
	if want := h.proof("client"); !hmac.Equal(want[:], answer[tcpNonce:]) {
		return errProof
	}
	ours := h.proof("server")
	_, err := nc.Write(ours[:])
	return err
}

// clientHandshake is the client's side of the handshake.
func clientHandshake(nc net.Conn, id *Identity) error {
	h := handshake{id: id, at: nc.RemoteAddr()}
	var hello [len(tcpHello) + tcpNonce]byte
	if _, err := io.ReadFull(nc, hello[:]); err != nil {
		return err
	}
	if [len(tcpHello)]byte(hello[:]) != tcpHello {
		return fmt.Errorf("%w: no directory of this version answers", ErrUntrusted)
	}
	copy(h.server[:], hello[len(tcpHello):])
	_, _ = rand.Read(h.client[:])
	ours := h.proof("client")
	if _, err := nc.Write(append(h.client[:tcpNonce:tcpNonce], ours[:]...)); err != nil {
		return err
	}
	var theirs [tcpProof]byte
	if _, err := io.ReadFull(nc, theirs[:]); err != nil {
		return err
	}
	if want := h.proof("server"); !hmac.Equal(want[:], theirs[:]) {
		return fmt.Errorf("%w: %w", ErrUntrusted, errProof)
	}
	return nil
}

// dialTCP connects to tcp://HOST:PORT?node=FILE, where FILE is the node's identity, PATH.node
// beside its socket. limit is how long the server has to prove that it knows the key.
func dialTCP(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	at, file, err := parseTCP(addr)
	if err != nil {
		return nil, err
	}
	nc, err := dialKey(ctx, addr, at, file, limit)
	if err != nil {
		return nil, err // not nc: a nil *tcpConn is not a nil net.Conn
	}
	return nc, nil
}

// dialKey is dialTCP for the port at and a file; addr is for errors.
func dialKey(ctx context.Context, addr, at, file string, limit time.Duration) (*tcpConn, error) {
	id, err := readIdentity(file)
	if err != nil {
		return nil, err
	}
	if id == nil {
		if _, err := os.Lstat(file); err != nil {
			return nil, fmt.Errorf("directory: looking for the node's key: %w", err)
		}
		return nil, fmt.Errorf("directory: %s is not the identity of a node of this machine since it was started", file)
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, dialError(addr, err)
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	_ = nc.SetDeadline(time.Now().Add(limit))
	if err = clientHandshake(nc, id); err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("directory: connecting to %s: %w", addr, err)
	}
	return &tcpConn{nc.(*net.TCPConn), file}, nil
}

// tcpConn is a connection to a server at a TCP port.
type tcpConn struct {
	*net.TCPConn
	nodeFile string // the server's PATH.node
}
