// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/image"
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

// WithClientLogger sends the client's log to l.
func WithClientLogger(l *slog.Logger) ClientOption { return func(c *Client) { c.log = l } }

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
type Client struct {
	dial  Dialer
	serve func(context.Context) error // see WithServe; nil if the client never serves
	log   *slog.Logger

	self    resource.GID // zero until the first join; then it stays
	token   [32]byte     // proves to every server of the node that self is this context's
	member  bool
	terms   atomic.Pointer[Terms]
	onTerms func(Terms)

	life   context.Context // ends when Close is done with the server; end ends it
	end    context.CancelFunc
	busy   sync.WaitGroup                // goroutines of the client; Close waits for them
	finish func(self resource.GID) error // stops serving when the client closes; may be nil
	here   func() *Server                // the server if it serves in this process, else nil; may be nil

	presence node.Presence // used by the goroutine that joins, then by Close

	image                 atomic.Pointer[image.Reader] // the index of conn's server; stored with mu held
	noImages              bool                         // the index is never used
	fromImage, fromSocket atomic.Uint64

	mu     sync.Mutex
	closed bool
	owned  map[resource.GID]*own // what is offered to the next server
	conn   *lifeConn             // nil while there is none
	joined chan struct{}         // closed when conn is set; only lost replaces it
	idle   []*askConn            // ask connections that are not in use
}

// own is a resource that the context has registered.
type own struct {
	revision uint64 // 0: not acknowledged yet
	attrs    resource.List
}

