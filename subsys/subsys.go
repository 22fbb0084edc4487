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

// Errors of transports, wrapped with the operation and its object.
var (
	// ErrClosed is returned when the port or the connection was closed in this process.
	ErrClosed = errors.New("subsys: port or connection is closed")
	// ErrAddress is returned for an address that is not of the transport, or not of this node.
	//
	// Cause: no transport of the context can listen at an address of `WithListen`. Remedy: correct
	// it, or add the transport.
	ErrAddress = errors.New("subsys: address is not of this transport")
	// ErrNoPeer is returned by Dial when no port listens at the address.
	ErrNoPeer = errors.New("subsys: no port listens at the address")
	// ErrPeerClosed is given to Down when the peer has closed the connection, or its process has
	// ended.
	ErrPeerClosed = errors.New("subsys: peer closed the connection")
	// ErrProtocol is given to Down when the peer has sent what the protocol does not allow.
	ErrProtocol = errors.New("subsys: peer violated the protocol")
	// ErrUnavailable is returned by Listen when this machine does not give the transport what it
	// needs, whatever the reason: an address, a port, a kind of socket or of memory.
	//
	// Cause: the machine gives the transport no port. Remedy: add TCP to the transports, or use
	// another address.
	ErrUnavailable = errors.New("subsys: transport is not available on this machine")
)

// A Transport makes ports. It has no state of a context, so one value may serve many contexts.
type Transport interface {
	// Name returns the scheme of the transport's addresses, such as "tcp" or "inproc".
	Name() string
	// Listen opens a port. addr is an address of this transport, or "" to let the transport choose
	// one. The port announces accepted connections to cfg.Accept, and starts those that are not
	// refused.
	Listen(addr string, cfg Config) (Port, error)
}

// An Unsealed is a Transport that reaches other machines and does not encrypt what it carries. In a
// cluster with a key, a context uses it only within its own node.
type Unsealed interface {
	Transport
	Unsealed()
}

// Config is what a context gives to each of its ports.
type Config struct {
	Pool   *buffers.Pool     // memory for received payloads
	Poller func() *Poller    // returns the context's poller, made on first use; nil once the context is closed
	Accept func(c Conn) Sink // called once for each connection, before any of its frames; nil refuses it
	Logger *slog.Logger      // never nil
	Count  *Counters         // never nil
	Key    any               // key by which other contexts of this process find Here; see LocalPort
	Here   any               // value that LocalPort.Local returns for Key
	Folder string            // folder of the directory's socket, to which all contexts of the node have access; "" if there is none
	Spin   time.Duration     // longest busy wait for a peer on this machine in the middle of a large payload; 0 if the context must not poll

	// Progress is held by the goroutine that makes progress: it calls the Poller, which calls
	// sources, which call sinks. A port takes the lock before it frees what they use.
	Progress sync.Locker
}

// A Port is a context's end of a transport.
type Port interface {
	// Addr returns the URL at which other contexts reach this port.
	Addr() string
	// Reaches reports whether addr may be dialled from here, without any communication. An
	// in-process address of another process may not.
	Reaches(addr string) bool
	// Dial connects to addr. It may block until ctx ends. The sink is called only after Dial has
	// returned and Start was called on the connection.
	Dial(ctx context.Context, addr string, s Sink) (Conn, error)
	// Close stops listening, frees the address and closes every connection. It returns when the
	// port's goroutines have ended, so it must not be called from Config.Accept.
	Close() error
}

// A LocalPort is a port to the other contexts of this process. They need no connections: the sender
// puts messages into the target's mailbox. Its Dial fails.
type LocalPort interface {
	Port
	// Local returns the Config.Here of the port with the key, and its address. here is nil if there
	// is no such port.
	Local(key any) (here any, addr string)
}

// A Conn carries frames to one peer until it goes down.
type Conn interface {
	// Transport returns the name of the transport, for counters and routes.
	Transport() string
	// Remote returns the peer's address, for logs.
	Remote() string
	// Start starts the delivery of frames to the sink. A dialled connection needs one call.
	Start()
	// Send gives frames to the connection, in order, and returns how many it took. It never blocks.
	// If it takes fewer than len(fs), the connection is full, and the sink's Writable is called
	// when there is room again. A frame taken is not yet delivered; its payload must not change
	// until then. Calls of Send must not overlap.
	//
	// If n < len(fs) and err is nil, a call of Writable or Down follows, unless Close is called. An
	// error means that the connection sends nothing more, and the caller closes it. The n frames
	// then count as taken, and each may or may not arrive. Down need not follow an error.
	//
	// Send may retain the Buf of a frame that it took, also beyond the acknowledgement of the
	// frame. It never takes over the caller's reference.
	Send(fs []Frame) (n int, err error)
	// Close ends the connection. It does not wait. One call of the sink that the progress goroutine
	// has begun, or is about to begin, may still be made, but no later one. Close does nothing if
	// the connection has failed or was closed before.
	Close() error
}

