// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/subsys/tls"
)

// keyFile writes keys, one a line, so that no reader sees half of them.
func keyFile(t *testing.T, path string, keys ...string) {
	t.Helper()
	err := os.WriteFile(path+".new", []byte(strings.Join(keys, "\n")+"\n"), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	try.OK(t, err)
}

const oldKey, newKey = "the old key of the cluster", "the new key of the cluster"

// The key of a cluster is changed in three steps while programs search, send over existing links,
// and make new ones: no question fails and no message is lost. A process that has only the old key
// is no member afterwards.
func TestKeyRotation(t *testing.T) {
	if testing.Short() {
		t.Skip("files are looked at each second")
	}
	const nodes = 3
	ctx := eventually.Context(t)
	dir := t.TempDir()
	var keys, sockets, binds []string
	var daemons []*child
	daemon := func(key, sock, bind string) *child {
		args := []string{"--socket", sock, "--bind", bind, "--cluster", "test", "--key-file", key}
		for _, b := range binds {
			args = append(args, "--join", b)
		}
		return start(t, `"cluster: this node is a member"`, dirserver, args...)
	}
	for i := range nodes {
		keys, sockets, binds = append(keys, filepath.Join(dir, fmt.Sprint(i))), append(sockets, socket(t)), append(binds, freePort(t))
		keyFile(t, keys[i], oldKey)
		daemons = append(daemons, daemon(keys[i], sockets[i], binds[i]))
	}
	// All contexts here are of one process, and are to talk as if they were not.
	enter := func(node int) *lib.Context {
		return open(t, sockets[node], lib.WithTransports(tcp.New()), lib.WithPoll(lib.PollNever))
	}
	var me []*lib.Resource
	for i := range nodes {
		me = append(me, register(t, enter(i), lib.Attrs{"who": fmt.Sprint(i)}))
	}
	for i := range nodes {
		for j := range nodes {
			awaitFound(t, me[i].Context(), lib.Match{"who": fmt.Sprint(j)})
		}
	}

	var stop atomic.Bool
	var busy, ears sync.WaitGroup
	var asked, fresh atomic.Int64
	var sent, got [nodes]atomic.Int64 // to each node
	for i, r := range me {
		ears.Go(func() {
			for {
				m, err := r.Recv(ctx)
				if err != nil {
					return
				}
				if m.Tag() == 1 {
					m.Release()
					return
				}
				m.Release()
				got[i].Add(1)
			}
		})
		busy.Go(func() { // over links that stay
			for n := 0; !stop.Load(); n++ {
				to := (i + 1 + n%2) % nodes
				if err := r.SendBytes(ctx, me[to].ID(), 0, []byte("x")); err != nil {
					t.Errorf("from %d to %d: %v", i, to, err)
					return
				}
				sent[to].Add(1)
				time.Sleep(time.Millisecond) // so that the load leaves time to the daemons
			}
		})
		busy.Go(func() {
			for n := 0; !stop.Load(); n++ {
				who := fmt.Sprint((i + n) % nodes)
				if _, err := r.Context().Find(ctx, lib.Match{"who": who}); err != nil {
					t.Errorf("node %d does not find %s: %v", i, who, err)
					return
				}
				if _, err := r.Context().Find(ctx, lib.Match{"who": "nobody"}); !errors.Is(err, lib.ErrNotFound) {
					t.Errorf("node %d: %v", i, err)
					return
				}
				asked.Add(2)
				time.Sleep(2 * time.Millisecond) // so that the load leaves time to the daemons
			}
		})
	}
	busy.Go(func() { // over new links, from contexts that come and go
		for n := 0; !stop.Load(); n++ {
			c, err := lib.Open(ctx, lib.WithSocket(sockets[n%nodes]), lib.WithTransports(tcp.New()))
			if err != nil {
				t.Error(err)
				return
			}
			r, err := c.Register(ctx, nil)
			for to := range nodes {
				if err == nil {
					err = r.SendBytes(ctx, me[to].ID(), 0, []byte("x"))
				}
				sent[to].Add(1)
			}
			if err := errors.Join(err, c.Close()); err != nil { // Close waits until the messages are delivered
				t.Errorf("a new context: %v", err)
				return
			}
			fresh.Add(1)
		}
	})
	rotate := func(to ...string) {
		t.Helper()
		for i, k := range keys {
			keyFile(t, k, to...)
			daemons[i].until(t, "keys have changed")
		}
		before := fresh.Load()
		eventually.True(t, "new contexts come and go", func() bool { return fresh.Load() >= before+2*nodes || t.Failed() })
	}
	rotate(oldKey, newKey)
	rotate(newKey, oldKey)
	rotate(newKey)
	stop.Store(true)
	busy.Wait()
	for i, r := range me {
		eventually.True(t, "all has come", func() bool { return got[i].Load() >= sent[i].Load() })
		if g, s := got[i].Load(), sent[i].Load(); g != s {
			t.Errorf("node %d got %d of %d", i, g, s)
		}
		if s := r.Context().Stats(); s.Sent["tls"] == 0 || s.Sent["tcp"] > 0 {
			t.Errorf("node %d sent over %v", i, s.Sent)
		}
		try.Check(t, r.SendBytes(ctx, r.ID(), 1, nil))
	}
	ears.Wait()
	t.Logf("%d questions, %d contexts came and went", asked.Load(), fresh.Load())

	late, at := filepath.Join(dir, "late"), socket(t)
	keyFile(t, late, oldKey)
	stranger := daemon(late, at, freePort(t))
	daemons[0].until(t, "gossip refused")
	c := open(t, at)
	for i := range nodes {
		if f, err := c.Find(ctx, lib.Match{"who": fmt.Sprint(i)}); err == nil {
			t.Errorf("with the old key: found %v", f.ID)
		}
	}
	stranger.Kill()
	// With the new key it is let in.
	keyFile(t, late, newKey)
	daemon(late, at, freePort(t))
	awaitFound(t, c, lib.Match{"who": "0"})
}

// hash returns a key derived from a cluster's key.
func hash(key []byte, what string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(what))
	return h.Sum(nil)
}

