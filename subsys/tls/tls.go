// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"context"
	stdtls "crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const (
	shakeTimeout = 2 * time.Second // from the first byte to the last of a handshake
	maxPending   = 256             // handshakes in progress of accepted connections
)

var errCrowded = fmt.Errorf("%w: too many handshakes are in progress", ErrUntrusted)

// New returns the TLS transport. Its addresses are tls://host:port. By default it listens on a free
// port of 127.0.0.1, or else of ::1.
func New(cred Credentials) subsys.Transport {
	return transport{cred: cred, recordsPerKey: recordsPerKey}
}

type transport struct {
	cred          Credentials
	recordsPerKey uint64
}

func (transport) Name() string { return "tls" }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if t.cred == nil {
		return nil, fmt.Errorf("%w: none are given", ErrCredentials)
	}
	h := &handshakes{transport: t, logger: cfg.Logger, refusals: ratelog.New(cfg.Logger), pending: subsys.NewHandshakes(maxPending)}
	return stream.Listen(addr, cfg, stream.Protocol{
		Scheme:   "tls",
		Rounds:   4,
		Dialled:  func(ctx context.Context, nc *net.TCPConn) (stream.Writer, error) { return h.shake(ctx, nc, true) },
		Accepted: h.accepted,
		Closing:  h.pending.CloseAll,
	})
}

// handshakes makes the handshakes of a port. pending has the accepted connections that have not
// completed theirs.
type handshakes struct {
	transport
	logger   *slog.Logger
	refusals *ratelog.Logger
	pending  *subsys.Handshakes
}

// accepted adds an accepted connection to pending, which may cut an older one. A genuine peer
// completes its handshake within milliseconds.
func (h *handshakes) accepted(p *stream.Port, nc *net.TCPConn) error {
	s := h.pending.Add(netsource.Of(nc.RemoteAddr()), func() { nc.Close() })
	if !p.Go(func() { h.greet(p, nc, s) }) {
		s.Done() // Closing may have run before Add
		return nc.Close()
	}
	return nil
}

// greet completes the handshake of an accepted connection and gives the connection to the port.
func (h *handshakes) greet(p *stream.Port, nc *net.TCPConn, s *subsys.Handshake) {
	remote := "tls://" + nc.RemoteAddr().String()
	w, err := h.shake(context.Background(), nc, false)
	if !s.Done() {
		err = errCrowded
		if p.IsClosed() {
			err = subsys.ErrClosed
		}
	}
	if err == nil {
		err = p.Join(nc, w)
	}
	if err == nil {
		return
	}
	nc.Close()
	if !errors.Is(err, subsys.ErrClosed) {
		// Cause: no certificate, another cluster, or another secret: see `err`. Remedy: correct the
		// peer, or stop it.
		h.refusals.Info(netsource.OfURL(remote), "tls: refused", "remote", remote, "err", err)
	}
}

// shake makes the handshake and returns the sealer of a peer that has authenticated. It does not
// close nc.
func (h *handshakes) shake(ctx context.Context, nc *net.TCPConn, isClient bool) (*sealer, error) {
	id, err := h.cred.identity(h.logger)
	if err != nil {
		return nil, err
	}
	s := &sealer{wire: &wire{Conn: nc, mute: !isClient}, recordsPerKey: h.recordsPerKey}
	if isClient {
		s.tls = stdtls.Client(s.wire, id.client)
	} else {
		s.tls = stdtls.Server(s.wire, id.server)
	}
	_ = nc.SetDeadline(time.Now().Add(shakeTimeout))
	err = s.tls.HandshakeContext(ctx)
	if isClient && errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w (it says why to its own log only: another secret or cluster, or no TLS?)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	s.wire.shaken = true
	return s, nil
}
