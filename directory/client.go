// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/resource"
)

// A ClientOption changes one default of Join.
type ClientOption func(*Client)

// WithServe gives the client the means to serve the node itself when nobody
// else does; serve returns ErrInUse if somebody does after all.
func WithServe(serve func(context.Context) error) ClientOption {
	return func(c *Client) { c.serve = serve }
}

// WithClientLogger sends logs to l.
func WithClientLogger(l *slog.Logger) ClientOption { return func(c *Client) { c.log = l } }

// WithTerms calls f whenever the terms of linking have changed, also before Join
// returns. f must not block.
func WithTerms(f func(Terms)) ClientOption { return func(c *Client) { c.onTerms = f } }

// AsMember tells the server that this context would make the node a member of
// its cluster if it served: so the node need not leave when the server ends.
func AsMember() ClientOption { return func(c *Client) { c.member = true } }

// leaveTime is how long a client that leaves waits for the server to know.
const leaveTime = time.Second

// A Client is one context's access to its node's directory. It remembers what
// the context owns and offers it again to whichever server comes after the
// present one; operations wait meanwhile, until their contexts end. All
// methods may be called concurrently.
type Client struct {
	dial  Dialer
	serve func(context.Context) error
	log   *slog.Logger

	self    resource.GID
	token   [32]byte
	member  bool
	terms   atomic.Pointer[Terms]
	onTerms func(Terms)

	life   context.Context
	end    context.CancelFunc
	busy   sync.WaitGroup
	finish func(self resource.GID) error // what serving needs when the client closes; may be nil
	here   func() *Server                // the server if it is in this process and serves, else nil; may be nil

	mark *os.File // see presence.go; of the goroutine that joins, then of Close

	image                 atomic.Pointer[image.Reader] // of conn's server; changed under mu
	noImages              bool
	fromImage, fromSocket atomic.Uint64

	mu     sync.Mutex
	closed bool
	owned  map[resource.GID]*own
	conn   *lifeConn     // nil while there is none
	joined chan struct{} // closed when conn is set; only lost replaces it
	idle   []*askConn
}

// own is a resource the context has registered.
type own struct {
	revision uint64 // 0: not acknowledged yet
	attrs    resource.List
}

// Join connects to the directory and becomes a context of the node. ctx bounds
// the joining only.
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
				// Somebody has the lock and will listen in a moment.
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
			c.absent()
			return nil, err
		}
		c.publish(lc, nil)
		c.busy.Go(func() { c.live(lc) })
		return c, nil
	}
}

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
	_, err = nc.Write(greeting(kindLife))
	k := newCodec(nc)
	k.begin(msgJoin, 0)
	k.gid(c.self)
	k.bytes(c.token[:])
	var offer resource.List
	if c.member {
		_ = offer.Add(offerMember, nil)
	}
	if offers != nil {
		if n := offers(); n > 0 {
			_ = offer.Add(offerCount, binary.LittleEndian.AppendUint64(nil, uint64(n)))
		}
	}
	k.bytes(offer.Wire())
	if err == nil {
		err = k.send()
	}
	var m message
	var e error
	if m, e = k.read(); err == nil || e == nil { // a server that refuses may not have read
		err = e
	}
	if err == nil && m.typ == msgError {
		err = parseError(m.body)
	}
	if err == nil {
		p := parser{b: m.body}
		self, token := p.gid(), p.take(32)
		if m.typ != msgJoined {
			err = fmt.Errorf("%w: no answer to join", ErrProtocol)
		} else {
			err = c.agree(p)
		}
		if err == nil && c.self.IsZero() {
			c.self = self
			copy(c.token[:], token)
		}
		if err == nil {
			c.present(nc)
		}
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if kind := errors.Is(err, ErrDenied) || errors.Is(err, ErrProtocol) || ctx.Err() != nil; !kind {
			err = fmt.Errorf("%w: %w", ErrNoDirectory, err) // it went as we came
		}
		return nil, fmt.Errorf("directory: joining: %w", err)
	}
	return newLifeConn(k), nil
}