// The keys of a cluster do not stand for each other: a stranger that has the previous key, the key
// of a context at the port of a member, or the key of a member at the port of a context, gets no
// byte as an answer. The same holds for a stranger without TLS. The log gives the reason.
func TestStrangersAtSealedCluster(t *testing.T) {
	ctx := eventually.Context(t)
	key, bind := filepath.Join(t.TempDir(), "key"), freePort(t)
	keyFile(t, key, oldKey)
	var log logged.Log
	c := open(t, socket(t), lib.WithCluster("test"), lib.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))), lib.WithMember(cluster.Member{Bind: bind, KeyFile: key}))
	keyFile(t, key, newKey)
	eventually.True(t, "the key has changed", func() bool { return log.Count("keys have changed") == 1 })
	var at string // of the context
	for _, a := range c.Addrs() {
		if s, ok := strings.CutPrefix(a, "tls://"); ok {
			at = s
		}
	}
	link := func(key string) []byte { k := cluster.LinkKey("test", []byte(key)); return k[:] }
	stream := func(key string) []byte { return hash([]byte(key), "rocl stream") }
	const dirProto, linkProto = "rocl-dir/1", "rocl/1"
	eventually.True(t, "the context has heard of the new key", func() bool { // after the members
		nc := try.Get(net.Dial("tcp", at))(t)
		defer nc.Close()
		_, err := tls.Client(ctx, nc, try.Get(tls.FromSecrets("test", link(newKey)))(t), linkProto, nil)
		return err == nil
	})
	for what, s := range map[string]struct {
		at     string
		secret []byte // nil for a stranger without TLS
		proto  string
		why    string
	}{
		"member, in the clear":      {bind, nil, "", "TLS handshake"},
		"member, previous key":      {bind, stream(oldKey), dirProto, "another secret"},
		"member, key of contexts":   {bind, link(newKey), dirProto, "another secret"},
		"member, another protocol":  {bind, stream(newKey), linkProto, "does not speak"},
		"context, in the clear":     {at, nil, "", "TLS handshake"},
		"context, previous key":     {at, link(oldKey), linkProto, "another secret"},
		"context, key of members":   {at, stream(newKey), linkProto, "another secret"},
		"context, another protocol": {at, link(newKey), dirProto, "does not speak"},
	} {
		t.Run(what, func(t *testing.T) {
			before := log.Count("refused", s.why)
			var heard atomic.Int64
			nc := &countingConn{try.Get(net.Dial("tcp", s.at))(t), &heard}
			defer nc.Close()
			try.OK(t, nc.SetDeadline(time.Now().Add(eventually.Timeout)))
			var err error
			if s.secret == nil {
				_, err = nc.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			} else {
				_, err = tls.Client(ctx, nc, try.Get(tls.FromSecrets("test", s.secret))(t), s.proto, nil)
			}
			for err == nil {
				_, err = nc.Read(make([]byte, 100))
			}
			if n := heard.Load(); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("was answered %d bytes: %v", n, err)
			}
			eventually.True(t, fmt.Sprintf("the log says %q", s.why), func() bool { return log.Count("refused", s.why) > before })
		})
	}
}

