// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

const (
	version = 2
	maxBody = resource.MaxList + 64<<10 // the most bytes of a message after its length
	headLen = 16                        // len, type, zeros, id

	// MaxBody is the most bytes that the body of a message may have.
	MaxBody = maxBody - headLen
)

// Kinds of connections.
const (
	KindLife  = 1 + iota // of a context: what it registers lives as long as the connection
	KindAsk              // for questions
	KindWatch            // for one watch
	KindYield            // a daemon asks a context to give way
	KindPeer             // of another member
	KindIndex            // a context asks for the index
)

// Message types.
const (
	MsgJoin = 1 + iota
	MsgRegister
	MsgUpdate
	MsgDelete
	MsgLeave
	MsgFind
	MsgLookup
	MsgStop
	MsgWatch
	MsgJoined
	MsgDone
	MsgAnswer
	MsgEvent
	MsgError
	MsgTerms
	MsgEnd
	MsgTrace
	MsgTraced
	MsgIndex
	MsgList
	MsgMore
	MsgBatch
)

// MsgBeat says that its sender is alive. Its number is apart, because only members of a cluster
// send it to each other.
const MsgBeat = 64

// Names in the list of a join. A server ignores names that it does not know.
const (
	JoinMember = "member" // the context would make the node a member of its cluster if it came to serve
	JoinOffers = "offers" // u64: how many resources the context registers again, before it asks for anything else
)

// Greeting returns the first bytes of a connection of a kind.
func Greeting(kind byte) []byte { return []byte{'R', 'D', 'I', 'R', version, kind, 0, 0} }

// A Message is one message as it was read. Body is valid until the next one is read.
type Message struct {
	Type byte
	ID   uint64
	Body []byte
}

// Parser returns a Parser of the message's body.
func (m *Message) Parser() Parser { return Parser{b: m.Body} }

// A Builder composes one message after another in the same memory. The zero value is ready to use.
type Builder struct{ out []byte }

// Begin begins a message, in place of the last one.
func (b *Builder) Begin(typ byte, id uint64) {
	b.out = append(b.out[:0], 0, 0, 0, 0, typ, 0, 0, 0)
	b.U64(id)
}

// GID appends an identifier to the body.
func (b *Builder) GID(g resource.GID) {
	b.out = append(b.out, make([]byte, 16)...)
	resource.PutGID(b.out[len(b.out)-16:], g)
}

// U64 appends a number to the body.
func (b *Builder) U64(v uint64) { b.out = binary.LittleEndian.AppendUint64(b.out, v) }

// Append appends bytes to the body.
func (b *Builder) Append(p []byte) { b.out = append(b.out, p...) }

// Len returns the length of the message so far.
func (b *Builder) Len() int { return len(b.out) }

// Finish writes the length of the message and returns the message. The result is valid until the
// next Begin.
func (b *Builder) Finish() []byte {
	binary.LittleEndian.PutUint32(b.out, uint32(len(b.out)-4))
	return b.out
}

// A Parser takes a body apart. It remembers that the body was too short: List, Pattern and End
// report that.
type Parser struct {
	b   []byte
	bad bool
}

// Take returns the next n bytes. If there are fewer, it returns zeros, and IsShort reports true.
func (p *Parser) Take(n int) []byte {
	if len(p.b) < n {
		p.bad = true
		return make([]byte, n)
	}
	b := p.b[:n]
	p.b = p.b[n:]
	return b
}

// IsShort reports whether the body was too short for what was taken.
func (p *Parser) IsShort() bool { return p.bad }

// GID returns the identifier that is next in the body.
func (p *Parser) GID() resource.GID { return resource.GetGID(p.Take(16)) }

// U64 returns the number that is next in the body.
func (p *Parser) U64() uint64 { return binary.LittleEndian.Uint64(p.Take(8)) }

// List returns what is left of the body as a list, a view.
func (p *Parser) List() (resource.List, error) { return p.left(resource.ParseList) }

// Pattern returns what is left of the body as a pattern, a view.
func (p *Parser) Pattern() (resource.List, error) { return p.left(resource.ParsePattern) }

// left returns what is left of the body, as parse reads it.
func (p *Parser) left(parse func([]byte) (resource.List, error)) (resource.List, error) {
	if p.bad {
		return resource.List{}, fmt.Errorf("%w: truncated message", ErrProtocol)
	}
	l, err := parse(p.b)
	if err != nil {
		return l, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return l, nil
}

// End returns an error unless the whole body has been taken.
func (p *Parser) End() error {
	if p.bad || len(p.b) > 0 {
		return fmt.Errorf("%w: message of wrong length", ErrProtocol)
	}
	return nil
}
