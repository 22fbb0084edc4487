// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// Order of locks. Those of this package are not nested in each other, except that results.mu is
// held while overflow.opening is taken. Four are held over calls of other packages:
//
//   - Server.inline while a handler runs, and so over any lock that the handler takes;
//   - Server.mu while a call begins or ends the use of a pool, which locks the pool;
//   - callers.mu while a context is cancelled, whose functions (context.AfterFunc) run in goroutines
//     of their own;
//   - results.mu of a stream while a batch is sent, which may wait for memory and for room at the
//     caller, and exposes or releases memory of package bulk.

// A Server is a provider of calls: a resource of rocl with the functions that answer requests to
// it. A process may have several servers, each with attributes of its own, by which callers find
// it. Its methods may be called concurrently.
//
// One goroutine at a time receives requests. Each handler runs in a goroutine of its own, unless
// [Inline] or [InPool] says otherwise: the goroutine that has received the request runs the
// handler, while another one receives. Afterwards it waits to receive again:
//
//	            request for a handler in a goroutine
//	receiving ───────────────────────────────────────► running the handler
//	    ▲                                                 │
//	    └──────────── idle, at most mostIdle ◄────────────┘
//	     the receiving one runs a handler
type Server struct {
	c          *rocl.Context
	r          *rocl.Resource
	log        *slog.Logger
	errorNames errorNames
	around     []Interceptor

	life     context.Context // of handlers
	end      context.CancelCauseFunc
	receiver sync.WaitGroup
	turn     chan struct{} // a value makes an idle goroutine the receiving one; closed when none receives any more
	idle     atomic.Int32  // goroutines that wait for turn
	running  tally         // requests
	requests sync.Pool
	callers  callers
	overflow overflow
	inline   sync.Mutex    // held while an Inline handler runs
	unknown  atomic.Uint64 // requests for calls that the server does not offer
	caughtUp time.Time     // when catchUp returned last; used by the receiving goroutine only

	drainMost    time.Duration // of Serve
	registration []rocl.RegisterOption
	loads        []*publishedLoad
	stopped      chan struct{} // closed when the server receives no more
	failure      error         // why it does not; set before stopped is closed

	first        []func(*Server) error              // of WithCalls
	mu           sync.Mutex                         // held to replace names
	names        atomic.Pointer[map[uint64]*method] // calls by identifier; a stored map does not change
	hasLeftPools bool                               // no call enters a pool any more; guarded by mu
}

// A ServerOption changes one default of [NewServer].
type ServerOption func(*Server)

// WithLogger sets the logger of the server. It logs handlers that panic, damaged requests, and what
// bulk.WithLogger logs for large values.
// Nothing is logged by default, or with a nil l.
func WithLogger(l *slog.Logger) ServerOption {
	return func(s *Server) {
		if l != nil {
			s.log = l
		}
	}
}

// Attributes of a server's resource, besides those of the program.
const (
	attrServer = "rpc" // its value is the version
)

// WithCalls makes f register the server's calls, by [Register] and [RegisterStream], before the
// server can be found. While f runs, the server has no resource: ID is zero, Resource is nil and
// Close fails with errors.ErrUnsupported. If f fails, NewServer fails with its error.
//
// A handler that f has registered may run before NewServer has returned, so it must not use a
// variable that the program sets to the result of NewServer. It uses the server that f was given,
// or that of [InfoFrom]. Interceptors find the server in their Invocation.
func WithCalls(f func(*Server) error) ServerOption {
	return func(s *Server) { s.first = append(s.first, f) }
}

// NewServer registers a resource with the attributes a and rpc=1, and answers calls to it until
// Close. From then on the server is found: a caller that finds it before the program has registered
// a call gets ErrUnknownCall for it, unless that was registered by [WithCalls]. NewServer fails as
// [rocl.Context.Register] does.
func NewServer(ctx context.Context, c *rocl.Context, a rocl.Attributes, opts ...ServerOption) (*Server, error) {
	s := &Server{c: c, log: slog.New(slog.DiscardHandler), turn: make(chan struct{}), stopped: make(chan struct{}), drainMost: drainMost}
	s.life, s.end = context.WithCancelCause(context.Background())
	s.names.Store(&map[uint64]*method{})
	s.requests.New = func() any { return &request{s: s} }
	s.overflow.init(c)
	for _, o := range opts {
		if o != nil {
			o(s)
		}
	}
	s.overflow.log = s.log
	if len(s.loads) > 0 {
		s.running.changed = make(chan struct{}, 1)
	}
	attrs, err := servers(a)
	if err == nil {
		err = Register(s, ownStats, func(context.Context, struct{}) ([]MethodStats, error) { return s.Stats(), nil })
	}
	if err == nil {
		err = Register(s, ownTypes, func(context.Context, struct{}) ([]MethodTypes, error) { return s.Types(), nil })
	}
	for _, f := range s.first {
		if err == nil && f == nil {
			err = errors.New("WithCalls without a function")
		}
		if err == nil {
			err = f(s)
		}
	}
	if err == nil {
		err = s.firstLoads(attrs)
	}
	if err == nil {
		s.r, err = c.Register(ctx, attrs, s.registration...)
	}
	if err != nil {
		s.leavePools()
		return nil, fmt.Errorf("rpc: new server: %w", err)
	}
	s.r.SetActivity(rocl.Activity{Handlers: s.activity})
	localServers.Store(s.ID(), s)
	s.receiver.Go(s.receive)
	if len(s.loads) > 0 {
		s.receiver.Go(s.publishLoads)
	}
	return s, nil
}