// An Admitter is a Conn that gives its peer few resources of this process until the peer is
// authenticated. The sink calls Admit when the handshake has succeeded.
type Admitter interface {
	Conn
	Admit()
}

// A Prober is a Conn over a network, on which the peer can fall silent without an end of the
// connection.
type Prober interface {
	Conn
	// Unanswered reports whether the peer's machine still owes an answer to something that was sent
	// to it, and how long ago it last answered. The kernel answers, so it does not matter whether
	// the peer's process runs.
	Unanswered() (owes bool, heard time.Duration)
}

// A Silence measures for how long a peer's machine has been silent, from repeated results of
// [Prober.Unanswered]. The zero value is ready for use.
type Silence struct {
	since time.Time // when an answer was first owed, or when the last one came; zero if none is owed
}

// Observe takes the result of Unanswered at the time now, and returns for how long nothing has come
// though an answer is owed. The time before an answer was owed does not count.
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

// A Streamer is a Conn on which a large frame delays other frames, and is lost as a whole if the
// connection breaks before its end. The dispatcher divides large messages for it.
type Streamer interface {
	Conn
	Streams()
}

// A Brief is a Conn that can take a few small frames in very little time.
type Brief interface {
	Conn
	// Retain lets SendBriefly be called until Release, also when the connection has ended. It
	// reports false if the connection has ended already.
	Retain() bool
	Release()
	// SendBriefly is Send for whole frames with their headers, together at most BriefMost bytes.
	// It copies all of them, or does nothing and reports false: then Send may be called. The caller
	// may hold locks: SendBriefly calls nothing of the sink, and takes no lock. The caller counts
	// the copy.
	SendBriefly(frames []byte) bool
}

// BriefMost is the most bytes that one call of SendBriefly takes.
const BriefMost = 2 << 10

// A Sink receives what a connection delivers. The goroutine that makes progress calls Frames, Room
// and Writable, see [Config.Progress]. Any goroutine may call Down, also during Frames.
type Sink interface {
	// Frames delivers whole frames in order. fs and the payloads are valid during the call. The
	// sink retains a frame's Buf to keep its payload. An error cuts the connection. If
	// [buffers.IsTemporary] is true of the error, the sink has taken none of the frames. Then the
	// connection may deliver them again when buffers of the pool are released.
	Frames(c Conn, fs []Frame) error
	// Room returns a buffer of at least h.Len bytes, into which the payload of a large frame is
	// read. The connection owns the reference. An error cuts the connection: the sink checks an
	// announced length here, before memory is allocated for it. If Room returns neither buffer nor
	// error, the payload is skipped, and its frame arrives with Data and Buf nil. Room is not
	// called for a payload that is lent in place, as over shared memory, or was read ahead into a
	// bounded part of the pool.
	Room(c Conn, h *Header) (*buffers.Buffer, error)
	// Writable is called when Send, which took too little, may be tried again.
	Writable(c Conn)
	// Down is called once when the connection has failed because of err. No call follows it, except
	// one that the progress goroutine has begun, or is about to begin. Down is not called if Close
	// was called before the connection failed. It may still come after a Close that found the
	// connection already failed.
	Down(c Conn, err error)
}

// Counters count the costs of messages. Each counter only grows and is read with Load.
type Counters struct {
	Copies   atomic.Uint64 // payloads copied in user space
	CopiedB  atomic.Uint64 // bytes of these payloads
	Reads    atomic.Uint64 // system calls that read, including those that found nothing
	Writes   atomic.Uint64 // system calls that write
	Polls    atomic.Uint64 // system calls that asked which descriptors are ready
	Sleeps   atomic.Uint64 // times that a waiter slept in the kernel or parked
	Wakeups  atomic.Uint64 // times that another goroutine woke a sleeping waiter
	ConnsIn  atomic.Uint64
	ConnsOut atomic.Uint64
}
