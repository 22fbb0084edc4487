// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"context"
	stdtls "crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
)

// Client makes a TLS connection of nc as the dialling end, for a stream that is not between
// contexts. Both ends name the protocol of the stream, and follow the rules for contexts. The
// current credentials are used. If Client fails, the caller still owns nc. Certificates that cannot
// be read again are logged to log, which may be nil.
func Client(ctx context.Context, nc net.Conn, cred Credentials, proto string, log *slog.Logger) (net.Conn, error) {
	id, err := current(cred, log)
	if err != nil {
		return nil, err
	}
	cfg, _ := id.configs(proto)
	c := stdtls.Client(nc, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("tls: handshake: %w", err)
	}
	return c, nil
}

// Server is Client for the accepting end. A client that does not name the cluster and the protocol
// gets no byte as an answer.
func Server(ctx context.Context, nc net.Conn, cred Credentials, proto string, log *slog.Logger) (net.Conn, error) {
	id, err := current(cred, log)
	if err != nil {
		return nil, err
	}
	_, cfg := id.configs(proto)
	m := &muted{Conn: nc}
	c := stdtls.Server(m, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("tls: handshake: %w", err)
	}
	m.shaken.Store(true)
	return c, nil
}

func current(cred Credentials, log *slog.Logger) (*identity, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return cred.identity(log)
}

// muted drops alerts in clear text during the handshake, so that a client without access gets no
// answer.
type muted struct {
	net.Conn
	shaken atomic.Bool
}

func (m *muted) Write(b []byte) (int, error) {
	if !m.shaken.Load() && len(b) > 0 && b[0] == recordAlert {
		return len(b), nil
	}
	return m.Conn.Write(b)
}
