// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"log/slog"
	"os"
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
	o := &ownServer{path: path, log: log, opts: serve}
	c, err := Join(ctx, DialSocket(path), append(opts, WithServe(o.serve))...)
	if err != nil {
		o.close(resource.GID{})
		return nil, err
	}
	c.finish, c.serving = o.close, o.serving.Load
	o.isTakeover.Store(true)
	return c, nil
}

// ownServer is the server that a client runs when no other process serves.
type ownServer struct {
	path       string
	log        *slog.Logger
	opts       []Option
	isTakeover atomic.Bool // set once JoinNode has succeeded: see the option takeover
	mu         sync.Mutex  // guards closed and server; held while a server begins or ends
	closed     bool
	server     *Server

	serving atomic.Pointer[Server] // the same as server, read without mu
}

// serve starts the server. It replaces one that the client ran before and that has ended. ErrInUse
// says that another process serves.
func (o *ownServer) serve(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	if o.server != nil {
		o.server.Close() // it gave way to a daemon, or its socket was taken
		o.server = nil
	}
	opts := append([]Option{WithLogger(o.log), takeover(o.isTakeover.Load()), within(ctx)}, o.opts...)
	s, err := Listen(o.path, opts...)
	if err != nil {
		return err
	}
	o.server = s
	o.serving.Store(s)
	event := "began"
	if o.isTakeover.Load() {
		event = "took over"
	}
	o.log.Info("directory: this program serves the node", "event", event, "program", program(), "pid", os.Getpid(), "socket", o.path, "epoch", s.id.Epoch)
	return nil
}

// close ends serving because the context self closes.
func (o *ownServer) close(self resource.GID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.server == nil {
		return nil
	}
	return o.server.closeOf(self)
}