// ID returns the identifier of the server's resource, which callers call.
func (s *Server) ID() rocl.GID {
	if s.r == nil { // in the function of WithCalls
		return rocl.GID{}
	}
	return s.r.ID()
}

// Resource returns the server's resource, whose attributes may be changed.
func (s *Server) Resource() *rocl.Resource { return s.r }

// Close ends the server: requests that arrive from now on fail with ErrClosed or rocl.ErrGone. It
// waits until the running handlers have returned and their replies are sent. When ctx ends, Close
// ends the contexts of the handlers, and the streams of results, with ErrClosed. It no longer waits
// for them, and returns the cause. A second Close does nothing.
func (s *Server) Close(ctx context.Context) error {
	if s.r == nil { // in the function of WithCalls
		return fmt.Errorf("rpc: close a server that does not serve yet: %w", errors.ErrUnsupported)
	}
	err := s.running.close(ctx)
	s.end(ErrClosed)
	for _, r := range s.callers.streams() { // otherwise their callers get rocl.ErrGone
		r.results.close(ErrClosed)
	}
	localServers.Delete(s.ID())
	s.leavePools()
	if e := s.r.Close(); err == nil { // also if ctx has ended
		err = e
	}
	if e := s.overflow.close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("rpc: close server %v: %w", s.ID(), err)
	}
	s.receiver.Wait()
	return nil
}

// leavePools ends the use of all pools. The server must already refuse requests.
func (s *Server) leavePools() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasLeftPools = true
	for _, m := range *s.names.Load() {
		m.executor.exit()
	}
}

// A method is a call that a server offers.
type method struct {
	s        *Server
	name     string
	id       uint64
	executor executor
	stats    *methodStats
	// serve decodes the arguments, runs the handler, and returns the reply. It returns nil if the
	// caller does not wait for one.
	serve   func(*request) (*rocl.Buffer, error)
	form    Form
	in, out reflect.Type // of the arguments and the results, or of each of a stream
}

// offered returns the method with an identifier. It fails if the server offers none, or one of
// another form. Then the error says what it offers.
func (s *Server) offered(id uint64, f Form) (*method, error) {
	m := (*s.names.Load())[id]
	switch {
	case m == nil:
		s.unknown.Add(1)
		return nil, fmt.Errorf("%w: it offers %s", ErrUnknownCall, s.offers())
	case m.form == f:
		return m, nil
	case m.form == FormStream && f == FormCall:
		return nil, ErrStream
	}
	return nil, fmt.Errorf("%w as a %v: it is a %v", ErrUnknownCall, f, m.form)
}

// now returns the call as it is after it was moved to its present place, or nil if it is no longer
// offered.
func (m *method) now() *method { return (*m.s.names.Load())[m.id] }

// check returns an error if the handlers of m cannot run in their place.
func (m *method) check() error {
	switch {
	case m.form != FormCall && m.executor.isInline:
		return fmt.Errorf("a stream cannot be Inline: %w", errors.ErrUnsupported)
	case m.executor.lacksPool:
		return errors.New("InPool without a pool")
	}
	return nil
}

