// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// A ClientOption changes one default of Join.
type ClientOption func(*Client)

// WithServe gives the client a function that serves the node. The client calls it when no process
// serves. serve returns ErrInUse if another process serves after all.
func WithServe(serve func(context.Context) error) ClientOption {
	return func(c *Client) { c.serve = serve }
}

// WithClientLogger sends the client's log to l. If l is nil, the client logs nothing.
func WithClientLogger(l *slog.Logger) ClientOption {
	return func(c *Client) {
		if l != nil {
			c.log = l
		}
	}
}

// WithTerms sets a function that is called whenever the terms of linking have changed, the first
// time before Join returns. f must not block.
func WithTerms(f func(Terms)) ClientOption { return func(c *Client) { c.onTerms = f } }

// AsMember tells the server that this context would make the node a member of its cluster if it
// came to serve. The node then need not leave the cluster when the server ends.
func AsMember() ClientOption { return func(c *Client) { c.member = true } }

// leaveTime is how long Close waits for the server to acknowledge the leave.
const leaveTime = time.Second

// A Client is one context's access to its node's directory. It remembers what the context owns and
// offers that again to the next server when the present one ends. Operations wait meanwhile, until
// their contexts end. All methods may be called concurrently.
//
// No goroutine holds the mutexes of a Client and of its registrationConn at the same time.
type Client struct {
	dial  Dialer
	serve func(context.Context) error // see WithServe; nil if the client never serves
	log   *slog.Logger

	self    resource.GID // zero until the first join; then it stays
	token   [32]byte     // proves to every server of the node that self is this context's
	member  bool
	terms   atomic.Pointer[Terms]
	onTerms func(Terms)

	lifetime context.Context // ends when Close is done with the server; end ends it
	end      context.CancelFunc
	busy     sync.WaitGroup                // goroutines of the client; Close waits for them
	finish   func(self resource.GID) error // stops serving when the client closes; may be nil
	serving  func() *Server                // the server if it serves in this process, else nil; may be nil

	presence node.Presence // used by the goroutine that joins, then by Close
	isHidden bool          // presence could not be shown; used by the goroutine that joins

	// index is the index of conn's server, or nil. It is set with mu held. A reader that finds the
	// index ended takes it away without mu: see dropEndedIndex.
	index                 atomic.Pointer[index.Reader]
	noIndex               bool // the index is never used
	fromIndex, fromSocket atomic.Uint64

	mu     sync.Mutex // guards the following fields and registrationConn.asked
	closed bool
	owned  map[resource.GID]*own // what is offered to the next server
	conn   *registrationConn     // nil while there is none
	joined chan struct{}         // closed when conn is set; only lost replaces it
	idle   []*askConn            // ask connections that are not in use
}

// Join connects to the directory and becomes a context of the node. ctx limits only the joining.
func Join(ctx context.Context, dial Dialer, opts ...ClientOption) (*Client, error) {
	c := &Client{dial: dial, owned: map[resource.GID]*own{}, joined: make(chan struct{}), log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	c.lifetime, c.end = context.WithCancel(context.Background())
	for try := 0; ; try++ {
		lc, err := c.join(ctx, nil)
		if errors.Is(err, ErrNoDirectory) && c.serve != nil && try < 50 {
			if err = c.serve(ctx); errors.Is(err, ErrInUse) {
				// Another process has the lock and will listen in a moment.
				err = sleep(ctx, time.Duration(try+1)*time.Millisecond)
			}
			if err == nil {
				continue
			}
		}
		if err != nil {
			c.end()
			c.presence.End()
			return nil, err
		}
		c.publish(lc, nil)
		c.busy.Go(func() { c.keepJoined(lc) })
		return c, nil
	}
}

// sleep waits for d, or until ctx ends, and then returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Self returns the context's identifier.
func (c *Client) Self() resource.GID { return c.self }

// Node returns the node's number.
func (c *Client) Node() resource.NodeID { return c.self.Node() }

// Terms returns the present terms of linking. The caller must not change them.
func (c *Client) Terms() Terms { return *c.terms.Load() }

// current returns the registration connection and waits while there is none. ErrNoDirectory says
// that ctx has ended first.
func (c *Client) current(ctx context.Context) (*registrationConn, error) {
	for {
		c.mu.Lock()
		lc, joined, closed := c.conn, c.joined, c.closed
		c.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		if lc != nil {
			return lc, nil
		}
		select {
		case <-joined:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNoDirectory, context.Cause(ctx))
		case <-c.lifetime.Done():
			return nil, ErrClosed
		}
	}
}

// Close leaves the directory, which then forgets what the context owned. Calls under way return
// ErrClosed. If the client serves the node, another context takes over. Later calls do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	lc, idle := c.conn, c.idle
	c.idle = nil
	c.dropIndexLocked()
	c.mu.Unlock()
	for _, a := range idle {
		a.c.Close()
	}
	if lc != nil {
		// The server hangs up when it has forgotten the context. A server that hangs is not waited
		// for: it sees the end of the connection later.
		lc.put(request{typ: wire.MsgLeave}, false)
		wait := leaveTime
		if lc.isSilent() {
			wait = 0
		}
		t := time.AfterFunc(wait, func() { lc.c.Close() })
		<-lc.gone
		t.Stop()
	}
	c.end()
	c.busy.Wait()
	c.presence.End()
	if c.finish != nil {
		return c.finish(c.self)
	}
	return nil
}
