// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/relay"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// leaf returns a certificate as an authority would make it, changed by f.
func leaf(t testing.TB, ca *x509.Certificate, key ed25519.PrivateKey, f func(*x509.Certificate)) stdtls.Certificate {
	t.Helper()
	pub, mine, err := ed25519.GenerateKey(rand.Reader)
	try.OK(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if f != nil {
		f(c)
	}
	if ca == nil { // self-signed
		ca, key = c, mine
	}
	der := try.Get(x509.CreateCertificate(rand.Reader, c, ca, pub, key))(t)
	parsed := try.Get(x509.ParseCertificate(der))(t)
	return stdtls.Certificate{Certificate: [][]byte{der}, PrivateKey: mine, Leaf: parsed}
}

// Peers without access are refused, and the reason is logged here. A peer that does not know the
// cluster's name, which takes the secret, gets no byte as an answer.
//
// Promise (TLS): Over TLS no peer links without the cluster's secret or a certificate of the
// operator. The refusal is logged. See also TestPlainGarbage.
func TestUntrustedPeers(t *testing.T) {
	cred := secrets(t, "test", key(1))
	p := listen(t, New(cred))
	ours := try.Get(newAuthority("test", key(1)))(t)
	good := cred.now.Load().client
	other := func(cluster string, b byte) *stdtls.Config {
		return secrets(t, cluster, key(b)).now.Load().client.Clone()
	}
	with := func(cert stdtls.Certificate) *stdtls.Config {
		c := good.Clone()
		c.GetClientCertificate = func(*stdtls.CertificateRequestInfo) (*stdtls.Certificate, error) { return &cert, nil }
		return c
	}
	named := func(c *x509.Certificate) { c.DNSNames = []string{ours.name} }
	name := func(c *stdtls.Config) *stdtls.Config {
		c.ServerName, c.VerifyConnection = ours.name, nil
		return c
	}
	change := func(f func(*stdtls.Config)) *stdtls.Config {
		c := good.Clone()
		f(c)
		return c
	}
	type row struct {
		what  string
		cfg   *stdtls.Config
		why   string
		quiet bool // the server sends no byte
	}
	table := []row{
		{"no certificate", with(stdtls.Certificate{}), "didn't provide a certificate", false},
		{"another secret", other("test", 2), "another secret", true},
		{"another secret, having seen the name", name(other("test", 2)), "unknown authority", false},
		{"another cluster", other("tost", 1), "another cluster", true},
		{"another cluster, having seen the name", name(other("tost", 1)), "unknown authority", false},
		{"no name", change(func(c *stdtls.Config) { c.ServerName = "" }), "another cluster", true},
		{"another service's TLS", change(func(c *stdtls.Config) { c.NextProtos = []string{"h2"} }), "does not speak", true},
		{"no protocol named", change(func(c *stdtls.Config) { c.NextProtos = nil }), "does not speak", true},
		{"TLS 1.2", change(func(c *stdtls.Config) { c.MinVersion, c.MaxVersion = stdtls.VersionTLS10, stdtls.VersionTLS12 }), "versions", true},
		{"expired", with(leaf(t, ours.cert, ours.key, func(c *x509.Certificate) { named(c); c.NotAfter = time.Now().Add(-time.Minute) })), "expired", false},
		{"not yet valid", with(leaf(t, ours.cert, ours.key, func(c *x509.Certificate) { named(c); c.NotBefore = time.Now().Add(time.Minute) })), "not yet valid", false},
		{"a server's certificate", with(leaf(t, ours.cert, ours.key, func(c *x509.Certificate) { named(c); c.ExtKeyUsage = c.ExtKeyUsage[:1] })), "incompatible key usage", false},
		{"a certificate without the name", with(leaf(t, ours.cert, ours.key, nil)), "of another cluster", false},
		{"signed by itself", with(leaf(t, nil, nil, named)), "unknown authority", false},
		{"signed by itself, as the authority", with(leaf(t, nil, nil, func(c *x509.Certificate) { named(c); c.Subject = pkix.Name{CommonName: ours.name} })), "unknown authority", false},
	}
	member := leaf(t, ours.cert, ours.key, named)
	minted := leaf(t, member.Leaf, member.PrivateKey.(ed25519.PrivateKey), named)
	minted.Certificate = append(minted.Certificate, member.Certificate...)
	table = append(table, row{"minted by a member", with(minted), "parent certificate cannot sign", false})
	stolen := with(stdtls.Certificate{Certificate: member.Certificate, PrivateKey: minted.PrivateKey})
	table = append(table, row{"a certificate without its key", stolen, "invalid signature", false})

	for _, s := range table {
		t.Run(s.what, func(t *testing.T) {
			nc := try.Get(net.Dial("tcp", host(p.Addr())))(t)
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(testTimeout))
			ear := &counting{Conn: nc}
			c := stdtls.Client(ear, s.cfg)
			err := c.Handshake()
			if err == nil { // the client's handshake ends before the server has verified the client
				_, err = c.Read(make([]byte, 1))
			}
			if err == nil {
				t.Error("let in")
			}
			if got := ear.n.Load(); s.quiet && got > 0 {
				t.Errorf("was answered %d bytes", got)
			}
			if why := p.wantRefused(t, 1); !strings.Contains(why, s.why) {
				t.Errorf("refused because of %q, want %q", why, s.why)
			}
			p.wantNone(t)
			if _, _, err := listen(t, New(cred)).dial(p); err != nil {
				t.Errorf("and one of us afterwards: %v", err)
			}
		})
	}
}

