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

// Client seals a stream that is none of contexts: it shakes hands as the one who
// dialled. Both ends name the protocol of the stream, and are held to the rules
// that contexts are. The credentials are used as they are now. nc is the
// caller's if that fails; log, which may be nil, is told of certificates that
// cannot be read again.
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

// Server is Client for the end that was dialled. Who does not name cluster and
// protocol is not answered a byte.
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

// muted says nothing in the clear but a ServerHello: no alerts to strangers.
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