// agree takes the terms that are the rest of a message.
func (c *Client) agree(p parser) error {
	l, err := p.list()
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

// publish makes lc the connection that operations use. Of what was offered over
// lc it returns instead what the context does not own any more: the server is to
// forget that first. open is false when the client was closed meanwhile; Close
// does not wait for a connection that it has not seen.
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

// lost forgets lc, which has ended, and everything that leads to its server. It
// reports whether the client is closed. Only the first call for lc makes a new
// joined: callers of current already wait on it when the second call comes.
func (c *Client) lost(lc *lifeConn) (closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == lc {
		c.conn, c.joined = nil, make(chan struct{})
		c.unmap()
		for _, a := range c.idle {
			a.c.nc.Close()
		}
		c.idle = nil
	}
	return c.closed
}

// live reads the life connection and replaces it when it ends.
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

// run reads answers until the connection ends.
func (c *Client) run(lc *lifeConn) {
	for {
		m, err := lc.c.read()
		if err == nil && m.typ == msgTerms {
			if err = c.agree(parser{b: m.body}); err == nil {
				continue
			}
			c.log.Warn("directory: terms", "err", err)
		}
		if err != nil {
			break
		}
		lc.answered(&m)
	}
	lc.c.nc.Close()
	close(lc.gone)
}

// rejoin finds or becomes the next server and offers what the context owns.
func (c *Client) rejoin() *lifeConn {
	backoff := time.Millisecond
	said := "" // of what is wrong
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
			lc.c.nc.Close()
			if err == nil {
				return nil // closed meanwhile
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

// offered is a resource as it is offered to a new server.
type offered struct {
	id       resource.GID
	own      *own
	revision uint64
	attrs    resource.List
}

// owns returns what the context has registered. A resource whose registration has
// not been answered is not among it: its caller asks the next server again.
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

// offer registers all, what the context owned before it joined, with a new server, and lets
// operations use lc. What is deleted meanwhile the server is told before that.
// open is false if the client was closed meanwhile.
func (c *Client) offer(lc *lifeConn, all []offered) (open bool, err error) {
	stop := context.AfterFunc(c.life, func() { lc.c.nc.Close() })
	defer stop()
	err = c.stream(lc, len(all), func(w *codec, i int) {
		w.begin(msgRegister, uint64(i))
		w.gid(all[i].id)
		w.u64(all[i].revision)
		w.bytes(all[i].attrs.Wire())
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
		err = c.stream(lc, len(forget), func(w *codec, i int) {
			w.begin(msgDelete, uint64(i))
			w.gid(forget[i])
		})
	}
	return false, err
}

// stream writes n messages and reads their answers side by side.
func (c *Client) stream(lc *lifeConn, n int, message func(w *codec, i int)) error {
	wrote := make(chan error, 1)
	go func() {
		w := &codec{nc: lc.c.nc}
		for i := range n {
			message(w, i)
			if err := w.send(); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	var err error
	for got := 0; got < n && err == nil; {
		m, e := lc.c.read()
		switch {
		case e != nil:
			err = e
		case m.typ == msgTerms:
			err = c.agree(parser{b: m.body})
		default:
			got++
			if m.typ == msgError {
				c.log.Warn("directory: offering again", "err", parseError(m.body))
			}
		}
	}
	if err != nil {
		lc.c.nc.Close()
	}
	return errors.Join(err, <-wrote)
}

// Self is the context's identifier.
func (c *Client) Self() resource.GID { return c.self }

// Node is the node's number.
func (c *Client) Node() resource.NodeID { return c.self.Node() }

// Terms are the present terms of linking, not to be changed.
func (c *Client) Terms() Terms { return *c.terms.Load() }

// current waits for a life connection.
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

// Withdraw deletes all resources of the context but the context's own, and
// returns when the server has.
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
			c.tell(msgDelete, id)
			continue
		}
		if err := c.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) { // answered in order
			return err
		}
	}
	return nil
}

// Register makes a resource of the context known and returns its revision.
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
	rev, said, err := c.call(ctx, request{typ: msgRegister, id: id,
		body: func(k *codec) {
			k.u64(asked)
			k.bytes(o.attrs.Wire())
			asked = 1 // asked a second time, the server may have it already
		},
		// Noted before the caller can run: the next server is offered what the
		// last one has acknowledged.
		noted: func(rev uint64) { c.note(id, o, rev, nil) },
	})
	if err != nil {
		c.mu.Lock()
		delete(c.owned, id)
		c.mu.Unlock()
		if said && ctx.Err() != nil {
			c.tell(msgDelete, id)
		}
		return 0, err
	}
	return rev, nil
}

// note keeps what the server has acknowledged of o; attrs is nil if they are the
// same.
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

// Update replaces the attributes of a resource of the context if its revision
// is expect (0: any), and returns the new revision. ErrRevision if not.
func (c *Client) Update(ctx context.Context, id resource.GID, expect uint64, l *resource.List) (uint64, error) {
	if !l.Complete() {
		return 0, fmt.Errorf("%w: %v", ErrIncomplete, l)
	}
	attrs := l.Clone()
	c.mu.Lock()
	o := c.owned[id]
	c.mu.Unlock()
	rev, _, err := c.call(ctx, request{typ: msgUpdate, id: id,
		body: func(k *codec) {
			k.u64(expect)
			k.bytes(attrs.Wire())
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

// Change lets change work on the attributes of a resource of the context and puts the
// result in their place, if they are still the same: else change is called again with
// those that there are now. It returns the new revision.
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
		if expect == 0 { // not known here
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

// Delete makes a resource of the context unknown. The resource is deleted also if
// ctx ends first: as soon as a server answers again.
func (c *Client) Delete(ctx context.Context, id resource.GID) error {
	c.mu.Lock()
	had := c.owned[id] != nil
	delete(c.owned, id)
	c.mu.Unlock()
	_, _, err := c.call(ctx, request{typ: msgDelete, id: id, insist: had})
	if had && errors.Is(err, ErrNotFound) {
		return nil // the server is a new one, to which it was not offered any more
	}
	return err
}

// Close leaves the directory: what the context owned is gone from it. Calls
// under way return ErrClosed. If the client serves the node, somebody else
// takes over. Later calls do nothing.
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
		a.c.nc.Close()
	}
	if lc != nil {
		// The server hangs up when it has forgotten us. One that stands still is
		// not waited for: it sees the end of the connection.
		lc.put(request{typ: msgLeave}, false)
		wait := leaveTime
		if lc.isSilent() {
			wait = 0
		}
		t := time.AfterFunc(wait, func() { lc.c.nc.Close() })
		<-lc.gone
		t.Stop()
	}
	c.end()
	c.busy.Wait()
	c.absent()
	if c.finish != nil {
		return c.finish(c.self)
	}
	return nil
}
