// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/resource"
)

// An Option changes one default of a server.
type Option func(*Server)

// WithIdentity gives the server its node's identity. Without it the identity is random.
func WithIdentity(id *Identity) Option { return func(s *Server) { s.id = id } }

// WithDatabase gives the server a database, which several servers may share. That makes nodes in
// memory that see each other's resources.
func WithDatabase(db *database.DB) Option { return func(s *Server) { s.db = db } }

// WithLogger sends the server's log to l.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// AsDaemon says that the server is a process of its own. Contexts that serve give way to such a
// server, and it gives way to no other.
func AsDaemon() Option { return func(s *Server) { s.daemon = true } }

// WithMembership lets a server made by Listen be a member of a cluster.
//
// Listen calls begin when the server knows its node, before it serves any context. late says that
// the server takes over from another one, for contexts that exist already. Then begin should return
// an error only for what makes serving the node impossible.
//
// end is called when the server has ended. handOver says that another process of the node goes on
// as the same member.
func WithMembership(begin func(s *Server, late bool) (end func(handOver bool), err error)) Option {
	return func(s *Server) { s.begin = begin }
}

// Opening returns the context that limits Listen. A membership that begins after the end of that
// context fails.
func (s *Server) Opening() context.Context {
	if s.opening == nil {
		return context.Background()
	}
	return s.opening
}

// within ends Listen when ctx ends.
func within(ctx context.Context) Option { return func(s *Server) { s.opening = ctx } }

// takingOver says that the server follows another one, for contexts that exist already.
func takingOver(late bool) Option { return func(s *Server) { s.late = late } }

// A Remote asks the other members of a cluster for what the node does not hold. Errors match
// ErrNotFound where it is certain that nothing matches, else ErrPartial.
type Remote interface {
	// Find returns one resource of another member that matches.
	Find(ctx context.Context, pattern *resource.List) (resource.Record, error)
	// Lookup returns the resource of another member that has an identifier. pattern has the wanted
	// attributes.
	Lookup(ctx context.Context, id resource.GID, pattern *resource.List) (resource.Record, error)
	// All yields what matches and reports in cov which nodes were asked.
	All(ctx context.Context, pattern *resource.List, cov *Coverage) iter.Seq2[resource.Record, error]
	// Trace searches as Find does, or by another search strategy, and returns how the search went.
	Trace(ctx context.Context, way strategy.Strategy, pattern *resource.List) (Trace, error)
	// Watch reports to w the matching resources of the other members, and what happens to them,
	// until end is called. It holds back Synced of w until it has reported what exists now. After
	// end has returned, it reports nothing more.
	Watch(pattern *resource.List, w *database.Watch) (end func())
	// Addr returns the address of this node in the cluster, HOST:PORT.
	Addr() string
}

// Attach lets the server ask r for what it does not hold. A Remote that was attached before must
// have been closed.
func (s *Server) Attach(r Remote) {
	s.remote.Store(&r)
	s.mu.Lock()
	s.db.ImageAlone(false)
	s.mu.Unlock()
	s.enrol(r.Addr())
	s.reattach(r)
}

// rest returns the Remote that is attached, nil if there is none.
func (s *Server) rest() Remote {
	if r := s.remote.Load(); r != nil {
		return *r
	}
	return nil
}

// A Server answers for one node. Listen makes a server at a Unix socket.
type Server struct {
	id     *Identity
	db     *database.DB
	log    *slog.Logger
	daemon bool
	begun  atomic.Pointer[time.Time] // when contexts could first connect; nil before
	offers offers                    // what contexts are offering again; see settle.go
	remote atomic.Pointer[Remote]    // see Attach; nil until then

	late     bool            // see takingOver
	opening  context.Context // nil: context.Background()
	begin    func(s *Server, late bool) (end func(handOver bool), err error)
	leave    func(handOver bool) // what begin returned; nil if the server is no member
	labels   Labels
	labelled bool // labels were given

	mu     sync.Mutex
	closed bool
	gave   bool                   // the server gave way to a daemon
	told   Terms                  // as SetTerms was told
	conns  map[net.Conn]struct{}  // open connections, to be closed at the end
	lives  map[resource.GID]*life // by context
	busy   sync.WaitGroup         // connections, and other goroutines of the server
	life   context.Context        // ends when Close begins; end ends it
	end    context.CancelFunc
	node   *node.Listener
	often  *ratelog.Logger // limits log lines that can be repeated
	check  time.Duration   // the interval at which node checks its files; shorter in tests
	count  *counts

	wmu     sync.Mutex // taken before mu
	watches map[*attached]struct{}

	images images
}