// undelivered waits until told reports that a message did not get through. It fails the test if the
// message arrives.
func undelivered(t *testing.T, to *lib.Resource, reports chan error) {
	t.Helper()
	for {
		select {
		case err := <-reports:
			try.Fails(err)(t, lib.ErrUnreachable, "undelivered")
			return
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		m, err := to.Recv(ctx)
		cancel()
		if err == nil {
			m.Release()
			t.Error("it was delivered")
			return
		}
	}
}

// Contexts of two nodes of a cluster with a key do not link in the clear, whatever addresses a
// context claims and whichever side begins. No context is allowed to listen in the clear for other
// nodes.
func TestNoDowngrade(t *testing.T) {
	ctx := eventually.Context(t)
	key := filepath.Join(t.TempDir(), "key")
	keyFile(t, key, oldKey)
	first := freePort(t)
	var log logged.Log
	sock := socket(t)
	mine := register(t, open(t, sock, lib.WithTransports(tcp.New()), lib.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))), lib.WithCluster("test"), lib.WithMember(cluster.Member{Bind: first, KeyFile: key})), nil)
	for _, a := range []string{"tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:0", "tcp://example.org:0"} {
		if c, err := lib.Open(ctx, lib.WithSocket(sock), lib.WithListen(a)); err == nil || !strings.Contains(err.Error(), "does not seal") {
			t.Errorf("%s: %v", a, err)
			if c != nil {
				c.Close()
			}
		}
	}
	local := open(t, sock, lib.WithListen("tcp://127.0.0.1:0"))
	if a := local.Addrs(); len(a) != 4 {
		t.Errorf("listening at %q", a)
	}
	// This dispatcher has the key, is of another node, and comes over TCP.
	link := cluster.LinkKey("test", []byte(oldKey))
	reports := make(chan error, 1)
	p := buffers.New()
	t.Cleanup(func() { p.Close() })
	d := dispatch.New(dispatch.Config{
		Self:        resource.MakeGID(mine.ID().Node()^1, 1, 0),
		Pool:        p,
		Resolve:     func(context.Context, lib.GID) ([]string, error) { return mine.Context().Addrs()[:1], nil },
		Trust:       func() dispatch.Trust { return dispatch.Trust{Cluster: "test", Keys: [][]byte{link[:]}} },
		GiveUp:      time.Second,
		Undelivered: func(u dispatch.Undelivered) { reports <- u.Err },
	})
	defer d.Close(ctx)
	try.OK(t, d.Listen(tcp.New(), ""))
	try.OK(t, try.Get(d.Flow(mine.ID().Context(), mine.ID().Serial()))(t).SendBytes(ctx, 1, 0, []byte("in the clear")))
	undelivered(t, mine, reports)
	eventually.True(t, "the log says why", func() bool { return log.Count("does not seal") > 0 })
}

// authority makes certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	try.OK(t, err)
	a := &authority{t.TempDir(), &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, key}
	a.write(t, "ca.pem", "CERTIFICATE", a.certify(t, a.cert, key))
	return a
}

func (a *authority) ca() string { return filepath.Join(a.dir, "ca.pem") }

