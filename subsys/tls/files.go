// SPDX-License-Identifier: Apache-2.0

package tls

import (
	stdtls "crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/os/secretfile"
)

// fileMost bounds the bytes that are read of a file. A bundle of authorities has a few hundred KiB.
const fileMost = 4 << 20

// Files are credentials in files that an operator maintains.
type Files struct {
	paths [3]string // certificate, key, authorities

	mu   sync.Mutex
	seen [3]os.FileInfo // state of the files when they were read
	id   *identity
	leaf *x509.Certificate
}

// same reports whether b is the unchanged file a. It is false if a is nil.
func same(a, b os.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// FromFiles returns credentials from PEM files: a certificate followed by those between it and its
// authority, its key, and the authorities whose certificates are accepted. The own certificate must
// chain to one of the authorities and be valid for clients and for servers. A file is a path,
// $CREDENTIALS_DIRECTORY/NAME for a credential of systemd, or fd:N for an open descriptor.
//
// The files are read again at the first handshake after they have changed. If the new files cannot
// be used, the reason is logged and the former certificates stay in use.
func FromFiles(certFile, keyFile, caFile string) (*Files, error) {
	f := &Files{paths: [3]string{certFile, keyFile, caFile}}
	now, err := f.look()
	if err == nil {
		err = f.load(now)
	}
	if err == nil {
		_, err = f.current()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	return f, nil
}

func (f *Files) identity(log *slog.Logger) (*identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.look()
	if err == nil && !(same(f.seen[0], now[0]) && same(f.seen[1], now[1]) && same(f.seen[2], now[2])) {
		err = f.load(now)
	}
	if err != nil { // a file may be half written: the next handshake reads again
		// Cause: changed files cannot be used; the former stay in use. Remedy: correct them before
		// the former expire.
		log.Warn("tls: reading the certificates again", "err", err)
	}
	return f.current()
}

// current returns the identity, or an error if every peer would refuse the certificate at this
// time.
func (f *Files) current() (*identity, error) {
	if t := time.Now(); t.After(f.leaf.NotAfter) || t.Before(f.leaf.NotBefore) {
		return nil, fmt.Errorf("%w: our own certificate in %s is valid from %v to %v", ErrCredentials, f.paths[0], f.leaf.NotBefore, f.leaf.NotAfter)
	}
	return f.id, nil
}

func (f *Files) look() (s [3]os.FileInfo, err error) {
	for i, path := range f.paths {
		if s[i], err = secretfile.Stat(path, fileMost); err != nil {
			return s, err
		}
		if !s[i].Mode().IsRegular() { // a pipe at a path would block, and can be read only once
			return s, fmt.Errorf("%s is not a regular file (%v)", path, s[i].Mode())
		}
	}
	return s, nil
}

// load reads the files. now is their state before the reading.
func (f *Files) load(now [3]os.FileInfo) error {
	var pem [3][]byte
	for i, path := range f.paths {
		var err error
		if pem[i], err = read(path); err != nil {
			return err
		}
	}
	cert, err := stdtls.X509KeyPair(pem[0], pem[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", f.paths[0], f.paths[1], err)
	}
	var chain []*x509.Certificate
	for _, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("%s: %w", f.paths[0], err)
		}
		chain = append(chain, c)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem[2]) {
		return fmt.Errorf("%s has no certificates", f.paths[2])
	}
	id := newIdentity(cert, roots, nil)
	if err := id.chains(chain[0], chain[1:]); err != nil {
		return fmt.Errorf("%s: peers with the authorities of %s would refuse it: %w", f.paths[0], f.paths[2], err)
	}
	f.id, f.leaf, f.seen = id, chain[0], now
	return nil
}

func read(path string) ([]byte, error) {
	b, err := secretfile.Read(path, fileMost, false)
	if err == nil && len(b) > fileMost {
		err = fmt.Errorf("%s is longer than %d bytes", path, fileMost)
	}
	return b, err
}