// Join connects to the directory and becomes a context of the node. ctx limits only the joining.
func Join(ctx context.Context, dial Dialer, opts ...ClientOption) (*Client, error) {
	c := &Client{dial: dial, owned: map[resource.GID]*own{}, joined: make(chan struct{}), log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(c)
	}
	c.life, c.end = context.WithCancel(context.Background())
	for try := 0; ; try++ {
		lc, err := c.join(ctx, nil)
		if errors.Is(err, ErrNoDirectory) && c.serve != nil && try < 50 {
			if err = c.serve(ctx); errors.Is(err, ErrInUse) {
				// Another process has the lock and will listen in a moment.
				if err = sleep(ctx, time.Duration(try+1)*time.Millisecond); err == nil {
					continue
				}
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
		c.busy.Go(func() { c.live(lc) })
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

// join makes one life connection. It announces that the resources of offers, which
// is called once there is a server, will be offered over it; nil means none.
func (c *Client) join(ctx context.Context, offers func() int) (*lifeConn, error) {
	nc, err := c.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("directory: joining: %w", context.Cause(ctx))
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	// The greeting goes first: from then on the server waits for the offer.
	_, err = nc.Write(wire.Greeting(wire.KindLife))
	k := wire.NewConn(nc)
	k.Begin(wire.MsgJoin, 0)
	k.GID(c.self)
	k.Append(c.token[:])
	var offer resource.List
	if c.member {
		_ = offer.Add(wire.JoinMember, nil)
	}
	if offers != nil {
		if n := offers(); n > 0 {
			_ = offer.Add(wire.JoinOffers, binary.LittleEndian.AppendUint64(nil, uint64(n)))
		}
	}
	k.Append(offer.Wire())
	if err == nil {
		err = k.Send()
	}
	var m wire.Message
	var e error
	if m, e = k.ReadMessage(); err == nil || e == nil { // the server may refuse before it has read everything
		err = e
	}
	if err == nil && m.Type == wire.MsgError {
		err = wire.ParseError(m.Body)
	}
	if err == nil {
		p := m.Parser()
		self, token := p.GID(), p.Take(32)
		if m.Type != wire.MsgJoined {
			err = fmt.Errorf("%w: no answer to join", ErrProtocol)
		} else {
			err = c.agree(p)
		}
		if err == nil && c.self.IsZero() {
			c.self = self
			copy(c.token[:], token)
		}
		if err == nil {
			c.presence.Show(nc, c.self)
		}
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if kind := errors.Is(err, ErrDenied) || errors.Is(err, ErrProtocol) || ctx.Err() != nil; !kind {
			err = fmt.Errorf("%w: %w", ErrNoDirectory, err) // the server ended while the client joined
		}
		return nil, fmt.Errorf("directory: joining: %w", err)
	}
	return newLifeConn(k), nil
}

// agree takes over the terms of linking that are the rest of a message.
func (c *Client) agree(p wire.Parser) error {
	l, err := p.List()
	if err != nil {
		return err
	}
	t, err := parseTerms(&l)
	if err != nil {
		return err
	}
	if old := c.terms.Swap(t); c.onTerms != nil && (old == nil || !old.equal(t)) {
		c.onTerms(*t)
	}
	return nil
}

// publish makes lc the connection that operations use. If the context no longer owns some of what
// was offered over lc, publish returns these identifiers instead: the server must forget them
// first. open is false when the client was closed meanwhile; Close does not wait for a connection
// that it has not seen.
func (c *Client) publish(lc *lifeConn, offered []offered) (forget []resource.GID, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	for i := range offered {
		if c.owned[offered[i].id] != offered[i].own {
			forget = append(forget, offered[i].id)
		}
	}
	if len(forget) == 0 {
		c.conn = lc
		close(c.joined)
		c.busy.Go(lc.write)
	}
	return forget, true
}

// lost forgets lc, which has ended, and everything that leads to its server. It reports whether the
// client is closed. Only the first call for lc makes a new joined channel: callers of current
// already wait on it when the second call comes.
func (c *Client) lost(lc *lifeConn) (closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == lc {
		c.conn, c.joined = nil, make(chan struct{})
		c.unmap()
		for _, a := range c.idle {
			a.c.Close()
		}
		c.idle = nil
	}
	return c.closed
}

// live reads the life connection and replaces it when it ends. It runs in a goroutine of its own
// until the client is closed.
func (c *Client) live(lc *lifeConn) {
	for {
		c.run(lc)
		if closed := c.lost(lc); closed {
			return
		}
		c.log.Info("directory: server lost")
		if lc = c.rejoin(); lc == nil {
			return
		}
		c.log.Info("directory: joined again")
	}
}

// run reads answers from lc until the connection ends.
func (c *Client) run(lc *lifeConn) {
	for {
		m, err := lc.c.ReadMessage()
		if err == nil && m.Type == wire.MsgTerms {
			if err = c.agree(m.Parser()); err == nil {
				continue
			}
			c.log.Warn("directory: terms", "err", err)
		}
		if err != nil {
			break
		}
		lc.answered(&m)
	}
	lc.c.Close()
	close(lc.gone)
}

// rejoin joins the next server, or becomes it, and offers what the context owns. It returns nil
// when the client is closed.
func (c *Client) rejoin() *lifeConn {
	backoff := time.Millisecond
	said := "" // the problem that was logged last
	for {
		var all []offered
		lc, err := c.join(c.life, func() int {
			all = c.owns()
			return len(all)
		})
		if errors.Is(err, ErrNoDirectory) && c.serve != nil {
			err := c.serve(c.life)
			if err == nil {
				continue
			}
			if text := err.Error(); text != said && !errors.Is(err, ErrInUse) && c.life.Err() == nil {
				said = text
				c.log.Warn("directory: cannot serve the node", "err", err)
			}
		}
		if (errors.Is(err, ErrUntrusted) || errors.Is(err, ErrDenied)) && err.Error() != said {
			said = err.Error()
			c.log.Warn("directory: not joining the directory that serves now", "err", err)
		}
		if err == nil {
			var open bool
			if open, err = c.offer(lc, all); open {
				return lc
			}
			lc.c.Close()
			if err == nil {
				return nil // the client was closed meanwhile
			}
		}
		if c.life.Err() != nil {
			return nil
		}
		c.log.Debug("directory: joining again", "err", err)
		if sleep(c.life, backoff/2+rand.N(backoff)) != nil {
			return nil
		}
		backoff = min(backoff*2, 50*time.Millisecond)
	}
}

// offered is a resource in the state in which it is offered to a new server.
type offered struct {
	id       resource.GID
	own      *own
	revision uint64
	attrs    resource.List
}

// owns returns what the context has registered. It leaves out a resource whose registration has not
// been answered: the caller of Register asks the next server again.
func (c *Client) owns() []offered {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]offered, 0, len(c.owned))
	for id, o := range c.owned {
		if o.revision > 0 {
			all = append(all, offered{id, o, o.revision, o.attrs})
		}
	}
	return all
}

// offer registers all, the resources that the context owned before it joined, with a new server.
// Then operations may use lc. Before that, the server is told which of them were deleted meanwhile.
// open is false if the client was closed meanwhile.
func (c *Client) offer(lc *lifeConn, all []offered) (open bool, err error) {
	stop := context.AfterFunc(c.life, func() { lc.c.Close() })
	defer stop()
	err = c.stream(lc, len(all), func(b *wire.Builder, i int) {
		b.Begin(wire.MsgRegister, uint64(i))
		b.GID(all[i].id)
		b.U64(all[i].revision)
		b.Append(all[i].attrs.Wire())
	})
	for err == nil {
		var forget []resource.GID
		if forget, open = c.publish(lc, all); len(forget) == 0 {
			return open, nil
		}
		gone := make(map[resource.GID]bool, len(forget))
		for _, id := range forget {
			gone[id] = true
		}
		all = slices.DeleteFunc(all, func(o offered) bool { return gone[o.id] })
		err = c.stream(lc, len(forget), func(b *wire.Builder, i int) {
			b.Begin(wire.MsgDelete, uint64(i))
			b.GID(forget[i])
		})
	}
	return false, err
}

// stream writes n messages in a goroutine of its own, reads their answers meanwhile, and returns
// when both have ended.
func (c *Client) stream(lc *lifeConn, n int, message func(b *wire.Builder, i int)) error {
	wrote := make(chan error, 1)
	go func() {
		w := wire.NewConn(lc.c.Conn)
		for i := range n {
			message(&w.Builder, i)
			if err := w.Send(); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	var err error
	for got := 0; got < n && err == nil; {
		m, e := lc.c.ReadMessage()
		switch {
		case e != nil:
			err = e
		case m.Type == wire.MsgTerms:
			err = c.agree(m.Parser())
		default:
			got++
			if m.Type == wire.MsgError {
				c.log.Warn("directory: offering again", "err", wire.ParseError(m.Body))
			}
		}
	}
	if err != nil {
		lc.c.Close()
	}
	return errors.Join(err, <-wrote)
}

// Self returns the context's identifier.
func (c *Client) Self() resource.GID { return c.self }

// Node returns the node's number.
func (c *Client) Node() resource.NodeID { return c.self.Node() }

// Terms returns the present terms of linking. The caller must not change them.
func (c *Client) Terms() Terms { return *c.terms.Load() }

// current returns the life connection and waits while there is none. ErrNoDirectory says that ctx
// has ended first.
func (c *Client) current(ctx context.Context) (*lifeConn, error) {
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
		case <-c.life.Done():
			return nil, ErrClosed
		}
	}
}

// Withdraw deletes all resources of the context except the context's own. It returns when the
// server has deleted them.
func (c *Client) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	ids := make([]resource.GID, 0, len(c.owned))
	for id := range c.owned {
		if id != c.self {
			ids = append(ids, id)
			delete(c.owned, id)
		}
	}
	c.mu.Unlock()
	for i, id := range ids {
		if i+1 < len(ids) {
			c.tell(wire.MsgDelete, id)
			continue
		}
		// Answers come in order, so the last one says that all are deleted.
		if err := c.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

// Register makes a resource of the context known and returns its revision. ErrExists is returned if
// the context has registered the identifier already, ErrIncomplete if an attribute has no value.
func (c *Client) Register(ctx context.Context, id resource.GID, l *resource.List) (uint64, error) {
	if !l.Complete() {
		return 0, fmt.Errorf("%w: %v", ErrIncomplete, l)
	}
	if ctx.Err() != nil { // nothing has been said yet
		return 0, context.Cause(ctx)
	}
	o := &own{attrs: l.Clone()}
	c.mu.Lock()
	if c.owned[id] != nil {
		c.mu.Unlock()
		return 0, fmt.Errorf("%w: %v", ErrExists, id)
	}
	c.owned[id] = o
	c.mu.Unlock()
	asked := uint64(0)
	rev, said, err := c.call(ctx, request{typ: wire.MsgRegister, id: id,
		body: func(b *wire.Builder) {
			b.U64(asked)
			b.Append(o.attrs.Wire())
			asked = 1 // asked a second time, the server may have the resource already
		},
		// The revision is noted before the caller can run: the next server is offered what the last
		// one has acknowledged.
		noted: func(rev uint64) { c.note(id, o, rev, nil) },
	})
	if err != nil {
		c.mu.Lock()
		delete(c.owned, id)
		c.mu.Unlock()
		if said && ctx.Err() != nil {
			c.tell(wire.MsgDelete, id)
		}
		return 0, err
	}
	return rev, nil
}

// note records what the server has acknowledged of o. attrs is nil if the attributes are the same.
func (c *Client) note(id resource.GID, o *own, rev uint64, attrs *resource.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owned[id] != o || rev <= o.revision {
		return
	}
	o.revision = rev
	if attrs != nil {
		o.attrs = *attrs
	}
}

// Update replaces the attributes of a resource of the context if its revision is expect (0: any),
// and returns the new revision. ErrRevision is returned if the revision is another one.
func (c *Client) Update(ctx context.Context, id resource.GID, expect uint64, l *resource.List) (uint64, error) {
	if !l.Complete() {
		return 0, fmt.Errorf("%w: %v", ErrIncomplete, l)
	}
	attrs := l.Clone()
	c.mu.Lock()
	o := c.owned[id]
	c.mu.Unlock()
	rev, _, err := c.call(ctx, request{typ: wire.MsgUpdate, id: id,
		body: func(b *wire.Builder) {
			b.U64(expect)
			b.Append(attrs.Wire())
		},
		noted: func(rev uint64) {
			if o != nil {
				c.note(id, o, rev, &attrs)
			}
		},
	})
	if err != nil {
		return 0, err
	}
	return rev, nil
}

// Change calls change with the attributes of a resource of the context, and stores the result if
// the attributes are still the same. Otherwise it calls change again with the present attributes.
// It returns the new revision.
func (c *Client) Change(ctx context.Context, id resource.GID, change func(*resource.List) error) (uint64, error) {
	if ctx.Err() != nil { // nothing has been said yet
		return 0, context.Cause(ctx)
	}
	c.mu.Lock()
	var expect uint64
	var l resource.List
	if o := c.owned[id]; o != nil {
		expect, l = o.revision, o.attrs.Clone()
	}
	c.mu.Unlock()
	for {
		if expect == 0 { // this client does not know the revision
			ans, err := c.Lookup(ctx, id)
			if err != nil {
				return 0, err
			}
			expect, l = ans.Revision, ans.Attrs.Clone()
		}
		if err := change(&l); err != nil {
			return 0, err
		}
		rev, err := c.Update(ctx, id, expect, &l)
		if !errors.Is(err, ErrRevision) {
			return rev, err
		}
		expect = 0
	}
}

// Delete makes a resource of the context unknown. If ctx ends first, the resource is still deleted
// as soon as a server answers again.
func (c *Client) Delete(ctx context.Context, id resource.GID) error {
	c.mu.Lock()
	had := c.owned[id] != nil
	delete(c.owned, id)
	c.mu.Unlock()
	_, _, err := c.call(ctx, request{typ: wire.MsgDelete, id: id, insist: had})
	if had && errors.Is(err, ErrNotFound) {
		return nil // a new server serves, to which the resource was not offered any more
	}
	return err
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
	c.unmap()
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
