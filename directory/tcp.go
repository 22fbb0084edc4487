// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl/internal/loopback"
	"github.com/rocl-go/rocl/internal/netsource"
)

const tcpScheme = "tcp://"

// Over TCP, both ends first prove that they know the node's key. The server begins:
//
//	server  "RDTC", version u8, 3 zero bytes, its nonce 32
//	client  its nonce 32, its proof 32
//	server  its proof 32
//
// A proof is an HMAC under the node's key. It covers the role of the end that sends it, both
// nonces, and the server's address as that end sees it. So a proof is useless if it is sent back,
// or relayed from a server at another address.
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

// IsTCP reports whether a directory's address is that of a TCP port rather than the path of a Unix
// socket.
func IsTCP(addr string) bool { return strings.HasPrefix(addr, tcpScheme) }

// CheckListenTCP returns an error if addr is no valid address for [Server.ListenTCP].
func CheckListenTCP(addr string) error {
	at, ok := strings.CutPrefix(addr, tcpScheme)
	host, port, err := net.SplitHostPort(at)
	if _, bad := strconv.ParseUint(port, 10, 16); !ok || err != nil || bad != nil {
		return fmt.Errorf("directory: %q is not tcp://HOST:PORT", addr)
	}
	if !loopback.IsHost(host) {
		return fmt.Errorf("directory: serving at %s: only loopback addresses can be served", addr)
	}
	return nil
}

// CheckDial returns an error if addr is no valid address for [DialSocket]. It does not look for the
// socket or for a file that addr names.
func CheckDial(addr string) error {
	if !IsTCP(addr) {
		return CheckSocket(addr)
	}
	_, _, err := parseTCP(addr)
	return err
}

// parseTCP returns the parts of tcp://HOST:PORT?node=FILE.
func parseTCP(addr string) (at, file string, err error) {
	u, err := url.Parse(addr)
	if err == nil {
		_, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	if err != nil {
		return "", "", fmt.Errorf("directory: %q is not tcp://HOST:PORT?node=FILE", addr)
	}
	if file = u.Query().Get("node"); file == "" {
		return "", "", fmt.Errorf("directory: %q does not name the file with the node's key: tcp://HOST:PORT?node=FILE", addr)
	}
	return u.Host, file, nil
}

// ListenTCP makes the server serve also at tcp://HOST:PORT of the loopback interface, and returns
// the address. If the port is 0, the kernel chooses it. A TCP socket has no owner, so both ends
// must know the node's key, which is in a file that only its user can read. The connection is not
// encrypted, so other addresses than loopback are refused.
func (s *Server) ListenTCP(addr string) (string, error) {
	if err := CheckListenTCP(addr); err != nil {
		return "", err
	}
	ln, err := net.Listen("tcp", strings.TrimPrefix(addr, tcpScheme))
	if err != nil {
		return "", fmt.Errorf("directory: listening at %s: %w", addr, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		ln.Close()
		return "", ErrClosed
	}
	s.busy.Add(1)
	context.AfterFunc(s.life, func() { ln.Close() })
	go s.accept(ln, s.challenge)
	return tcpScheme + ln.Addr().String(), nil
}

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

// errProof says that a proof of the other end is wrong.
var errProof = errors.New("it does not know the node's key")

// Limits of connections that have not proved to know the key, in all and from one address.
const (
	maxStrangers = 256
	maxOfSource  = 128
)

// challenge serves a client that proves that it knows the node's key.
func (s *Server) challenge(nc net.Conn) {
	waiting := s.strangers.Add(nc)
	defer waiting.Release()
	_ = nc.SetDeadline(time.Now().Add(serverTime))
	if err := s.prove(nc); err != nil {
		s.often.Warn(netsource.Of(nc.RemoteAddr()), "directory: refused", "remote", nc.RemoteAddr(), "err", err)
		nc.Close()
		return
	}
	waiting.Release()
	_ = nc.SetDeadline(time.Time{})
	s.ServeConn(nc)
}

// prove is the server's side of the handshake.
func (s *Server) prove(nc net.Conn) error {
	h := handshake{id: s.id, at: nc.LocalAddr()}
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

// meet is the client's side of the handshake.
func meet(nc net.Conn, id *Identity) error {
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
// beside its socket.
func dialTCP(addr string) Dialer { return dialTCPWithin(addr, clientTime) }

// dialTCPWithin is dialTCP with a limit for the server's proof.
func dialTCPWithin(addr string, limit time.Duration) Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		at, file, err := parseTCP(addr)
		if err != nil {
			return nil, err
		}
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
			return nil, unreached(addr, err)
		}
		stop := context.AfterFunc(ctx, func() { nc.Close() })
		defer stop()
		_ = nc.SetDeadline(time.Now().Add(limit))
		if err = meet(nc, id); err == nil {
			err = nc.SetDeadline(time.Time{})
		}
		if err != nil {
			nc.Close()
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, fmt.Errorf("directory: connecting to %s: %w", addr, err)
		}
		return nc, nil
	}
}