func (a *authority) certify(t *testing.T, c *x509.Certificate, of ed25519.PrivateKey) []byte {
	return try.Get(x509.CreateCertificate(rand.Reader, c, a.cert, of.Public(), a.key))(t)
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) (path string) {
	path = filepath.Join(a.dir, name)
	try.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// issue makes a certificate and its key.
func (a *authority) issue(t *testing.T) (cert, key string) {
	t.Helper()
	_, mine, err := ed25519.GenerateKey(rand.Reader)
	try.OK(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	return a.write(t, "cert.pem", "CERTIFICATE", a.certify(t, c, mine)), a.write(t, "key.pem", "PRIVATE KEY", try.Get(x509.MarshalPKCS8PrivateKey(mine))(t))
}

// Nodes with the operator's certificates find and reach each other, whether a daemon serves or a
// context. A context without certificates gets an error that says so. A node that has the key and
// another authority's certificate joins and reaches no member.
//
// Promise (Keys): Nodes with the operator's certificates reach each other. A program without them
// gets an error that says so.
func TestOwnCertificates(t *testing.T) {
	ctx := eventually.Context(t)
	keys := filepath.Join(t.TempDir(), "key")
	keyFile(t, keys, oldKey)
	a := newAuthority(t)
	cert, key := a.issue(t)
	one, two, first := socket(t), socket(t), freePort(t)
	d := start(t, `"serving"`, dirserver, "--socket", one, "--bind", first, "--cluster", "test", "--key-file", keys, "--tls-cert", cert, "--tls-key", key, "--tls-ca", a.ca())
	variables := map[string]string{"ROCL_TLS_CERT": cert, "ROCL_TLS_KEY": key, "ROCL_TLS_CA": a.ca()}
	for k, v := range variables {
		t.Setenv(k, v)
	}
	me := register(t, open(t, one, lib.WithTransports(tcp.New())), lib.Attrs{"who": "me"})
	you := register(t, open(t, two, lib.WithTransports(tcp.New()), lib.WithCluster("test"), lib.WithMember(cluster.Member{Bind: freePort(t), Join: []string{first}, KeyFile: keys})), nil)
	awaitFound(t, you.Context(), lib.Match{"who": "me"})
	try.OK(t, you.SendBytes(ctx, me.ID(), 0, []byte("hello")))
	m := try.Get(me.Recv(ctx))(t)
	m.Release()
	if s := you.Context().Stats(); s.Sent["tls"] != 1 {
		t.Errorf("sent over %v", s.Sent)
	}

	for k := range variables {
		t.Setenv(k, "")
	}
	refused := func(what, says string, opts ...lib.Option) {
		t.Helper()
		c, err := lib.Open(ctx, append(opts, lib.WithSocket(one))...)
		if !errors.Is(err, lib.ErrCertificates) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			c.Close()
		}
	}
	refused("without", "ROCL_TLS_CERT")
	refused("a part", "belong together", lib.WithCertificates(cert, key, ""))
	refused("not there", "no such file", lib.WithCertificates(cert, key, filepath.Join(a.dir, "none")))
	b := newAuthority(t)
	bcert, bkey := b.issue(t)
	refused("of another authority", "refuse", lib.WithCertificates(bcert, bkey, a.ca()))

	// The certificates are consistent in themselves, and of another authority: the member refuses
	// the stream.
	other := socket(t)
	start(t, `"serving"`, dirserver, "--socket", other, "--bind", freePort(t), "--join", first, "--cluster", "test", "--key-file", keys, "--tls-cert", bcert, "--tls-key", bkey, "--tls-ca", b.ca())
	if line := d.until(t, "stream refused"); !strings.Contains(line, "unknown authority") && !strings.Contains(line, "bad certificate") {
		t.Errorf("refused: %s", line)
	}
	// The key lets it greet the members. None lets it join, so it finds none of their resources,
	// and sending to an identifier that it knows fails.
	reports := make(chan error, 1)
	theirs := register(t, open(t, other, lib.WithTransports(tcp.New()), lib.WithCertificates(bcert, bkey, b.ca()), lib.WithGiveUp(100*time.Millisecond),
		lib.WithUndelivered(func(u lib.Undelivered) { reports <- u.Err })), nil)
	if f, err := theirs.Context().Find(ctx, lib.Match{"who": "me"}); err == nil {
		t.Errorf("%v is found with another authority's certificate", f.ID)
	}
	switch err := theirs.SendBytes(ctx, me.ID(), 0, []byte("hello")); {
	case err == nil:
		undelivered(t, me, reports)
	case ctx.Err() != nil:
		t.Error(err)
	default:
		if m, err := me.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
			t.Errorf("received %v, %v", m, err)
		}
	}
}
