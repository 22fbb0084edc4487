// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"crypto/hmac"
	"encoding/binary"
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
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/connlimit"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// An Option changes one default of a server.
type Option func(*Server)

// WithIdentity gives the server its node's identity; random if not given.
func WithIdentity(id *Identity) Option { return func(s *Server) { s.id = id } }

// WithDatabase lets servers share a database: nodes in memory that see each
// other's resources.
func WithDatabase(db *database.DB) Option { return func(s *Server) { s.db = db } }

// WithLogger sends logs to l.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// AsDaemon says that the server is a process of its own: contexts that serve
// give way to it, and it gives way to nobody.
func AsDaemon() Option { return func(s *Server) { s.daemon = true } }

// WithMembership lets a server made by Listen be a member of a cluster. begin
// is called when the server knows its node, before it serves anybody; late
// says that it takes over from another, for contexts that are there: then only
// what makes serving the node impossible is an error. end is called when the
// server has ended; handOver says that somebody else of the node goes on as
// the same member.
func WithMembership(begin func(s *Server, late bool) (end func(handOver bool), err error)) Option {
	return func(s *Server) { s.begin = begin }
}

// Opening returns the context for which Listen waits: a membership that begins
// when it has ended fails.
func (s *Server) Opening() context.Context {
	if s.opening == nil {
		return context.Background()
	}
	return s.opening
}

// within lets Listen end with ctx.
func within(ctx context.Context) Option { return func(s *Server) { s.opening = ctx } }

// takingOver says that the server follows another, for contexts that are there.
func takingOver(late bool) Option { return func(s *Server) { s.late = late } }

// A Remote asks the rest of a cluster for what the node does not hold. Errors
// match ErrNotFound where that is certain, else ErrPartial.
type Remote interface {
	Find(ctx context.Context, pattern *resource.List) (database.Record, error)
	Lookup(ctx context.Context, id resource.GID, pattern *resource.List) (database.Record, error)
	// All yields what matches and says in cov who was asked.
	All(ctx context.Context, pattern *resource.List, cov *Coverage) iter.Seq2[database.Record, error]
	// Trace searches as Find does, or in another way, and tells of it.
	Trace(ctx context.Context, way strategy.Strategy, pattern *resource.List) (Trace, error)
	// Watch tells w what the others hold that matches, and what happens to it,
	// until end is called; it holds w until it has told what there is. When end
	// returns, w is told nothing more.
	Watch(pattern *resource.List, w *database.Watch) (end func())
	Addr() string // of this node in the cluster, HOST:PORT
}

// Attach lets the server ask r for what it does not hold. Who was attached
// before has been closed.
func (s *Server) Attach(r Remote) {
	s.remote.Store(&r)
	s.mu.Lock()
	s.db.ImageAlone(false)
	s.mu.Unlock()
	s.enrol(r.Addr())
	s.reattach(r)
}

// rest is the rest of the cluster, nil if there is none.
func (s *Server) rest() Remote {
	if r := s.remote.Load(); r != nil {
		return *r
	}
	return nil
}

// A Server answers for one node. See Listen for one at a Unix socket.
type Server struct {
	id     *Identity
	db     *database.DB
	log    *slog.Logger
	daemon bool
	begun  atomic.Pointer[time.Time] // when contexts could come; nil before
	offers offers
	missed latecomers
	remote atomic.Pointer[Remote]

	late     bool
	opening  context.Context // nil: context.Background()
	begin    func(s *Server, late bool) (end func(handOver bool), err error)
	leave    func(handOver bool) // what begin returned
	marked   string              // the path of the node that was made a member; see memberSuffix
	labels   Labels
	labelled bool // labels were given

	mu     sync.Mutex
	closed bool
	gave   bool // way to a daemon
	told   Terms
	conns  map[net.Conn]struct{}
	lives  map[resource.GID]*life
	busy   sync.WaitGroup
	life   context.Context
	end    context.CancelFunc
	bound  []*socket
	// displaced is closed when the server ends because another one has its place.
	displaced chan struct{}
	displace  sync.Once
	strangers *connlimit.Set  // at TCP ports
	often     *ratelog.Logger // for lines that can be repeated
	guardStep time.Duration
	count     *counts

	wmu     sync.Mutex // above mu
	watches map[*attached]struct{}

	images images
}

// life is the connection by which a context lives.
type life struct {
	superseded bool
	member     bool // it would take our place in the cluster

	mu  sync.Mutex // of what is said unasked, and of the answer to join before that
	out codec
}

// NewServer makes a server; ServeConn lets it serve.
func NewServer(opts ...Option) *Server {
	s := newServer(opts)
	s.enrol("")
	s.opens()
	return s
}

func newServer(opts []Option) *Server {
	s := &Server{conns: map[net.Conn]struct{}{}, lives: map[resource.GID]*life{}, watches: map[*attached]struct{}{}, count: newCounts(),
		displaced: make(chan struct{}), strangers: connlimit.New(maxStrangers, maxOfSource), guardStep: guardStep}
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
	return s
}

// Database is where the node's resources are.
func (s *Server) Database() *database.DB { return s.db }

// Node is the node's number.
func (s *Server) Node() resource.NodeID { return s.id.Node }

// ServeConn serves one connection of a context until it ends; it closes nc.
func (s *Server) ServeConn(nc net.Conn) { s.serveConn(nc, s.serveContext) }

func (s *Server) serveConn(nc net.Conn, serve func(*codec) error) {
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
	err := serve(newCodec(nc))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		s.often.Info("", "directory: connection ended", "err", err)
	}
}

