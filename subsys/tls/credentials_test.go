// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"bytes"
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// While the secret is replaced in three rounds, in any order of the contexts, no dial fails and
// existing connections stay. Afterwards the old secret gives no access.
//
// Promise (TLS): A secret or certificate is replaced while everything runs. No dial fails, and the
// old secret opens nothing afterwards. See also TestRotationUnderLoad.
func TestRotation(t *testing.T) {
	old, anew := key(1), key(2)
	creds := []*Secrets{secrets(t, "test", old), secrets(t, "test", old), secrets(t, "test", old)}
	var ports []*testPort
	for _, c := range creds {
		ports = append(ports, listen(t, New(c)))
	}
	near, far, err := ports[0].dial(ports[1])
	try.OK(t, err)
	all := func(when string) {
		t.Helper()
		for i, a := range ports {
			for j, b := range ports {
				if i == j {
					continue
				}
				try.Works(a.dial(b))(t, "%s: %d dialling %d", when, i, j)
			}
		}
	}
	all("at first")
	for round, s := range [][][]byte{{old, anew}, {anew, old}, {anew}} {
		for i := range creds {
			try.OK(t, creds[i].Set(s...))
			all(string(rune('1'+round)) + " round")
		}
	}
	try.Check(t, near.send(), "a conn from before")
	eventually.Value(t, "a frame over a connection from before", far.got)
	late := listen(t, New(secrets(t, "test", old)))
	try.Rejects(late.dial(ports[0]))(t, "the old secret is accepted")
	ports[0].wantRefused(t, 1)
	try.Rejects(ports[0].dial(late))(t, "a peer with the old secret is admitted")
}

// Secrets may be replaced during handshakes.
func TestRotationUnderLoad(t *testing.T) {
	cred := secrets(t, "test", key(1), key(2))
	a, b := listen(t, New(cred)), listen(t, New(cred))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := byte(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			try.Check(t, cred.Set(key(1+i%2), key(2-i%2)))
		}
	})
	for range 50 {
		if _, _, err := a.dial(b); err != nil {
			t.Errorf("%v, because of %s", err, b.wantRefused(t, 1))
		}
	}
	close(stop)
	wg.Wait()
}

func TestSecrets(t *testing.T) {
	for what, s := range map[string][][]byte{"none": nil, "an empty one": {{}}, "a short one": {make([]byte, LeastSecret-1)}, "a short second": {key(1), {1}}} {
		try.Fails(FromSecrets("x", s...))(t, ErrCredentials, "%s", what)
	}
	c := secrets(t, "x", key(1))
	before := c.now.Load()
	if err := c.Set(); !errors.Is(err, ErrCredentials) || c.now.Load() != before {
		t.Errorf("secrets that cannot be used replace those that can: %v", err)
	}
	try.Fails(New(nil).Listen("", subsys.Config{}))(t, ErrCredentials, "without credentials")

	// The derived values are the same at every member and differ in every part if any input
	// differs. A certificate shows neither the cluster's name nor the secret.
	one, same := derive(t, "cluster-name", key(1)), derive(t, "cluster-name", key(1))
	if one.name != same.name || !bytes.Equal(one.cert.Raw, same.cert.Raw) || !one.key.Equal(same.key) {
		t.Error("two of one secret differ")
	}
	for _, other := range []*authority{derive(t, "cluster-nam", key(1)), derive(t, "", key(1)), derive(t, "cluster-name", key(2)), derive(t, "cluster-name", key(1)[:31])} {
		if other.name == one.name || other.key.Equal(one.key) {
			t.Error("two of different secrets are alike")
		}
	}
	cert := try.Get(one.mint([]string{one.name}))(t)
	for _, der := range [][]byte{cert.Certificate[0], one.cert.Raw} {
		if bytes.Contains(der, []byte("cluster-name")) || bytes.Contains(der, key(1)[:8]) {
			t.Error("a certificate tells what it should not")
		}
	}
	// The certificate is valid at any time of the clock.
	for _, now := range []time.Time{time.Unix(1, 0), time.Now().AddDate(1000, 0, 0)} {
		roots := x509.NewCertPool()
		roots.AddCert(one.cert)
		try.Works(cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: one.name}))(t, "at %v", now)
	}
}

func derive(t *testing.T, cluster string, s []byte) *authority {
	t.Helper()
	return try.Get(newAuthority(cluster, s))(t)
}

// An operator has an authority and a directory of credential files.
type operator struct {
	t   *testing.T
	ca  *authority
	dir string
}

func newOperator(t *testing.T, ca byte) *operator {
	o := &operator{t: t, ca: derive(t, "operator", key(ca)), dir: t.TempDir()}
	o.trust(o.ca)
	o.issue(nil)
	return o
}

func (o *operator) path(name string) string { return filepath.Join(o.dir, name) }

