// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

// Errors of this package. A client returns them also if they happened in the server.
var (
	// ErrNotFound is returned if it is certain that no resource matches.
	ErrNotFound = errors.New("rocl: no such resource")
	// ErrNoDirectory is returned if no process serves the node, or not at the given address.
	ErrNoDirectory = errors.New("rocl: no directory serves this node")
	// ErrRevision is returned if a resource has another revision than the expected one.
	ErrRevision = errors.New("rocl: the attributes have changed")
	// ErrNotOwner is returned if a context changes a resource of another context.
	ErrNotOwner = errors.New("rocl: not the owner")
	// ErrExists is returned if the identifier of a new resource is taken.
	ErrExists = errors.New("rocl: resource exists")
	// ErrIncomplete is returned if an attribute of a resource has no value.
	ErrIncomplete = errors.New("rocl: an attribute has no value")
	// ErrClosed is returned by a client or a server that is closed.
	ErrClosed = errors.New("rocl: directory closed")
	// ErrInUse is returned by Listen and Also if another process serves the node.
	ErrInUse = errors.New("rocl: another directory serves this node")
	// ErrProtocol is returned if the other end sends what the protocol does not allow.
	ErrProtocol = errors.New("rocl: directory protocol violation")
	// ErrDenied is returned if the server refuses a process of another user, or a context whose
	// token is wrong.
	ErrDenied = errors.New("rocl: the directory does not know this context")
	// ErrSilent is returned with ErrInUse when the process that serves the node does not answer: it
	// is stopped or overloaded.
	ErrSilent = errors.New("rocl: the directory does not answer")
	// ErrPartial is returned if no node that could be asked has the resource and some nodes could
	// not be asked.
	ErrPartial = errors.New("rocl: not found, and not every node could be asked")
)

// codes has the errors at their numbers on the wire.
var codes = []error{nil, ErrNotFound, ErrRevision, ErrNotOwner, ErrExists, ErrIncomplete, ErrProtocol, ErrDenied, ErrClosed, ErrInUse, ErrPartial}

// code returns the number of an error on the wire; 0 stands for any other error.
func code(err error) uint16 {
	switch {
	case errors.Is(err, database.ErrNotFound):
		err = ErrNotFound
	case errors.Is(err, database.ErrRevision):
		err = ErrRevision
	case errors.Is(err, database.ErrNotOwner):
		err = ErrNotOwner
	case errors.Is(err, database.ErrExists):
		err = ErrExists
	case errors.Is(err, database.ErrIncomplete):
		err = ErrIncomplete
	}
	for i, e := range codes[1:] {
		if errors.Is(err, e) {
			return uint16(i + 1)
		}
	}
	return 0
}

const (
	version = 1
	maxBody = resource.MaxList + 64<<10 // the most bytes of a message after its length
	msgHead = 16                        // len, type, zeros, id
)

// Kinds of connections.
const (
	kindLife  = 1 + iota // of a context: what it registers lives as long as the connection
	kindAsk              // for questions
	kindWatch            // for one watch
	kindYield            // a daemon asks a context to give way
	kindPeer             // of another member
	kindImage            // a context asks for the image
)

// Message types.
const (
	msgJoin = 1 + iota
	msgRegister
	msgUpdate
	msgDelete
	msgLeave
	msgFind
	msgLookup
	msgStart
	msgNext
	msgStop
	msgWatch
	msgJoined
	msgDone
	msgAnswer
	msgEvent
	msgError
	msgTerms
	msgEnd
	msgTrace
	msgTraced
	msgImage
	msgList
	msgMore
	msgBatch
)

// msgBeat says that its sender is alive. Its number is apart, because only members of a cluster
// send it to each other.
const msgBeat = 64

// Names in the list of a join. A server ignores names that it does not know.
const (
	offerMember = "member" // the context would make the node a member of its cluster if it came to serve
	offerCount  = "offers" // u64: how many resources the context registers again, before it asks for anything else
)

// greeting returns the first bytes of a connection.
func greeting(kind byte) []byte { return []byte{'R', 'D', 'I', 'R', version, kind, 0, 0} }