// register adds m.
func (s *Server) register(m *method) error {
	if m.id = callID(m.name); m.id < firstCall {
		return fmt.Errorf("rpc: register %q: %w: %d is a tag of this package", m.name, ErrCollision, m.id)
	}
	if err := m.check(); err != nil {
		return fmt.Errorf("rpc: register %q: %w", m.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.names.Load()
	switch had := old[m.id]; {
	case s.hasLeftPools:
		return fmt.Errorf("rpc: register %q: %w", m.name, ErrClosed)
	case had == nil:
	case had.name == m.name:
		return fmt.Errorf("rpc: register %q: %w", m.name, ErrExists)
	default:
		return fmt.Errorf("rpc: register %q: %w: %q has it too", m.name, ErrCollision, had.name)
	}
	names := maps.Clone(old)
	m.executor.enter(s, m.name)
	names[m.id] = m
	s.names.Store(&names)
	return nil
}

// Deregister withdraws a call. Requests that the server has begun to handle are answered. Later
// requests fail with ErrUnknownCall. Deregister reports whether the call was registered.
func (s *Server) Deregister(name string) bool {
	id := callID(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.names.Load()
	if old[id] == nil {
		return false
	}
	names := maps.Clone(old)
	delete(names, id)
	s.names.Store(&names)
	old[id].executor.exit()
	return true
}

// receive takes requests until the resource is closed. It runs the Inline handlers, and those in a
// goroutine of their own after it has let another goroutine receive.
func (s *Server) receive() {
	isReceiving := true
	defer func() {
		if isReceiving { // a handler has ended the goroutine (runtime.Goexit)
			s.receiver.Go(s.receive)
		}
	}()
	for {
		m, err := s.r.Recv(context.Background())
		if err != nil {
			if !errors.Is(err, rocl.ErrClosed) {
				// Cause: the context or its memory fails: see `err`. Remedy: close the server, and
				// make another one.
				s.log.Error("rpc: the server cannot receive", "server", s.ID(), "err", err)
			}
			isReceiving = false
			s.failure = err
			close(s.stopped)
			close(s.turn)
			return
		}
		if s.control(m) {
			continue
		}
		own, waits := s.begin(m)
		if waits != nil {
			s.controls(waits)
		}
		if own == nil {
			continue
		}
		isReceiving = false
		s.passOn()
		own.run()
		if isReceiving = s.awaitTurn(); !isReceiving {
			return
		}
	}
}

const (
	old         = 20 * time.Millisecond  // the age of a request from which its caller may have given it up
	catchUpMost = 50 * time.Millisecond  // how long catchUp reads at most
	catchUpRest = 500 * time.Millisecond // the least time between two catchUps
	catchUpIdle = 5 * time.Millisecond   // when nothing has come for so long, all has come
	catchUpPoll = 50 * time.Microsecond  // between two reads
)

// catchUp reads what has arrived, before an old request starts: this process may have stood still
// for a while, and the cancellations of the requests that wait come behind them. The receiving
// goroutine calls it.
//
// catchUp polls, because no event says that all has come. A caller does not know that this process
// stood still, so no mark follows its last cancellation. A receive would not end with a
// cancellation either, which wakes no receiver. The pause between two polls leaves the processor to
// a goroutine that reads already, and to callers on this machine that have not sent the rest.
func (s *Server) catchUp() {
	now := time.Now()
	if now.Sub(s.caughtUp) < catchUpRest {
		return
	}
	for end, quiet := now.Add(catchUpMost), now; now.Before(end) && now.Sub(quiet) < catchUpIdle; now = time.Now() {
		if s.c.Poll() {
			quiet = now
		}
		time.Sleep(catchUpPoll)
	}
	s.caughtUp = now
}

// mostIdle is how many goroutines keep their stack, grown by handlers, for further ones.
const mostIdle = 16

// passOn makes another goroutine the receiving one.
func (s *Server) passOn() {
	select {
	case s.turn <- struct{}{}:
	default:
		s.receiver.Go(s.receive)
	}
}

// awaitTurn waits to be the receiving goroutine. It reports false if enough goroutines wait, or
// none receives any more.
func (s *Server) awaitTurn() (receives bool) {
	if s.idle.Add(1) <= mostIdle {
		_, receives = <-s.turn
	}
	s.idle.Add(-1)
	return receives
}

// controls handles control messages until ctx ends, while a pool waits for room. Requests wait in
// the mailbox, in order. Running calls can be cancelled, and get results.
func (s *Server) controls(ctx context.Context) {
	for ctx.Err() == nil {
		m, err := s.r.Recv(ctx, rocl.Tags(0, firstCall-1))
		switch {
		case errors.Is(err, rocl.ErrClosed):
			return
		case err == nil && !s.control(m):
			s.refuse(m, flagsOf(m.Bytes()), ErrUnknownCall)
		}
	}
}

// control handles m, and reports true, if m is a message of the package itself and no request.
func (s *Server) control(m *rocl.Message) bool {
	switch {
	case m.IsGone():
		s.callers.gone(m.From(), m.GoneErr())
	case m.Tag() == tagCancel:
		s.callers.cancel(m)
	case m.Tag() == tagReceipt:
		s.callers.receipt(m)
	case m.Tag() == tagNext:
		s.receiver.Go(func() { s.more(m) }) // more releases m
		return true
	case m.Tag() == tagItems:
		s.items(m)
		return true
	default:
		return false
	}
	m.Release()
	return true
}

// more answers a message with tagNext. It owns m.
func (s *Server) more(m *rocl.Message) {
	number, flags, ok := parseControl(m.Bytes())
	if r := s.callers.stream(m.From(), number); ok && r != nil {
		r.results.next(m)
		return
	}
	why := cmp.Or(context.Cause(s.life), context.Canceled)
	if s.life.Err() == nil && s.callers.isLost(m.From(), number) {
		why = errLost
	}
	s.refuse(m, flags, fmt.Errorf("%w: the stream has ended", why))
}
