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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// settleTime is how long a server that follows another holds a no back: the
// contexts its predecessor knew are about to offer what they own.
const (
	settleTime = 300 * time.Millisecond
	settleStep = 5 * time.Millisecond
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
	Trace(ctx context.Context, way Way, pattern *resource.List) (Trace, error)
	// Watch tells w what the others hold that matches, and what happens to it,
	// until end is called; it holds w until it has told what there is. When end
	// returns, w is told nothing more.
	Watch(pattern *resource.List, w *database.Watch) (end func())
	Addr() string // of this node in the cluster, HOST:PORT
}

// Attach lets the server ask r for what it does not hold. Who was attached
// before has been closed.
func (s *Server) Attach(r Remote) {
	s.mu.Lock()
	s.remote = r
	s.mu.Unlock()
	s.enrol(r.Addr())
	s.reattach(r)
}

// rest is the rest of the cluster, nil if there is none.
func (s *Server) rest() Remote {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

// find looks here, then elsewhere. An error says that there is no certain answer.
func (s *Server) find(ctx context.Context, pattern *resource.List) (r database.Record, ok bool, err error) {
	if r, ok, err = s.patiently(ctx, func() (database.Record, bool) { return s.db.Find(pattern) }); ok || err != nil {
		return r, ok, err
	}
	remote := s.rest()
	if remote == nil {
		return r, false, nil
	}
	r, err = remote.Find(ctx, pattern)
	return certain(r, err)
}

// lookup is find by identifier: what this node minted is nowhere else.
func (s *Server) lookup(ctx context.Context, id resource.GID, pattern *resource.List) (r database.Record, ok bool, err error) {
	if id.Node() == s.id.Node {
		return s.patiently(ctx, func() (database.Record, bool) { return s.db.Get(id) })
	}
	if r, ok = s.db.Get(id); ok {
		return r, true, nil
	}
	remote := s.rest()
	if remote == nil {
		return r, false, nil
	}
	r, err = remote.Lookup(ctx, id, pattern)
	return certain(r, err)
}

func certain(r database.Record, err error) (database.Record, bool, error) {
	if errors.Is(err, ErrNotFound) {
		return r, false, nil
	}
	return r, err == nil, err
}

// direct is ask for a client in this process. ErrClosed says that the server is
// none any more, and somebody else is.
func (s *Server) direct(ctx context.Context, pattern *resource.List, ask func() (database.Record, bool, error)) (Answer, error) {
	r, ok, err := ask()
	switch {
	case s.life.Err() != nil:
		return Answer{}, ErrClosed
	case err != nil:
		return Answer{}, err
	case !ok:
		return Answer{}, ErrNotFound
	case r.ID.Node() != s.id.Node: // as it came, it belongs to nobody else
	case pattern.Complete():
		r.Attrs = r.Attrs.Clone()
	default:
		l := pattern.Clone()
		l.Fill(&r.Attrs)
		r.Attrs = l
	}
	return Answer(r), nil
}

// A Server answers for one node. See Listen for one at a Unix socket.
type Server struct {
	id     *Identity
	db     *database.DB
	log    *slog.Logger
	daemon bool
	begun  atomic.Pointer[time.Time] // when contexts could come; nil before

	late     bool
	begin    func(s *Server, late bool) (end func(handOver bool), err error)
	leave    func(handOver bool) // what begin returned
	labels   Labels
	labelled bool // labels were given

	mu     sync.Mutex
	closed bool
	gave   bool // way to a daemon
	told   Terms
	conns  map[net.Conn]struct{}
	lives  map[resource.GID]*life
	remote Remote
	busy   sync.WaitGroup
	life   context.Context
	end    context.CancelFunc
	bound  []*socket
	count  *counts

	wmu     sync.Mutex // above mu
	watches map[*attached]struct{}
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
		s.log.Info("directory: connection ended", "err", err)
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
	}
	return fmt.Errorf("%w: kind %d", ErrProtocol, kind)
}

