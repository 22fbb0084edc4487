// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/resource"
)

// An Option changes one default of a server.
type Option func(*Server)

// WithIdentity gives the server its node's identity. Without it the identity is random.
func WithIdentity(id *Identity) Option { return func(s *Server) { s.id = id } }

// A Database has the records of resources in memory, hashed by their attributes.
type Database = database.DB

// A Watch collects the changes of a database that match a pattern.
type Watch = database.Watch

// NewDatabase returns an empty database.
func NewDatabase() *Database { return database.New() }

// WithDatabase gives the server a database, which several servers may share. That makes nodes in
// memory that see each other's resources.
func WithDatabase(db *database.DB) Option { return func(s *Server) { s.db = db } }

// WithLogger sends the server's log to l.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// WithLiving gives a server in memory, which follows another one, a function that knows the
// contexts of the node. awaits reports whether a context lives for which joined returns false. The
// server denies nothing while awaits returns true, for up to two seconds. A nil awaits is as no
// WithLiving.
func WithLiving(awaits func(joined func(context resource.GID) bool) bool) Option {
	return func(s *Server) {
		if awaits != nil {
			s.awaits = func() bool { return awaits(s.hasJoined) }
		}
	}
}

// AsDaemon says that the server is a process of its own. Contexts that serve give way to such a
// server, and it gives way to no other.
func AsDaemon() Option { return func(s *Server) { s.daemon = true } }

// A Server answers for one node. Listen makes a server at a Unix socket.
//
// Locks are taken in this order:
//
//	ownServer.mu → all that Listen and Close take
//	registrationServer.mu, indexState.mu → Server.mu → locks of the database
//	node's lock of a socket → Server.mu (the guard asks for the cluster's name, or calls resendTerms)
//	node's lock of a socket → all that the function of KeepMet takes
//	Server.wmu → locks of the Remote → database.Watch
//
// The mutexes of offers and peerServer are taken alone. Server.wmu and Server.mu are never held at
// the same time.
type Server struct {
	id      *Identity
	db      *database.DB
	log     *slog.Logger
	daemon  bool
	opened  atomic.Pointer[time.Time] // when contexts could first connect; nil before
	awaits  func() bool               // awaitsContexts, except in tests
	offers  offers                    // what contexts are offering again; see server_recovery.go
	remote  atomic.Pointer[Remote]    // see Attach; nil until then
	summary summary

	isTakeover  bool            // see the option takeover
	opening     context.Context // nil: context.Background()
	beginMember func(s *Server, late bool) (end func(handOver bool), err error)
	met         func() map[resource.NodeID]string // see KeepMet; nil before
	endMember   func(handOver bool)               // what beginMember returned; nil if the server is no member
	alsoAt      []string                          // second paths
	labels      Labels
	labelled    bool                                                             // labels were given
	control     func(ctx context.Context, do string, args []string) (any, error) // see WithControl; nil if there is none

	busy     sync.WaitGroup  // connections, and other goroutines of the server
	lifetime context.Context // ends when Close begins; end ends it
	end      context.CancelFunc
	node     *node.Listener
	often    *ratelog.Logger // limits log lines that can be repeated
	check    time.Duration   // the interval at which node checks its files; shorter in tests
	count    *counts
	index    indexState

	mu           sync.Mutex // guards the following fields up to lost, and registrationServer.superseded
	closed       bool
	isHandedOver bool                                 // the server gave way to a daemon
	terms        Terms                                // of the last SetTerms
	conns        map[net.Conn]struct{}                // open connections, to be closed at the end
	contexts     map[resource.GID]*registrationServer // by context
	lost         []lostProgram                        // the last ones, see noteLost

	wmu     sync.Mutex // guards watches and the end of each
	watches map[*attached]struct{}
}

// NewServer makes a server without a socket. ServeConn gives it a connection to serve.
func NewServer(opts ...Option) *Server {
	s := newServer(opts)
	s.registerNode("")
	s.markOpen()
	return s
}

// newServer makes a server that has not begun: its node is not registered, and contexts cannot
// come.
func newServer(opts []Option) *Server {
	s := &Server{conns: map[net.Conn]struct{}{}, contexts: map[resource.GID]*registrationServer{}, watches: map[*attached]struct{}{}, count: newCounts()}
	s.summary.turn = make(chan struct{}, 1)
	for _, o := range opts {
		if o != nil {
			o(s)
		}
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
	s.lifetime, s.end = context.WithCancel(context.Background())
	if s.awaits == nil {
		s.awaits = s.awaitsContexts
	}
	s.node = node.New(s.id, node.Config{
		Daemon: s.daemon, Log: s.log, Check: s.check, Serve: s.ServeConn, Remade: s.resendTerms, End: func() { s.Close() },
	})
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
		if sockerr.Is(err, syscall.EPIPE) || sockerr.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF) {
			s.log.Debug("directory: connection ended", "err", err) // with its process, of which tellEnd tells
			return
		}
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
	case wire.KindRegistration:
		return s.serveRegistrations(c)
	case wire.KindAsk:
		return s.serveAsk(c)
	case wire.KindWatch:
		return s.serveWatch(c)
	case wire.KindYield:
		return s.serveYield(c)
	case wire.KindIndex:
		return s.serveIndex(c)
	}
	return fmt.Errorf("%w: kind %d", ErrProtocol, kind)
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
	handOver := s.isHandedOver
	for id, l := range s.contexts {
		// A daemon that is restarted hands over if contexts go on.
		handOver = handOver || id != self && (l.member || s.daemon)
	}
	s.end()
	for nc := range s.conns {
		nc.Close()
	}
	s.mu.Unlock()
	s.dropIndex() // a context that reads the index asks the server, and finds that it has ended
	s.node.Stop()
	s.busy.Wait()
	s.dropIndex() // the index may have been made meanwhile
	s.leaveCluster(handOver)
	return s.node.Unlock()
}
