// SPDX-License-Identifier: Apache-2.0

package tls

import (
	stdtls "crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// fileMost bounds what is read of a file: a bundle of authorities has a few
// hundred KiB.
const fileMost = 4 << 20

// Files are credentials that an operator keeps in files.
type Files struct {
	paths [3]string // certificate, key, authorities

	mu   sync.Mutex
	seen [3]os.FileInfo // what they were when they were read
	id   *identity
	leaf *x509.Certificate
}

// same tells a file from what was there before.
func same(a, b os.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// FromFiles makes credentials from PEM files: a certificate, with those between
// it and its authority behind it, its key, and the authorities whose
// certificates are accepted. Ours must chain to one of them and be good for
// clients and for servers.
//
// The files are read again at the first handshake after they have changed. What
// cannot be used then is logged, and the former stays in use.
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
	if err != nil { // perhaps one of the files is being written: the next handshake looks again
		log.Warn("tls: reading the certificates again", "err", err)
	}
	return f.current()
}

// current refuses to use what every peer would refuse.
func (f *Files) current() (*identity, error) {
	if t := time.Now(); t.After(f.leaf.NotAfter) || t.Before(f.leaf.NotBefore) {
		return nil, fmt.Errorf("%w: our own certificate in %s is valid from %v to %v", ErrCredentials, f.paths[0], f.leaf.NotBefore, f.leaf.NotAfter)
	}
	return f.id, nil
}

func (f *Files) look() (s [3]os.FileInfo, err error) {
	for i, path := range f.paths {
		if s[i], err = os.Stat(path); err != nil {
			return s, err
		}
		if !s[i].Mode().IsRegular() { // a pipe would let us wait, and can be read once
			return s, fmt.Errorf("%s is not a regular file (%v)", path, s[i].Mode())
		}
	}
	return s, nil
}

// load reads the files, which looked like that before.
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
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMost+1))
	if err == nil && len(b) > fileMost {
		err = fmt.Errorf("%s is longer than %d bytes", path, fileMost)
	}
	return b, err
}
