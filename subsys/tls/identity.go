// SPDX-License-Identifier: Apache-2.0

package tls

import (
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

var (
	// ErrCredentials says that our own credentials cannot be used.
	ErrCredentials = errors.New("tls: credentials")
	// ErrStranger says that a peer may not connect here, or that what answers
	// is none of ours.
	ErrStranger = errors.New("tls: stranger")
)

// proto is what both ends must name in the handshake (ALPN): a certificate
// that is good for another service's TLS cannot be led here, nor ours there.
// Streams of others than contexts have names of their own: see Client.
const proto = "rocl/1"

// Credentials are who a context is and whom it trusts: [Secrets] or [Files].
// One value may serve many contexts.
type Credentials interface {
	// identity is what the next handshake is made with.
	identity(log *slog.Logger) (*identity, error)
}

// An identity is credentials as they are at one moment.
type identity struct {
	cert  stdtls.Certificate
	roots *x509.CertPool
	names []string // the cluster's, of which a peer must know one; nil: it has none
	// For the two ends of a handshake of contexts.
	client, server *stdtls.Config
}

func newIdentity(cert stdtls.Certificate, roots *x509.CertPool, names []string) *identity {
	id := &identity{cert: cert, roots: roots, names: names}
	id.client, id.server = id.configs(proto)
	return id
}

// configs are for the two ends of a handshake of the protocol.
func (id *identity) configs(proto string) (client, server *stdtls.Config) {
	client = &stdtls.Config{
		MinVersion:                  stdtls.VersionTLS13,
		NextProtos:                  []string{proto},
		SessionTicketsDisabled:      true, // every conn is judged by what is trusted now
		DynamicRecordSizingDisabled: true,
		// Both ends are verified by the same rule, which is ours: verify. What is
		// skipped is the check that the certificate names the host dialled.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs stdtls.ConnectionState) error { return id.verify(proto, cs) },
		// Ours in any case: a server names no authorities.
		GetClientCertificate: func(*stdtls.CertificateRequestInfo) (*stdtls.Certificate, error) { return &id.cert, nil },
	}
	server = client.Clone()
	server.GetClientCertificate = nil
	server.Certificates = []stdtls.Certificate{id.cert}
	server.ClientAuth = stdtls.RequireAnyClientCert // and verify judges it
	server.GetConfigForClient = func(hello *stdtls.ClientHelloInfo) (*stdtls.Config, error) { return id.screen(proto, hello) }
	if len(id.names) > 0 {
		client.ServerName = id.names[0]
	}
	return client, server
}

// screen judges a client's first message, before anything is shown to it.
func (id *identity) screen(proto string, hello *stdtls.ClientHelloInfo) (*stdtls.Config, error) {
	if !slices.Contains(hello.SupportedProtos, proto) {
		return nil, fmt.Errorf("%w: does not speak %s", ErrStranger, proto)
	}
	if len(id.names) > 0 && !slices.Contains(id.names, hello.ServerName) {
		return nil, fmt.Errorf("%w: of another cluster, or with another secret", ErrStranger)
	}
	return nil, nil
}

// verify judges the peer, at both ends alike. That it has the key of its
// certificate crypto/tls has seen.
func (id *identity) verify(proto string, cs stdtls.ConnectionState) error {
	if cs.NegotiatedProtocol != proto {
		return fmt.Errorf("%w: does not speak %s", ErrStranger, proto)
	}
	if len(cs.PeerCertificates) == 0 {
		return fmt.Errorf("%w: without a certificate", ErrStranger)
	}
	leaf := cs.PeerCertificates[0]
	if err := id.chains(leaf, cs.PeerCertificates[1:]); err != nil {
		return fmt.Errorf("%w: %w", ErrStranger, err)
	}
	if len(id.names) > 0 && !slices.ContainsFunc(id.names, func(n string) bool { return leaf.VerifyHostname(n) == nil }) {
		return fmt.Errorf("%w: its certificate is of another cluster", ErrStranger)
	}
	return nil
}

// chains says whether leaf is of an accepted authority, now, and good for both
// ends of a conn: a web server's certificate from the same authority is not.
func (id *identity) chains(leaf *x509.Certificate, others []*x509.Certificate) error {
	opts := x509.VerifyOptions{Roots: id.roots, Intermediates: x509.NewCertPool()}
	for _, c := range others {
		opts.Intermediates.AddCert(c)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		opts.KeyUsages = []x509.ExtKeyUsage{use}
		if _, err := leaf.Verify(opts); err != nil {
			return err
		}
	}
	return nil
}
