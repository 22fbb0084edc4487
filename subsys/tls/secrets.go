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

// LeastSecret is the least number of bytes of a secret. Whoever saw the
// handshake of a peer can try guesses at leisure, so they must be random.
const LeastSecret = 16

// What is made from secrets is valid from the beginning of time to its end, as
// RFC 5280 writes it (section 4.1.2.5): the key of a certificate never leaves
// the memory of the process that made it, trust ends when the secret is
// replaced, and a clock that jumps, or has not been set yet, cuts nobody off.
var (
	always = time.Unix(0, 0).UTC()
	never  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// Secrets are credentials made from what all contexts of a cluster share.
type Secrets struct {
	cluster string
	now     atomic.Pointer[identity]
}

// FromSecrets makes credentials for the cluster of the given name. The first
// secret is the one in use, peers that use one of the others are accepted as
// well. 32 random bytes make a good secret. They are not kept.
func FromSecrets(cluster string, secrets ...[]byte) (*Secrets, error) {
	s := &Secrets{cluster: cluster}
	if err := s.Set(secrets...); err != nil {
		return nil, err
	}
	return s, nil
}

// Set replaces the secrets. Conns that live stay, the next handshakes are made
// with the new ones. A secret is replaced without refusing anybody in three
// rounds through all contexts: accept the new one, (old, new); use it, (new,
// old); forget the old one, (new).
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
	// With all the names, so that a peer may call us by the one of its secret.
	cert, err := first.mint(names)
	if err != nil {
		return fmt.Errorf("%w: minting a certificate: %w", ErrCredentials, err)
	}
	s.now.Store(newIdentity(cert, roots, names))
	return nil
}

func (s *Secrets) identity(*slog.Logger) (*identity, error) { return s.now.Load(), nil }

// An authority is the same for all who know the secret and the cluster's name.
type authority struct {
	name string // says nothing of the cluster's or the secret
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

// mint makes a certificate with a key of its own.
func (a *authority) mint(names []string) (stdtls.Certificate, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return stdtls.Certificate{}, err
	}
	t := &x509.Certificate{ // its serial number is drawn
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
