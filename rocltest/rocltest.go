// SPDX-License-Identifier: Apache-2.0

// Package rocltest gives a test nodes of its own: in memory, with nothing to
// configure, closed when the test ends, also inside testing/synctest.
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
	"testing"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A TestCluster is a set of nodes in memory. They share one database: what the
// search of a cluster finds, each finds here at once.
type TestCluster struct {
	t       testing.TB
	net     *inproc.Network
	log     *slog.Logger
	servers []*directory.Server
}

// Cluster makes n nodes without contexts. Logs of warnings and worse go to
// t.Log, all of them with -v.
func Cluster(t testing.TB, n int) *TestCluster {
	t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	w := &logWriter{t: t}
	c := &TestCluster{
		t: t, net: inproc.NewNetwork(),
		log: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})),
	}
	db, first := database.New(), directory.NewIdentity()
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

// Nodes is the number of nodes.
func (c *TestCluster) Nodes() int { return len(c.servers) }

// Open opens a context on a node; it is closed when the test ends, if not
// before. The in-process transport joins all contexts of the cluster; opts may
// name others.
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

// TCP is an option of Open: the context is reached over TCP on the loopback
// interface, as one of another process would be. Not for synctest.
func TCP() rocl.Option { return rocl.WithTransports([]subsys.Transport{tcp.New()}...) }

// logWriter writes lines to t.Log.
type logWriter struct{ t testing.TB }

func (w *logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
