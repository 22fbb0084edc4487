// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
)

// Errors a transport returns, wrapped with what was being done to what.
var (
	ErrClosed     = errors.New("subsys: closed")
	ErrAddress    = errors.New("subsys: address not of this transport")
	ErrNoPeer     = errors.New("subsys: nobody listens there")
	ErrPeerClosed = errors.New("subsys: peer closed the connection")
	ErrProtocol   = errors.New("subsys: protocol violation")

	// ErrUnavailable says that this machine has not what a transport needs.
	ErrUnavailable = errors.New("subsys: transport cannot be had here")
)

// A Transport makes ports. It holds no state of a context: one value may serve
// many.
type Transport interface {
	// Name is the scheme of the transport's addresses: "tcp", "inproc".
	Name() string
	// Listen opens a port. addr is an address of this transport, or "" for
	// one chosen by it. Accepted conns are announced to cfg.Accept.
	Listen(addr string, cfg Config) (Port, error)
}

// Config is what a context gives each of its ports.
type Config struct {
	Pool   *buffers.Pool     // where received payloads are put
	Poller func() *Poller    // the context's descriptors; made on first use; nil once it is closed
	Accept func(c Conn) Sink // called once a conn, before any of its frames; nil refuses it
	Logger *slog.Logger      // never nil
	Count  *Counters         // never nil
	Key    any               // by which other contexts of this process find
	Here   any               // this one, see LocalPort

	// Progress is held by the goroutine that makes progress: that calls the Poller, and
	// so sources, which call sinks. A port takes it before it ends what they use.
	Progress sync.Locker
}

// A Port is one context's end of a transport.
type Port interface {
	// Addr is the URL under which other contexts reach this port.
	Addr() string
	// Reaches says, without asking anybody, whether addr may be dialled from
	// here: another process's in-process address may not.
	Reaches(addr string) bool
	// Dial connects to addr. It may block until ctx ends. The sink is called
	// only after Dial returned and Start was called on the conn.
	Dial(ctx context.Context, addr string, s Sink) (Conn, error)
	// Close stops listening, frees the address and closes every conn; it
	// returns when the port's goroutines have ended.
	Close() error
}

// A LocalPort is a port to the other contexts of this process, which need no conns: who
// knows them puts messages where they belong. Its Dial fails.
type LocalPort interface {
	Port
	// Local returns what the port with the key was given as Config.Here, and its address;
	// nil if there is none.
	Local(key any) (here any, addr string)
}

// A Conn carries frames to one peer until it goes down.
type Conn interface {
	// Transport is the name of the transport, for counters and routes.
	Transport() string
	// Remote is the peer's address, for logs.
	Remote() string
	// Start lets frames flow to the sink. Dialled conns need it once.
	Start()
	// Send hands frames to the conn, in order, and returns how many it took.
	// It never blocks: fewer than len(fs) means the wire is full, and the
	// sink's Writable is called when there is room again. A frame taken is
	// not yet delivered; its payload must stay as it is until then. Calls of
	// Send do not overlap.
	Send(fs []Frame) (n int, err error)
	// Close ends the conn; the sink is not called again, but for a call under
	// way. It does not wait. Idempotent.
	Close() error
}

// An Admitter is a Conn that lets its peer use little of this process until the sink
// knows the peer. The sink calls Admit when the handshake has succeeded.
type Admitter interface {
	Conn
	Admit()
}

// A Prober is a Conn over a network, which can fall silent without an end of the
// connection.
type Prober interface {
	Conn
	// Unanswered reports whether the peer's machine has not yet answered
	// something that was sent to it, and how long ago it answered last. The
	// kernel answers: it does not matter whether the peer's process runs.
	Unanswered() (owes bool, heard time.Duration)
}

// A Silence counts for how long a peer's machine has been silent, from what
// [Prober.Unanswered] says of it now and then. The zero value is ready for use.
type Silence struct {
	since time.Time // when an answer was first owed, or the last one came; zero: none is owed
}

// Observe takes what Unanswered says at the time now and returns for how long
// nothing has come though an answer is owed. The last answer may be much older than
// that: the time before anything was owed does not count.
func (s *Silence) Observe(now time.Time, owes bool, heard time.Duration) time.Duration {
	last := now.Add(-heard)
	switch {
	case !owes:
		s.since = time.Time{}
		return 0
	case s.since.IsZero():
		s.since = now
	case last.After(s.since):
		s.since = last
	}
	return now.Sub(s.since)
}

// A Streamer is a Conn over which the bytes of a large frame keep other frames waiting,
// and are lost when it breaks between them. The dispatcher divides large messages for it.
type Streamer interface {
	Conn
	Streams()
}

// A Sink is what a conn delivers to. Frames, Room and Writable are called by the goroutine
// that makes progress, see [Config.Progress]. Down may be called by any, also while Frames
// is under way.
type Sink interface {
	// Frames hands over whole frames in order. fs and the payloads are lent
	// for the call; what is kept is retained through its Buf. An error cuts
	// the conn. Where [buffers.IsTemporary] is true of it, the sink has taken none
	// of the frames, and a conn may instead hand them over again when buffers of
	// the pool are released.
	Frames(c Conn, fs []Frame) error
	// Room returns the buffer into which the payload of a large frame is to
	// be read, of at least h.Len bytes; its reference passes to the conn. An
	// error cuts the conn: this is where an announced length is judged before
	// memory is given to it. Without buffer and error the payload is skipped:
	// its frame comes with Data and Buf nil.
	Room(c Conn, h *Header) (*buffers.Buffer, error)
	// Writable says that Send, which took too little, may be tried again.
	Writable(c Conn)
	// Down says that the conn is gone because of err; no call is made after
	// it. It is not called after Close.
	Down(c Conn, err error)
}

// Counters count what messages cost; each is monotonic and read with Load.
type Counters struct {
	Copies   atomic.Uint64 // payloads copied in user space
	CopiedB  atomic.Uint64 // bytes of them
	Reads    atomic.Uint64 // system calls that read, also those that found nothing
	Writes   atomic.Uint64 // system calls that write
	Polls    atomic.Uint64 // system calls that asked what is ready
	Sleeps   atomic.Uint64 // times a waiter slept in the kernel or parked
	Wakeups  atomic.Uint64 // times a sleeping waiter was woken by another goroutine
	ConnsIn  atomic.Uint64
	ConnsOut atomic.Uint64
}
