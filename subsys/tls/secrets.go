// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/big"
	"sync/atomic"
	"time"
)

// LeastSecret is the least number of bytes of a secret. The bytes must be random, because an
// attacker that has recorded a peer's handshake can try guesses offline.
const LeastSecret = 16

// Certificates derived from secrets have no expiry, in the form of RFC 5280, section 4.1.2.5. The
// key of a certificate never leaves the memory of the process that made it, and trust ends when the
// secret is replaced. So a clock that jumps, or is not set yet, locks no process out.
var (
	always = time.Unix(0, 0).UTC()
	never  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// Protocol: TLS
//
// The same frames are the data of TLS 1.3, without resumption. ALPN is `rocl/1`; a server sends
// nothing to a client without it. Both show a certificate. These are the operator's, or derive from
// a link key of the terms, the secret, by HKDF-SHA256 without salt. In a cluster, it is
// HMAC-SHA256(the cluster's key, "rocl link " name).
//
// | what | info | bytes |
// |---|---|---|
// | seed of the authority's Ed25519 key | `rocl tls 1 authority`, 0, the cluster's name | 32 |
// | its common name, in 32 hexadecimal digits | `rocl tls 1 name`, 0, the cluster's name | 16 |
//
// The authority signs a context's certificate, for clients and servers, with the names of all
// accepted secrets as DNS names. A dialler sends the name of its secret as server name.

// Secrets are credentials derived from secrets that all contexts of a cluster share.
type Secrets struct {
	cluster string
	now     atomic.Pointer[identity]
}

// FromSecrets returns credentials for the cluster of the given name. This end uses the first
// secret. It also accepts peers that use one of the others. 32 random bytes make a good secret. The
// secrets themselves are not kept.
func FromSecrets(cluster string, secrets ...[]byte) (*Secrets, error) {
	s := &Secrets{cluster: cluster}
	if err := s.Set(secrets...); err != nil {
		return nil, err
	}
	return s, nil
}

// Set replaces the secrets. Existing connections stay; later handshakes use the new secrets. A
// secret is replaced without refusing any peer in three rounds through all contexts: (old, new)
// accepts the new one, (new, old) uses it, (new) forgets the old one.
func (s *Secrets) Set(secrets ...[]byte) error {
	if len(secrets) == 0 {
		return fmt.Errorf("%w: no secret", ErrCredentials)
	}
	roots := x509.NewCertPool()
	var names []string
	var first *authority
	for i, secret := range secrets {
		if len(secret) < LeastSecret {
			return fmt.Errorf("%w: secret %d has %d bytes, fewer than %d", ErrCredentials, i+1, len(secret), LeastSecret)
		}
		a, err := newAuthority(s.cluster, secret)
		if err != nil {
			return fmt.Errorf("%w: deriving from secret %d: %w", ErrCredentials, i+1, err)
		}
		if first == nil {
			first = a
		}
		roots.AddCert(a.cert)
		names = append(names, a.name)
	}
	// It has all names, so that a peer may use the name of its own secret.
	cert, err := first.mint(names)
	if err != nil {
		return fmt.Errorf("%w: minting a certificate: %w", ErrCredentials, err)
	}
	s.now.Store(newIdentity(cert, roots, names))
	return nil
}

func (s *Secrets) identity(*slog.Logger) (*identity, error) { return s.now.Load(), nil }

// An authority is a certificate authority derived from a secret and the cluster's name. It is the
// same in all processes that know both.
type authority struct {
	name string // reveals neither the cluster's name nor the secret
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority(cluster string, secret []byte) (*authority, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "rocl tls 1 authority\x00"+cluster, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	name, err := hkdf.Key(sha256.New, secret, nil, "rocl tls 1 name\x00"+cluster, 16)
	if err != nil {
		return nil, err
	}
	a := &authority{name: hex.EncodeToString(name), key: ed25519.NewKeyFromSeed(seed)}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: a.name},
		NotBefore: always, NotAfter: never,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// mint returns a certificate with a new key of its own.
func (a *authority) mint(names []string) (stdtls.Certificate, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return stdtls.Certificate{}, err
	}
	t := &x509.Certificate{ // CreateCertificate draws the serial number
		DNSNames: names, NotBefore: always, NotAfter: never,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, pub, a.key)
	if err != nil {
		return stdtls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return stdtls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