func (s *Server) serveContext(c *codec) error {
	_ = c.nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	kind, err := c.greeted()
	if err != nil {
		return err
	}
	_ = c.nc.SetReadDeadline(time.Time{})
	switch kind {
	case kindLife:
		return s.serveLife(c)
	case kindAsk:
		return s.serveAsk(c)
	case kindWatch:
		return s.serveWatch(c)
	case kindYield:
		return s.serveYield(c)
	case kindImage:
		return s.serveImage(c)
	}
	return fmt.Errorf("%w: kind %d", ErrProtocol, kind)
}

// serveLife serves a context for as long as it lives.
func (s *Server) serveLife(c *codec) error {
	var offering *offer
	if s.Follows() {
		if offering = s.offers.arrives(); offering != nil {
			defer s.offers.ended(offering)
		}
	}
	m, err := c.read()
	if err != nil {
		return err
	}
	self, again, list, err := s.join(&m)
	if err != nil {
		_ = c.sendError(m.id, err)
		return err
	}
	_, member := list.Get(offerMember)
	if offering != nil && !s.offers.joins(offering, again, announces(&list)) {
		offering = nil
	}
	me := &life{member: member, out: codec{nc: c.nc}}
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
	c.begin(msgJoined, m.id)
	c.gid(self)
	token, terms := s.id.token(self), s.terms()
	told := terms.list()
	c.bytes(token[:])
	c.bytes(told.Wire())
	err = c.send()
	me.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		m, err := c.read()
		if err != nil {
			return err
		}
		if m.typ == msgLeave {
			return nil
		}
		rev, err := s.change(self, &m)
		s.count.change(m.typ, err)
		if offering != nil && m.typ == msgRegister && !s.offers.came(offering) {
			offering = nil
		}
		if errors.Is(err, ErrProtocol) {
			_ = c.sendError(m.id, err)
			return err
		}
		if err != nil {
			err = c.sendError(m.id, err)
		} else {
			c.begin(msgDone, m.id)
			c.u64(rev)
			err = c.send()
		}
		if err != nil {
			return err
		}
	}
}

// join returns who joins with m, whether again, and the list of the join, a view.
func (s *Server) join(m *message) (g resource.GID, again bool, l resource.List, err error) {
	p := parser{b: m.body}
	g, token := p.gid(), p.take(32)
	l, err = p.list()
	if err != nil || m.typ != msgJoin {
		return g, false, l, fmt.Errorf("%w: not a join", ErrProtocol)
	}
	if g.IsZero() {
		g, err = s.id.next()
		return g, false, l, err
	}
	if want := s.id.token(g); !hmac.Equal(want[:], token) || g != g.Context() {
		return g, false, l, fmt.Errorf("%w: %v", ErrDenied, g)
	}
	return g, true, l, nil
}

// change carries out what a context asks for what is its own.
func (s *Server) change(self resource.GID, m *message) (rev uint64, err error) {
	p := parser{b: m.body}
	id := p.gid()
	if id.Context() != self && !p.bad {
		return 0, fmt.Errorf("%w: %v is not of context %v", ErrNotOwner, id, self)
	}
	switch m.typ {
	case msgRegister:
		rev = p.u64()
		l, err := p.list()
		if err != nil {
			return 0, err
		}
		if rev == 0 {
			return s.db.Put(id, self, &l)
		}
		return rev, s.db.Offer(id, self, rev, &l)
	case msgUpdate:
		expect := p.u64()
		l, err := p.list()
		if err != nil {
			return 0, err
		}
		return s.db.Update(id, expect, &l)
	case msgDelete:
		if err := p.end(); err != nil {
			return 0, err
		}
		return 0, s.db.Delete(id)
	}
	return 0, fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
}

// serveYield gives the node to a daemon: the socket's name and the open lock
// change hands, so that nobody can come between.
func (s *Server) serveYield(c *codec) error {
	uc, ok := c.nc.(*net.UnixConn)
	s.mu.Lock()
	bound := s.bound
	refused := s.daemon || s.gave || !ok || len(bound) != 1
	s.gave = s.gave || !refused
	s.mu.Unlock()
	if refused {
		return c.sendError(0, ErrInUse)
	}
	s.log.Info("directory: giving way to a daemon")
	b := bound[0]
	b.unlisten() // from now on the guard leaves the lock as it is
	c.begin(msgDone, 0)
	c.u64(0)
	binary.LittleEndian.PutUint32(c.out, uint32(len(c.out)-4))
	b.mu.Lock()
	_, _, err := uc.WriteMsgUnix(c.out, unix.UnixRights(int(b.lock.Fd())), nil)
	b.mu.Unlock()
	go s.Close()
	return err
}

// Close stops serving: connections are cut, sockets removed, the node's lock is
// free when it returns. The database stays as it is.
func (s *Server) Close() error { return s.closeOf(resource.GID{}) }

// closeOf is Close for the context that serves, which ends with the server: it
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
		handOver = handOver || id != self && (l.member || s.daemon) // which is being restarted if contexts go on
	}
	s.end()
	for nc := range s.conns {
		nc.Close()
	}
	bound := s.bound
	s.mu.Unlock()
	s.dropImage() // who reads it asks us, and finds that we have gone
	for _, b := range bound {
		b.unlisten()
	}
	s.busy.Wait()
	s.dropImage() // it may have been made just then
	s.ends(handOver)
	var err error
	for _, b := range bound {
		err = errors.Join(err, b.unlock())
	}
	return err
}
