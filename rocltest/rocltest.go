// SPDX-License-Identifier: Apache-2.0

// Package rocltest makes nodes in memory for tests. They need no configuration and no daemon, are
// closed when the test ends, and work inside testing/synctest.
//
//	func TestMine(t *testing.T) {
//		c := rocltest.Cluster(t, 2)
//		a, b := c.Open(0), c.Open(1)
//		…
//	}
package rocltest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A TestCluster is a set of nodes in memory; [Cluster] makes it. Its nodes share one database, so a
// search on one node finds the resources of all nodes at once, without a question to another node.
type TestCluster struct {
	t       testing.TB
	net     *inproc.Network
	log     *slog.Logger
	servers []*directory.Server
}

// Cluster makes n nodes without contexts, which are closed when the test ends. The nodes write log
// lines of level warning and above to t.Log, and all log lines if the tests run with -v.
func Cluster(t testing.TB, n int) *TestCluster {
	t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	w := &logWriter{t: t}
	t.Cleanup(w.end) // which runs last
	c := &TestCluster{
		t: t, net: inproc.NewNetwork(),
		log: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})),
	}
	db, first := directory.NewDatabase(), directory.NewIdentity()
	for range n {
		s := directory.NewServer(directory.WithDatabase(db), directory.WithIdentity(first.Sibling()), directory.WithLogger(c.log))
		c.servers = append(c.servers, s)
	}
	t.Cleanup(func() {
		for _, s := range c.servers {
			s.Close()
		}
	})
	return c
}

// Open opens a context on the node with that index, which counts from 0. The context is closed when
// the test ends, if it is open then. An error of Open or Close fails the test. All contexts of the
// cluster communicate by the in-process transport, unless opts name other transports.
func (c *TestCluster) Open(node int, opts ...rocl.Option) *rocl.Context {
	c.t.Helper()
	s := c.servers[node]
	all := append([]rocl.Option{
		icontext.WithDirectory(s.Dialer()),
		rocl.WithTransports(c.net.Transport()),
		rocl.WithLogger(c.log),
	}, opts...)
	ctx, err := rocl.Open(context.Background(), all...)
	if err != nil {
		c.t.Fatalf("rocltest: opening a context on node %d: %v", node, err)
	}
	c.t.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			c.t.Errorf("rocltest: closing a context of node %d: %v", node, err)
		}
	})
	return ctx
}

// TCP returns an option for [TestCluster.Open]: the context communicates over TCP on the loopback
// interface, as a context of another process would. It does not work inside testing/synctest.
func TCP() rocl.Option { return rocl.WithTransports([]subsys.Transport{tcp.New()}...) }

// logWriter writes log lines to t.Log. It drops lines that come when the test has ended: t.Log
// would panic, and a context's lines are written by a goroutine that Close does not wait for.
type logWriter struct {
	t testing.TB

	mu       sync.Mutex
	hasEnded bool
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.hasEnded {
		w.t.Log(strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}

func (w *logWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hasEnded = true
}
