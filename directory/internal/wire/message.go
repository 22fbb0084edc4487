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

// Protocol: The directory
//
// A node's directory is at a Unix socket, a stream ([which path](CONFIGURATION.md)). Both ends
// compare the other's user (SO_PEERCRED) with their own; root is allowed. A connection begins with
// 8 bytes of the client: `RDIR`, version 2 u8, kind u8, 0 u16. Then both send messages: bytes
// behind this field u32, type u8, 3 zero bytes, id u64, body. An answer repeats the id. Answers
// come in order. At a violation the server sends `error`, if it can, and closes.
//
// | kind | connection | what the client sends |
// |---|---|---|
// | 1 | registration: what is registered lives as long as it | `join` once, then `register`,
// `update`, `delete`, `leave` |
// | 2 | ask | `find`, `lookup`, `list`, `more`, `stop`, `trace`, `sum`, one at a time |
// | 3 | watch | one `watch` |
// | 4 | yield to a daemon | nothing; the answer is `done` with the lock's descriptor, or `error` |
// | 5 | peer | between [members](#questions-streams-and-watches) |
// | 6 | index | one `index` |
//
// | type | message | body | answer |
// |---|---|---|---|
// | 1 | join | identifier (0: a new one), token 32 bytes (0), list | joined |
// | 2 | register | identifier, revision u64 (0: new), list | done |
// | 3 | update | identifier, revision u64 that it must have (0: any), list | done |
// | 4 | delete | identifier | done, revision 0 |
// | 5 | leave | | the server deletes what the context owns, and closes |
// | 6 | find | pattern | answer, or error 1 |
// | 7 | lookup | identifier, list of wanted names | answer, or error 1 |
// | 8 | stop | | none: the list under way ends |
// | 9 | watch | pattern | event, again and again |
// | 10 | joined | identifier, token 32, [terms](#terms) | |
// | 11 | done | revision u64 | |
// | 12 | answer | a record: identifier, owner, revision u64, list | |
// | 13 | event | kind u8, record | |
// | 14 | error | code u16, text | |
// | 15 | terms | [terms](#terms); id 0, whenever they change | none |
// | 16 | end | nodes that answered u32, nodes that could not be asked u64 each | |
// | 17 | trace | strategy u8 (0 auto, 1 tree, 2 unicast, 3 broadcast), pattern | traced |
// | 18 | traced | JSON | |
// | 19 | index | identifier, token | done with a descriptor, its size in place of the revision |
// | 20 | list | pattern | batch, or end |
// | 21 | more | | batch, or end |
// | 22 | batch | records, the bytes u32 before each | |
// | 23 | sum | node u64 | summed, or error 12 |
// | 24 | summed | at most 64 KiB: what goes on on the node, JSON compressed by gzip | |
// | 64 | beat | | none; between members |
//
// Events: 1 appeared, 2 changed, 3 gone, 4 synced: all that matched at first have been reported.
//
// Errors: 0 see the text, 1 nothing matches, 2 another revision, 3 not the owner, 4 exists, 5 an
// attribute has no value, 6 protocol violation, 7 the process is refused, 8 the directory closes:
// ask the next one, 9 another directory serves, 10 nothing found and some nodes could not be asked,
// 11 as 7: another user, 12 the node's directory makes no summary.
//
// The list of a join may have `member` (the context would serve as a member of the cluster) and
// `offers` (u64, see [a takeover](#a-takeover)).

// Kinds of connections.
const (
	KindRegistration = 1 + iota // of a context: what it registers lives as long as the connection
	KindAsk                     // for questions
	KindWatch                   // for one watch
	KindYield                   // a daemon asks a context to give way
	KindPeer                    // of another member
	KindIndex                   // a context asks for the index
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
	MsgSum
	MsgSummed
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
