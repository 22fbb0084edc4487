// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/resource"
)

// JoinNode joins the directory at a socket path. The client serves the directory itself whenever no
// other process does, for as long as the client is open, so a laptop needs no daemon. serve are
// options of that server.
func JoinNode(ctx context.Context, path string, log *slog.Logger, serve []Option, opts ...ClientOption) (*Client, error) {
	opts = append([]ClientOption{WithClientLogger(log)}, opts...)
	if IsTCP(path) { // a TCP address is that of a directory elsewhere, which this process never serves
		return Join(ctx, DialSocket(path), opts...)
	}
	n := &node{path: path, log: log, opts: serve}
	c, err := Join(ctx, DialSocket(path), append(opts, WithServe(n.serve))...)
	if err != nil {
		n.close(resource.GID{})
		return nil, err
	}
	c.finish, c.here = n.close, n.serving.Load
	n.late.Store(true)
	return c, nil
}

// node is the server that a client runs when no other process serves.
type node struct {
	path   string
	log    *slog.Logger
	opts   []Option
	late   atomic.Bool // set once JoinNode has succeeded: see takingOver
	mu     sync.Mutex
	closed bool
	server *Server

	serving atomic.Pointer[Server] // the same as server, read without mu
}

// serve starts the server. It replaces one that the client ran before and that has ended. ErrInUse
// says that another process serves.
func (n *node) serve(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	if n.server != nil {
		n.server.Close() // it gave way to a daemon, or its socket was taken
		n.server = nil
	}
	opts := append([]Option{WithLogger(n.log), takingOver(n.late.Load()), within(ctx)}, n.opts...)
	s, err := Listen(n.path, opts...)
	if err != nil {
		return err
	}
	n.server = s
	n.serving.Store(s)
	n.log.Info("directory: serving the node", "socket", n.path, "epoch", s.id.Epoch)
	return nil
}

// close ends serving because the context self closes.
func (n *node) close(self resource.GID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.server == nil {
		return nil
	}
	return n.server.closeOf(self)
}