// serveLife serves a context for as long as it lives.
func (s *Server) serveLife(c *codec) error {
	m, err := c.read()
	if err != nil {
		return err
	}
	self, member, err := s.join(&m)
	if err != nil {
		_ = c.sendError(m.id, err)
		return err
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
	list := terms.list()
	c.bytes(token[:])
	c.bytes(list.Wire())
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

func (s *Server) join(m *message) (g resource.GID, member bool, err error) {
	p := parser{b: m.body}
	g, token := p.gid(), p.take(32)
	l, err := p.list()
	if err != nil || m.typ != msgJoin {
		return g, false, fmt.Errorf("%w: not a join", ErrProtocol)
	}
	_, member = l.Get(offerMember)
	if g.IsZero() {
		g, err = s.id.next()
		return g, member, err
	}
	if want := s.id.token(g); !hmac.Equal(want[:], token) || g != g.Context() {
		return g, false, fmt.Errorf("%w: %v", ErrDenied, g)
	}
	return g, member, nil
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

// serveAsk answers questions, one at a time.
func (s *Server) serveAsk(c *codec) error {
	var cur cursor
	defer cur.stop()
	var pattern resource.List
	for {
		m, err := c.read()
		if err != nil {
			return err
		}
		begun := time.Now()
		p := parser{b: m.body}
		var rec database.Record
		var ok bool
		var far error // the question was well, and could not be answered for sure
		l := pattern
		switch m.typ {
		case msgFind:
			if l, err = p.list(); err == nil {
				rec, ok, far = s.find(s.life, &l)
			}
		case msgLookup:
			id := p.gid()
			if l, err = p.list(); err == nil {
				rec, ok, far = s.lookup(s.life, id, &l)
			}
		case msgStart:
			if l, err = p.list(); err == nil {
				pattern = l.Clone()
				cur.stop()
				s.settle() // what is offered again after the cursor began may be missed
				cur = cursor{here: s.db.Cursor(&pattern)}
				rec, ok, far = cur.next(s, &pattern)
			}
		case msgNext:
			if cur.here == nil {
				err = fmt.Errorf("%w: next before start", ErrProtocol)
			} else {
				rec, ok, far = cur.next(s, &pattern)
			}
		case msgTrace:
			if err = s.trace(c, &m); err == nil {
				continue
			}
		case msgStop:
			cur.stop()
			cur, pattern = cursor{}, resource.List{}
			continue
		default:
			err = fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
		}
		s.count.question(m.typ, ok, errors.Join(err, far), time.Since(begun))
		switch {
		case err != nil:
			_ = c.sendError(m.id, err)
			return err
		case s.life.Err() != nil:
			return nil // cut short by our end: let the next server be asked
		case far != nil:
			err = c.sendError(m.id, far)
		case !ok && (m.typ == msgStart || m.typ == msgNext):
			err = c.sendEnd(m.id, &cur.cov)
		case !ok:
			err = c.sendError(m.id, ErrNotFound)
		default:
			c.begin(msgAnswer, m.id)
			c.out = AppendAnswer(c.out, &rec, &l)
			err = c.send()
		}
		if err != nil {
			return err
		}
	}
}

// cursor is the place of a question with several answers: first what is here,
// then what is elsewhere.
type cursor struct {
	here  *database.Cursor
	there func() (database.Record, error, bool)
	end   func()
	cov   Coverage
}

func (k *cursor) next(s *Server, pattern *resource.List) (r database.Record, ok bool, err error) {
	if k.there == nil {
		if r, ok = k.here.Next(); ok {
			return r, true, nil
		}
		remote := s.rest()
		k.cov.Covered = 1
		if remote == nil {
			return r, false, nil
		}
		k.there, k.end = iter.Pull2(remote.All(s.life, pattern, &k.cov))
	}
	r, err, ok = k.there()
	return r, ok && err == nil, err
}

func (k *cursor) stop() {
	if k.end != nil {
		k.end()
	}
}

// AppendAnswer writes a resource to b as the body of an answer has it: the
// pattern with what it wants filled in, or all attributes if it wants nothing.
func AppendAnswer(b []byte, r *database.Record, pattern *resource.List) []byte {
	k := codec{out: slices.Grow(b, 40+len(r.Attrs.Wire()))}
	k.gid(r.ID)
	k.gid(r.Owner)
	k.u64(r.Revision)
	if pattern.Complete() {
		k.bytes(r.Attrs.Wire())
		return k.out
	}
	l := pattern.Clone()
	l.Fill(&r.Attrs)
	k.bytes(l.Wire())
	return k.out
}

// Follows says that the node has had another server before.
func (s *Server) Follows() bool { return s.id.Epoch > 1 }

// opens says that contexts can come from now on.
func (s *Server) opens() {
	now := time.Now()
	s.begun.Store(&now)
}

// Settled says that the server knows what its predecessor knew: the contexts
// have had time to offer it again.
func (s *Server) Settled() bool {
	begun := s.begun.Load()
	return !s.Follows() || begun != nil && time.Since(*begun) >= settleTime
}

// patiently asks again while the server is settling. An error says that ctx or
// the server ended first, and is no answer.
func (s *Server) patiently(ctx context.Context, ask func() (database.Record, bool)) (r database.Record, ok bool, err error) {
	for {
		r, ok = ask()
		switch {
		case ok || s.Settled():
			return r, ok, nil
		case s.life.Err() != nil:
			return r, false, ErrClosed
		}
		if err = sleep(ctx, settleStep); err != nil {
			return r, false, err
		}
	}
}

// settle waits until the server has settled, or ended.
func (s *Server) settle() {
	_, _, _ = s.patiently(s.life, func() (r database.Record, ok bool) { return })
}

// watch begins a watch of what is here; what is being offered again comes before
// Synced.
func (s *Server) watch(pattern *resource.List) *database.Watch {
	w := s.db.Watch(pattern)
	if !s.Settled() {
		w.Hold()
		s.busy.Go(func() {
			s.settle()
			w.Release()
		})
	}
	return w
}

func (s *Server) serveWatch(c *codec) error {
	m, err := c.read()
	if err != nil {
		return err
	}
	p := parser{b: m.body}
	l, err := p.list()
	if err != nil || m.typ != msgWatch {
		return fmt.Errorf("%w: not a watch", ErrProtocol)
	}
	l = l.Clone()
	w := s.watch(&l)
	s.count.watch.Add(1)
	end := s.attach(w, &l)
	ctx, cancel := context.WithCancel(s.life)
	s.busy.Add(1)
	go func() { // the client says nothing more: reading sees it go
		defer s.busy.Done()
		_, _ = c.read()
		cancel()
	}()
	defer func() {
		end()
		w.Close()
		c.nc.Close()
		cancel()
	}()
	out := &codec{nc: c.nc}
	for {
		ev, err := w.Next(ctx)
		if err != nil {
			return nil
		}
		out.event(m.id, &ev, &l)
		if err := out.send(); err != nil {
			return err
		}
	}
}

// serveYield gives the node to a daemon: the socket's name and the open lock
// change hands, so that nobody can come between.
func (s *Server) serveYield(c *codec) error {
	s.mu.Lock()
	bound := s.bound
	s.mu.Unlock()
	uc, ok := c.nc.(*net.UnixConn)
	if s.daemon || !ok || len(bound) != 1 {
		return c.sendError(0, ErrInUse)
	}
	s.mu.Lock()
	s.gave = true
	s.mu.Unlock()
	s.log.Info("directory: giving way to a daemon")
	bound[0].unlisten()
	c.begin(msgDone, 0)
	c.u64(0)
	binary.LittleEndian.PutUint32(c.out, uint32(len(c.out)-4))
	_, _, err := uc.WriteMsgUnix(c.out, unix.UnixRights(int(bound[0].lock.Fd())), nil)
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
	for _, b := range bound {
		b.unlisten()
	}
	s.busy.Wait()
	if s.leave != nil {
		s.leave(handOver)
	}
	var err error
	for _, b := range bound {
		err = errors.Join(err, b.unlock())
	}
	return err
}