// life is the life connection of a context.
type life struct {
	superseded bool // the context has joined again over another connection
	member     bool // the context would become the cluster's member in place of this server

	mu  sync.Mutex // guards out: terms that change, and before that the answer to join
	out wire.Conn
}

// NewServer makes a server without a socket. ServeConn gives it a connection to serve.
func NewServer(opts ...Option) *Server {
	s := newServer(opts)
	s.enrol("")
	s.opens()
	return s
}

// newServer makes a server that has not begun: its node is not registered, and contexts cannot
// come.
func newServer(opts []Option) *Server {
	s := &Server{conns: map[net.Conn]struct{}{}, lives: map[resource.GID]*life{}, watches: map[*attached]struct{}{}, count: newCounts()}
	for _, o := range opts {
		o(s)
	}
	if s.id == nil {
		s.id = NewIdentity()
	}
	if s.db == nil {
		s.db = database.New()
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.often = ratelog.New(s.log)
	s.life, s.end = context.WithCancel(context.Background())
	s.node = node.New(s.id, node.Config{Daemon: s.daemon, Log: s.log, Check: s.check, Serve: s.ServeConn, End: func() { s.Close() }})
	return s
}

// Database returns the database that holds the node's resources.
func (s *Server) Database() *database.DB { return s.db }

// Node returns the node's number.
func (s *Server) Node() resource.NodeID { return s.id.Node }

// ServeConn serves one connection of a context until the connection ends, and closes nc.
func (s *Server) ServeConn(nc net.Conn) { s.serveConn(nc, s.serveContext) }

// serveConn calls serve with nc, and logs why it ended. Close closes nc and waits for serveConn.
func (s *Server) serveConn(nc net.Conn, serve func(*wire.Conn) error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		nc.Close()
		return
	}
	s.conns[nc] = struct{}{}
	s.busy.Add(1)
	s.mu.Unlock()
	defer func() {
		nc.Close()
		s.mu.Lock()
		delete(s.conns, nc)
		s.mu.Unlock()
		s.busy.Done()
	}()
	err := serve(wire.NewConn(nc))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		s.often.Info("", "directory: connection ended", "err", err)
	}
}

// serveContext reads the greeting of a connection and serves the connection by its kind.
func (s *Server) serveContext(c *wire.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	kind, err := c.ReadGreeting()
	if err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Time{})
	switch kind {
	case wire.KindLife:
		return s.serveLife(c)
	case wire.KindAsk:
		return s.serveAsk(c)
	case wire.KindWatch:
		return s.serveWatch(c)
	case wire.KindYield:
		return s.serveYield(c)
	case wire.KindImage:
		return s.serveImage(c)
	}
	return fmt.Errorf("%w: kind %d", ErrProtocol, kind)
}

