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
	// ErrCredentials is returned when this context's own credentials cannot be used.
	ErrCredentials = errors.New("tls: credentials cannot be used")
	// ErrUntrusted is returned for a peer that may not connect here, or that is not of this
	// cluster.
	ErrUntrusted = errors.New("tls: peer is not trusted")
)

// proto is the protocol that both ends must name in the handshake (ALPN). So a certificate that is
// valid for another service's TLS cannot be used here, nor a context's certificate there. Streams
// that are not between contexts have protocol names of their own: see Client.
const proto = "rocl/1"

// Credentials identify a context and say which peers it trusts: [Secrets] or [Files]. One value may
// serve many contexts.
type Credentials interface {
	// identity returns the identity for the next handshake.
	identity(log *slog.Logger) (*identity, error)
}

// An identity is the state of credentials at one moment.
type identity struct {
	cert  stdtls.Certificate
	roots *x509.CertPool
	names []string // names of the cluster, of which a peer must know one; nil: any peer may connect
	// Configurations for the two ends of a handshake between contexts.
	client, server *stdtls.Config
}

func newIdentity(cert stdtls.Certificate, roots *x509.CertPool, names []string) *identity {
	id := &identity{cert: cert, roots: roots, names: names}
	id.client, id.server = id.configs(proto)
	return id
}

// configs returns the configurations for the two ends of a handshake of the protocol.
func (id *identity) configs(proto string) (client, server *stdtls.Config) {
	client = &stdtls.Config{
		MinVersion:                  stdtls.VersionTLS13,
		NextProtos:                  []string{proto},
		SessionTicketsDisabled:      true, // every connection is verified by the current trust
		DynamicRecordSizingDisabled: true,
		// verify checks both ends by the same rule. This option skips only the check that the
		// certificate names the dialled host.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs stdtls.ConnectionState) error { return id.verify(proto, cs) },
		// This certificate in any case: a server names no authorities.
		GetClientCertificate: func(*stdtls.CertificateRequestInfo) (*stdtls.Certificate, error) { return &id.cert, nil },
	}
	server = client.Clone()
	server.GetClientCertificate = nil
	server.Certificates = []stdtls.Certificate{id.cert}
	server.ClientAuth = stdtls.RequireAnyClientCert // verify checks the certificate
	server.GetConfigForClient = func(hello *stdtls.ClientHelloInfo) (*stdtls.Config, error) { return id.screen(proto, hello) }
	if len(id.names) > 0 {
		client.ServerName = id.names[0]
	}
	return client, server
}

// screen checks a client's first message before the server reveals anything.
func (id *identity) screen(proto string, hello *stdtls.ClientHelloInfo) (*stdtls.Config, error) {
	if !slices.Contains(hello.SupportedProtos, proto) {
		return nil, fmt.Errorf("%w: it does not speak %s", ErrUntrusted, proto)
	}
	if len(id.names) > 0 && !slices.Contains(id.names, hello.ServerName) {
		return nil, fmt.Errorf("%w: it is of another cluster, or has another secret", ErrUntrusted)
	}
	return nil, nil
}

// verify checks the peer, in the same way at both ends. crypto/tls has checked that the peer has
// the key of its certificate.
func (id *identity) verify(proto string, cs stdtls.ConnectionState) error {
	if cs.NegotiatedProtocol != proto {
		return fmt.Errorf("%w: it does not speak %s", ErrUntrusted, proto)
	}
	if len(cs.PeerCertificates) == 0 {
		return fmt.Errorf("%w: it has no certificate", ErrUntrusted)
	}
	leaf := cs.PeerCertificates[0]
	if err := id.chains(leaf, cs.PeerCertificates[1:]); err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	if len(id.names) > 0 && !slices.ContainsFunc(id.names, func(n string) bool { return leaf.VerifyHostname(n) == nil }) {
		return fmt.Errorf("%w: its certificate is of another cluster", ErrUntrusted)
	}
	return nil
}

// chains returns an error unless leaf chains to an accepted authority now, and is valid for both
// ends of a connection. The certificate of a web server from the same authority is not.
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
