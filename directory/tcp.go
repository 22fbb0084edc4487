package directory

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"
)

const tcpScheme = "tcp://"

// IsTCP says whether a directory's address is that of a TCP port rather than
// the path of a Unix socket.
func IsTCP(addr string) bool { return strings.HasPrefix(addr, tcpScheme) }

// ListenTCP lets the server serve at tcp://HOST:PORT of the loopback interface
// as well, and returns the address, with the port chosen if it was 0. A socket
// has no owner there: who connects must know the node's key, which is in a file
// that only its user can read. What is said is not sealed, so addresses that
// others could listen to are refused.
func (s *Server) ListenTCP(addr string) (string, error) {
	u, err := url.Parse(addr)
	if err != nil || !IsTCP(addr) || u.Port() == "" {
		return "", fmt.Errorf("directory: %q is not tcp://HOST:PORT", addr)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", fmt.Errorf("directory: serving at %s: only loopback addresses can be served", addr)
	}
	ln, err := net.Listen("tcp", u.Host)
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

// challenge serves who proves that it knows the node's key.
func (s *Server) challenge(nc net.Conn) {
	var nonce [16]byte
	var answer [32]byte
	_, _ = rand.Read(nonce[:])
	_ = nc.SetDeadline(time.Now().Add(2 * time.Second))
	_, err := nc.Write(nonce[:])
	if err == nil {
		_, err = io.ReadFull(nc, answer[:])
	}
	if want := s.id.derive("tcp", nonce[:]); err != nil || !hmac.Equal(want[:], answer[:]) {
		s.log.Warn("directory: refused", "remote", nc.RemoteAddr(), "err", err)
		nc.Close()
		return
	}
	_ = nc.SetDeadline(time.Time{})
	s.ServeConn(nc)
}

// dialTCP connects to tcp://HOST:PORT?node=FILE, where FILE is the node's
// identity, PATH.node beside its socket.
func dialTCP(addr string) Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		u, err := url.Parse(addr)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("directory: %q is not tcp://HOST:PORT?node=FILE", addr)
		}
		file := u.Query().Get("node")
		if file == "" {
			return nil, fmt.Errorf("directory: %q does not name the file with the node's key: tcp://HOST:PORT?node=FILE", addr)
		}
		id, err := readIdentity(file)
		if err != nil {
			return nil, err
		}
		if id == nil {
			return nil, fmt.Errorf("directory: %s is not the identity of a node of this machine", file)
		}
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", u.Host)
		if err != nil {
			return nil, unreached(addr, err)
		}
		stop := context.AfterFunc(ctx, func() { nc.Close() })
		defer stop()
		var nonce [16]byte
		if _, err = io.ReadFull(nc, nonce[:]); err == nil {
			answer := id.derive("tcp", nonce[:])
			_, err = nc.Write(answer[:])
		}
		if err != nil {
			nc.Close()
			return nil, fmt.Errorf("directory: connecting to %s: %w", addr, err)
		}
		return nc, nil
	}
}