func (o *operator) write(name string, blocks ...*pem.Block) {
	o.t.Helper()
	var b []byte
	for _, p := range blocks {
		b = append(b, pem.EncodeToMemory(p)...)
	}
	// Files are replaced by renaming, as a careful operator does, not in place.
	try.OK(o.t, os.WriteFile(o.path("new"), b, 0o600))
	try.OK(o.t, os.Rename(o.path("new"), o.path(name)))
}

func (o *operator) trust(cas ...*authority) {
	var blocks []*pem.Block
	for _, a := range cas {
		blocks = append(blocks, &pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	}
	o.write("ca.pem", blocks...)
}

func (o *operator) issue(f func(*x509.Certificate)) {
	c := leaf(o.t, o.ca.cert, o.ca.key, f)
	der := try.Get(x509.MarshalPKCS8PrivateKey(c.PrivateKey))(o.t)
	o.write("key.pem", &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	o.write("cert.pem", &pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

func (o *operator) open() (*Files, error) {
	return FromFiles(o.path("cert.pem"), o.path("key.pem"), o.path("ca.pem"))
}

func TestFiles(t *testing.T) {
	one, two, other := newOperator(t, 1), newOperator(t, 1), newOperator(t, 9)
	a, b, c := listen(t, New(try.Get(one.open())(t))), listen(t, New(try.Get(two.open())(t))), listen(t, New(try.Get(other.open())(t)))
	works := func(when string, from, to *testPort) {
		t.Helper()
		try.Works(from.dial(to))(t, "%s", when)
	}
	fails := func(when string, from, to *testPort) {
		t.Helper()
		try.Rejects(from.dial(to))(t, "%s: let in", when)
		to.wantRefused(t, 1)
	}
	works("one authority", a, b)
	works("the other way", b, a)
	fails("another authority", c, a)

	// A server shows no certificate to a client that does not name the protocol.
	if c, err := connect(a.Addr(), &stdtls.Config{InsecureSkipVerify: true}); err == nil {
		c.Close()
		t.Error("a browser is shown a certificate")
	}
	a.wantRefused(t, 1)

	// The authority is replaced: first both are accepted, then each end has a certificate of the
	// new one, then the old one is forgotten.
	anew := derive(t, "operator", key(2))
	for _, o := range []*operator{one, two} {
		o.trust(o.ca, anew)
		works("two authorities", a, b)
	}
	for _, o := range []*operator{one, two} {
		o.ca = anew
		o.issue(nil)
		works("certificates of either", a, b)
		works("certificates of either, back", b, a)
	}
	for _, o := range []*operator{one, two} {
		o.trust(anew)
		works("the new authority", a, b)
	}
	stale := newOperator(t, 1)
	fails("the old authority", listen(t, New(try.Get(stale.open())(t))), a)

	// Files that cannot be used do not replace those in use.
	for what, spoil := range map[string]func(){
		"no certificate":              func() { os.Remove(one.path("cert.pem")) },
		"nonsense":                    func() { one.write("cert.pem", &pem.Block{Type: "CERTIFICATE", Bytes: []byte("nonsense")}) },
		"an empty file":               func() { one.write("ca.pem") },
		"another's key":               func() { b, _ := os.ReadFile(two.path("key.pem")); _ = os.WriteFile(one.path("key.pem"), b, 0o600) },
		"expired":                     func() { one.issue(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }) },
		"for servers only":            func() { one.issue(func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }) },
		"of an unaccepted authority":  func() { one.ca = other.ca; one.issue(nil); one.ca = anew },
		"longer than any certificate": func() { _ = os.WriteFile(one.path("ca.pem"), make([]byte, fileMost+1), 0o600) },
	} {
		spoil()
		works(what, a, b)
		works(what+", back", b, a)
		try.Fails(one.open())(t, ErrCredentials, "%s", what)
		one.trust(anew)
		one.issue(nil)
		works("mended", a, b)
	}
}

// An expired certificate of this end is not even shown. The log of this end has the reason.
func TestOwnExpired(t *testing.T) {
	o := newOperator(t, 1)
	f := try.Get(o.open())(t)
	p, q := listen(t, New(f)), listen(t, New(try.Get(newOperator(t, 1).open())(t)))
	f.mu.Lock()
	f.leaf.NotAfter = time.Now().Add(-time.Second)
	f.mu.Unlock()
	if _, _, err := p.dial(q); !errors.Is(err, ErrCredentials) || !strings.Contains(err.Error(), o.path("cert.pem")) {
		t.Errorf("dialling: %v", err)
	}
	try.Rejects(q.dial(p))(t, "accepted")
	if why := p.wantRefused(t, 1); !strings.Contains(why, "our own certificate") {
		t.Errorf("refused because of %q", why)
	}
	// A new certificate ends the fault.
	o.issue(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "renewed"} })
	try.Works(p.dial(q))(t)
}

// Printed credentials show no secret, so no secret gets into logs.
func TestPrinted(t *testing.T) {
	cred := secrets(t, "test", key('S'))
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).InfoContext(context.Background(), "x", "cred", cred, "transport", New(cred))
	if strings.Contains(b.String(), "SSSS") {
		t.Error("the secret is in the log")
	}
}