// A message is one message as it was read. body is valid until the next one is read.
type message struct {
	typ  byte
	id   uint64
	body []byte
}

// A codec reads and writes the messages of one connection. One goroutine may read while another one
// writes.
type codec struct {
	nc         net.Conn
	in         []byte
	start, end int // of the bytes of in that are not taken yet
	out        []byte
}

func newCodec(nc net.Conn) *codec { return &codec{nc: nc, in: make([]byte, 4<<10)} }

// need reads until n bytes are in the buffer.
func (c *codec) need(n int) error {
	if c.end-c.start >= n {
		return nil
	}
	if len(c.in)-c.start < n {
		b := c.in
		if len(b) < n {
			// The buffer grows as bytes arrive, so that an announced length alone takes no memory.
			b = make([]byte, min(n, max(2*len(c.in), 64<<10)))
		}
		c.end = copy(b, c.in[c.start:c.end])
		c.in, c.start = b, 0
	}
	for c.end-c.start < n {
		if c.end == len(c.in) {
			b := make([]byte, min(n, 2*len(c.in)))
			copy(b, c.in[:c.end])
			c.in = b
		}
		k, err := c.nc.Read(c.in[c.end:])
		c.end += k
		if err != nil && c.end-c.start < n {
			if err == io.EOF && c.end > c.start {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// take returns n bytes of the buffer, which are there, as a view.
func (c *codec) take(n int) []byte {
	b := c.in[c.start : c.start+n : c.start+n]
	if c.start += n; c.start == c.end {
		c.start, c.end = 0, 0
		if len(c.in) > 1<<20 {
			c.in = make([]byte, 4<<10) // b keeps the old buffer for as long as b is used
		}
	}
	return b
}

// greeted reads the greeting of a connection and returns its kind.
func (c *codec) greeted() (kind byte, err error) {
	if err := c.need(8); err != nil {
		return 0, err
	}
	b := c.take(8)
	if string(b[:4]) != "RDIR" || b[6] != 0 || b[7] != 0 {
		return 0, fmt.Errorf("%w: not a directory connection", ErrProtocol)
	}
	if b[4] != version {
		return 0, fmt.Errorf("%w: version %d, ours is %d", ErrProtocol, b[4], version)
	}
	return b[5], nil
}

// read reads one message.
func (c *codec) read() (message, error) {
	if err := c.need(msgHead); err != nil {
		return message{}, err
	}
	b := c.in[c.start:]
	n := binary.LittleEndian.Uint32(b)
	if n < msgHead-4 || n > maxBody || b[5]|b[6]|b[7] != 0 {
		return message{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, n)
	}
	if err := c.need(int(n) + 4); err != nil {
		return message{}, err
	}
	b = c.take(int(n) + 4)
	return message{b[4], binary.LittleEndian.Uint64(b[8:]), b[msgHead:]}, nil
}

// begin begins a message in out, in place of the last one.
func (c *codec) begin(typ byte, id uint64) {
	c.out = append(c.out[:0], 0, 0, 0, 0, typ, 0, 0, 0)
	c.out = binary.LittleEndian.AppendUint64(c.out, id)
}

func (c *codec) gid(g resource.GID) {
	c.out = append(c.out, make([]byte, 16)...)
	resource.PutGID(c.out[len(c.out)-16:], g)
}

func (c *codec) u64(v uint64)   { c.out = binary.LittleEndian.AppendUint64(c.out, v) }
func (c *codec) bytes(b []byte) { c.out = append(c.out, b...) }

// seal writes the length of the message in out.
func (c *codec) seal() { binary.LittleEndian.PutUint32(c.out, uint32(len(c.out)-4)) }

// send writes the message in out to the connection.
func (c *codec) send() error {
	c.seal()
	_, err := c.nc.Write(c.out)
	if cap(c.out) > 1<<20 {
		c.out = nil
	}
	return err
}

// sendError sends err as the answer to message id.
func (c *codec) sendError(id uint64, err error) error {
	c.begin(msgError, id)
	c.out = binary.LittleEndian.AppendUint16(c.out, code(err))
	c.bytes([]byte(err.Error()))
	return c.send()
}

// A parser takes a body apart. It remembers that the body was too short: list, pattern and end
// report that.
type parser struct {
	b   []byte
	bad bool
}

// take returns the next n bytes, or zeros and an error for later if there are fewer.
func (p *parser) take(n int) []byte {
	if len(p.b) < n {
		p.bad = true
		return make([]byte, n)
	}
	b := p.b[:n]
	p.b = p.b[n:]
	return b
}

func (p *parser) gid() resource.GID { return resource.GetGID(p.take(16)) }
func (p *parser) u64() uint64       { return binary.LittleEndian.Uint64(p.take(8)) }

// list returns the rest of the body as a list, a view.
func (p *parser) list() (resource.List, error) {
	if p.bad {
		return resource.List{}, fmt.Errorf("%w: truncated message", ErrProtocol)
	}
	l, err := resource.ParseList(p.b)
	if err != nil {
		return l, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return l, nil
}

// end returns an error unless the whole body has been taken.
func (p *parser) end() error {
	if p.bad || len(p.b) > 0 {
		return fmt.Errorf("%w: message of wrong length", ErrProtocol)
	}
	return nil
}

// remote is an error that the server has reported: the kind, and the server's text.
type remote struct {
	kind error
	text string
}

func (e *remote) Error() string { return e.text }
func (e *remote) Unwrap() error { return e.kind }

// parseError returns the error in the body of a message error.
func parseError(b []byte) error {
	if len(b) < 2 {
		return fmt.Errorf("%w: truncated error", ErrProtocol)
	}
	n := int(binary.LittleEndian.Uint16(b))
	e := &remote{text: string(b[2:])}
	if n > 0 && n < len(codes) {
		e.kind = codes[n]
		if e.kind == ErrNotFound {
			return ErrNotFound // the frequent one, without further text
		}
	}
	return e
}

// ParseAnswer returns the resource in a body that AppendAnswer wrote. The result does not refer to
// b.
func ParseAnswer(b []byte) (a resource.Record, err error) {
	if a, err = ViewAnswer(b); err == nil {
		a.Attrs = a.Attrs.Clone()
	}
	return a, err
}

// ViewAnswer is ParseAnswer with a result that refers to b. b must not change any more.
func ViewAnswer(b []byte) (a resource.Record, err error) {
	p := parser{b: b}
	a = p.head()
	a.Attrs, err = p.list()
	return a, err
}

// answerHead is the length of an answer's part before the attributes.
const answerHead = 16 + 16 + 8

// head takes the part of an answer before the attributes.
func (p *parser) head() resource.Record {
	if len(p.b) < answerHead {
		p.bad = true
		return resource.Record{}
	}
	b := p.b[:answerHead]
	p.b = p.b[answerHead:]
	return resource.Record{ID: resource.GetGID(b), Owner: resource.GetGID(b[16:]), Revision: binary.LittleEndian.Uint64(b[32:])}
}

// Events of watches; see package database.
type (
	// An Event is one change of what matches a watch, or Synced.
	Event = database.Event
	// EventKind says what happened to a watched resource.
	EventKind = database.Kind
)

// Kinds of events; see package database.
const (
	Appeared = database.Appeared
	Changed  = database.Changed
	Gone     = database.Gone
	Synced   = database.Synced
)

// parseEvent returns the event in a message, or ErrProtocol if the message is malformed.
func parseEvent(m *message) (ev Event, err error) {
	if m.typ != msgEvent || len(m.body) < 1 {
		return ev, fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
	}
	if ev.Kind = EventKind(m.body[0]); ev.Kind < Appeared || ev.Kind > Synced {
		return ev, fmt.Errorf("%w: event %d", ErrProtocol, ev.Kind)
	}
	ev.Record, err = ParseAnswer(m.body[1:])
	return ev, err
}

// event begins the message of an event of watch id.
func (c *codec) event(id uint64, ev *database.Event, pattern *resource.List) {
	c.begin(msgEvent, id)
	c.bytes([]byte{byte(ev.Kind)})
	c.out = AppendAnswer(c.out, &ev.Record, pattern)
}