// counting counts the bytes read.
type counting struct {
	net.Conn
	n atomic.Int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// serve listens and calls f for each accepted connection.
func serve(t testing.TB, f func(net.Conn)) (addr string) {
	t.Helper()
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			wg.Go(func() { defer c.Close(); f(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return "tls://" + ln.Addr().String()
}

// A dialling end refuses servers without access as well.
func TestFalseServers(t *testing.T) {
	cred := secrets(t, "test", key(1))
	ours := try.Get(newAuthority("test", key(1)))(t)
	named := func(c *x509.Certificate) { c.DNSNames = []string{ours.name} }
	as := func(cert stdtls.Certificate, f func(*stdtls.Config)) func(net.Conn) {
		cfg := &stdtls.Config{Certificates: []stdtls.Certificate{cert}, NextProtos: []string{proto}, ClientAuth: stdtls.RequestClientCert}
		if f != nil {
			f(cfg)
		}
		return func(c net.Conn) {
			s := stdtls.Server(c, cfg)
			_ = s.Handshake()
			_, _ = io.Copy(io.Discard, s)
		}
	}
	member := leaf(t, ours.cert, ours.key, named)
	for _, s := range []struct {
		what string
		f    func(net.Conn)
		why  string
	}{
		{"plain", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, "does not look like a TLS handshake"},
		{"silent", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "deadline"},
		{"hangs up", func(c net.Conn) {}, ""},
		{"TLS 1.2", as(member, func(c *stdtls.Config) { c.MaxVersion = stdtls.VersionTLS12 }), "version"},
		{"another protocol", as(member, func(c *stdtls.Config) { c.NextProtos = nil }), "does not speak"},
		{"signed by itself", as(leaf(t, nil, nil, named), nil), "unknown authority"},
		{"another cluster's name", as(leaf(t, ours.cert, ours.key, nil), nil), "another cluster"},
		{"expired", as(leaf(t, ours.cert, ours.key, func(c *x509.Certificate) { named(c); c.NotAfter = time.Now().Add(-time.Minute) }), nil), "expired"},
		{"a client's certificate", as(leaf(t, ours.cert, ours.key, func(c *x509.Certificate) { named(c); c.ExtKeyUsage = c.ExtKeyUsage[1:] }), nil), "incompatible key usage"},
	} {
		t.Run(s.what, func(t *testing.T) {
			addr := serve(t, s.f)
			p := listen(t, New(cred))
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			c, err := p.Dial(ctx, addr, newTestSink())
			if err == nil {
				c.Close()
				t.Fatal("taken for one of ours")
			}
			if s.why == "deadline" {
				if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
					t.Errorf("%v", err)
				}
			} else if !strings.Contains(err.Error(), s.why) {
				t.Errorf("refused because of %q, want %q", err, s.why)
			}
		})
	}
}

// altering returns tr with a relay that lets change see and alter what goes to a port: chunk i of a
// connection.
func altering(tr subsys.Transport, change func(i int, b []byte) []byte) subsys.Transport {
	return relay.New(tr, func(accepted net.Conn) func(to, from net.Conn) {
		return func(to, from net.Conn) {
			if from != accepted {
				_, _ = io.Copy(to, from)
				return
			}
			buf := make([]byte, 64<<10)
			for i := 0; ; i++ {
				n, err := from.Read(buf)
				if err != nil {
					return
				}
				if _, err := to.Write(change(i, buf[:n])); err != nil {
					return
				}
			}
		}
	})
}

// An attacker between the ends cannot downgrade a connection to an older version or to clear text,
// nor change anything later.
//
// Promise (TLS): No older TLS version, plain text or other service's certificate is accepted. An
// attacker in between can only cut the connection. See also TestFalseServers.
func TestDowngrade(t *testing.T) {
	cred := secrets(t, "test", key(1))
	from := listen(t, New(cred))
	for what, change := range map[string]func(i int, b []byte) []byte{
		// The extension supported_versions (43) of a ClientHello.
		"the version": func(_ int, b []byte) []byte {
			return bytes.ReplaceAll(b, []byte{0, 43, 0, 3, 2, 3, 4}, []byte{0, 43, 0, 3, 2, 3, 3})
		},
		"the extension": func(_ int, b []byte) []byte {
			return bytes.ReplaceAll(b, []byte{0, 43, 0, 3, 2, 3, 4}, []byte{99, 43, 0, 3, 2, 3, 4})
		},
		"the first bytes":  func(i int, b []byte) []byte { return b[min(len(b), 5*(1-min(i, 1))):] },
		"the certificate":  func(i int, b []byte) []byte { b[len(b)/2] ^= byte(min(i, 1)); return b },
		"into plain bytes": func(i int, b []byte) []byte { return []byte("GET / HTTP/1.1\r\n\r\n") },
	} {
		t.Run(what, func(t *testing.T) {
			p := listen(t, altering(New(cred), change))
			try.Rejects(from.dial(p))(t, "a conn was made")
			p.wantRefused(t, 1)
			p.wantNone(t)
		})
	}
	t.Run("a later byte", func(t *testing.T) {
		var spoil atomic.Bool
		p := listen(t, altering(New(cred), func(_ int, b []byte) []byte {
			if spoil.Load() {
				b[len(b)-1] ^= 1
			}
			return b
		}))
		near, far, err := from.dial(p)
		try.OK(t, err)
		spoil.Store(true)
		try.OK(t, near.send())
		if err := eventually.Value(t, "the connection goes down", far.down); !strings.Contains(err.Error(), "bad record MAC") {
			t.Errorf("the reason of the end is %v", err)
		}
		if len(far.got) > 0 {
			t.Error("a frame that was changed was delivered")
		}
	})
}

// Many clients that prolong their handshakes, a byte at a time, do not keep a genuine client out,
// and are cut.
func TestSlowDrip(t *testing.T) {
	for try := 1; !slowDrip(t); try++ {
		if try == 10 {
			t.Fatal("no attempt was over before the first handshakes ended")
		}
	}
}

// slowDrip is one attempt of TestSlowDrip. It reports false if it took so long that handshakes may
// have ended by their timeout, and so without making room for newer ones.
func slowDrip(t *testing.T) (inTime bool) {
	cred := secrets(t, "test", key(1))
	p, good := listen(t, New(cred)), listen(t, New(cred))
	const n = 300
	begun := time.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range n {
		c := try.Get(net.Dial("tcp", host(p.Addr())))(t)
		wg.Go(func() {
			defer c.Close()
			b := []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3} // a ClientHello of 512 bytes
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				if _, err := c.Write(b[min(i, len(b)-1):][:1]); err != nil {
					return
				}
			}
		})
	}
	try.Works(good.dial(p))(t, "a genuine client is kept out")
	inTime = time.Since(begun) < shakeTimeout
	crowded := 0
	for range n {
		if strings.Contains(p.wantRefused(t, 1), "too many") {
			crowded++
		}
	}
	if inTime && (crowded < n-maxPending || crowded > n-maxPending+1) {
		t.Errorf("%d were cut for newer ones, of %d with %d places", crowded, n, maxPending)
	}
	close(stop)
	wg.Wait()
	return inTime
}

// A port that closes does not wait for handshakes in progress.
func TestCloseWhileShaking(t *testing.T) {
	p := listen(t, New(secrets(t, "test", key(1))))
	for range 10 {
		c := try.Get(net.Dial("tcp", host(p.Addr())))(t)
		defer c.Close()
	}
	try.Check(t, p.Close())
}