// serveLife serves a life connection until it ends. Then the context's resources are deleted,
// unless the context has joined again over another connection or the server is closed.
func (s *Server) serveLife(c *wire.Conn) error {
	var offering *offer
	if s.Follows() {
		if offering = s.offers.arrives(); offering != nil {
			defer s.offers.ended(offering)
		}
	}
	m, err := c.ReadMessage()
	if err != nil {
		return err
	}
	self, again, list, err := s.join(&m)
	if err != nil {
		_ = c.SendError(m.ID, err)
		return err
	}
	_, member := list.Get(wire.JoinMember)
	if offering != nil && !s.offers.joins(offering, again, announces(&list)) {
		offering = nil
	}
	me := &life{member: member, out: *wire.NewConn(c.Conn)}
	me.mu.Lock()
	s.mu.Lock()
	if old := s.lives[self]; old != nil {
		old.superseded = true
	}
	s.lives[self] = me
	s.mu.Unlock()
	s.count.joined.Add(1)
	defer func() {
		s.mu.Lock()
		if s.lives[self] == me {
			delete(s.lives, self)
		}
		over := me.superseded || s.closed
		s.mu.Unlock()
		if !over {
			n := s.db.DeleteOwner(self)
			s.count.ended.Add(1)
			s.count.lapsed.Add(uint64(n))
			s.log.Debug("directory: context ended", "context", self, "resources", n)
		}
	}()
	c.Begin(wire.MsgJoined, m.ID)
	c.GID(self)
	token, terms := s.id.Token(self), s.terms()
	told := terms.list()
	c.Append(token[:])
	c.Append(told.Wire())
	err = c.Send()
	me.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		m, err := c.ReadMessage()
		if err != nil {
			return err
		}
		if m.Type == wire.MsgLeave {
			return nil
		}
		rev, err := s.change(self, &m)
		s.count.change(m.Type, err)
		if offering != nil && m.Type == wire.MsgRegister && !s.offers.came(offering) {
			offering = nil
		}
		if errors.Is(err, ErrProtocol) {
			_ = c.SendError(m.ID, err)
			return err
		}
		if err != nil {
			err = c.SendError(m.ID, err)
		} else {
			c.Begin(wire.MsgDone, m.ID)
			c.U64(rev)
			err = c.Send()
		}
		if err != nil {
			return err
		}
	}
}

// join returns the context that joins with m. again reports whether the context had its identifier
// before. l is the list of the join, a view of m.
func (s *Server) join(m *wire.Message) (g resource.GID, again bool, l resource.List, err error) {
	p := m.Parser()
	g, token := p.GID(), p.Take(32)
	l, err = p.List()
	if err != nil || m.Type != wire.MsgJoin {
		return g, false, l, fmt.Errorf("%w: not a join", ErrProtocol)
	}
	if g.IsZero() {
		g, err = s.id.Next()
		return g, false, l, err
	}
	if want := s.id.Token(g); !hmac.Equal(want[:], token) || g != g.Context() {
		return g, false, l, fmt.Errorf("%w: %v", ErrDenied, g)
	}
	return g, true, l, nil
}

// change carries out a change that a context asks for in one of its own resources.
func (s *Server) change(self resource.GID, m *wire.Message) (rev uint64, err error) {
	p := m.Parser()
	id := p.GID()
	if id.Context() != self && !p.IsShort() {
		return 0, fmt.Errorf("%w: %v is not of context %v", ErrNotOwner, id, self)
	}
	switch m.Type {
	case wire.MsgRegister:
		rev = p.U64()
		l, err := p.List()
		if err != nil {
			return 0, err
		}
		if rev == 0 {
			return s.db.Put(id, self, &l)
		}
		return rev, s.db.Offer(id, self, rev, &l)
	case wire.MsgUpdate:
		expect := p.U64()
		l, err := p.List()
		if err != nil {
			return 0, err
		}
		return s.db.Update(id, expect, &l)
	case wire.MsgDelete:
		if err := p.End(); err != nil {
			return 0, err
		}
		return 0, s.db.Delete(id)
	}
	return 0, fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
}

// Close stops serving. When it returns, connections are closed, sockets are removed and the node's
// lock is free. The database stays as it is.
func (s *Server) Close() error { return s.closeOf(resource.GID{}) }

// closeOf is Close for the context self that runs the server and ends with it. The context self
// does not go on as the member, whether or not its leave has been read.
func (s *Server) closeOf(self resource.GID) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	handOver := s.gave
	for id, l := range s.lives {
		// A daemon that is restarted hands over if contexts go on.
		handOver = handOver || id != self && (l.member || s.daemon)
	}
	s.end()
	for nc := range s.conns {
		nc.Close()
	}
	s.mu.Unlock()
	s.dropImage() // a context that reads the index asks the server, and finds that it has ended
	s.node.Stop()
	s.busy.Wait()
	s.dropImage() // the index may have been made meanwhile
	s.ends(handOver)
	return s.node.Unlock()
}
