// SPDX-License-Identifier: Apache-2.0

// Package wire defines what two contexts send to each other over a connection: the types of frames,
// and the messages of the handshake with their MACs. It is a codec without I/O, clock or lock.
// The comments "Protocol:" describe each frame for docs/PROTOCOL.md.
//
// The handshake binds a connection to the link of two contexts. The dialler speaks first. Each
// message is one frame.
//
//	dialler                                             acceptor
//	  │ Hello     version, from, to, lane, cluster, nonce │
//	  ├──────────────────────────────────────────────────►│ silence unless all fit
//	  │ Challenge from, nonce, MACs                       │
//	  │◄──────────────────────────────────────────────────┤
//	  │ Attach    session, known, gen, have, past, MAC    │
//	  ├──────────────────────────────────────────────────►│ the connection is the link's,
//	  │ Ready     session, known, gen, have, past, MAC    │ an earlier one is cut
//	  │◄──────────────────────────────────────────────────┤
//
// An acceptor that does not attach the connection sends Refuse in place of Ready.
//
// Each MAC is HMAC-SHA256 over everything said before, under a key that the directory has given to
// both contexts. So neither side accepts a recorded conversation. While keys are being changed, a
// context has several. The acceptor proves that it knows each of its own keys. The dialler
// continues with the first of its own keys that is among them, and so does the acceptor. A
// [Transcript] keeps what has been said.
//
// Session names one end's state of the link. Known is the other end's state, as this end remembers
// it. Have is the number of the frame expected next: sending resumes there. Gen counts the
// connections of the session. A connection with a higher number replaces its predecessor. If both
// sides dial at once, the context with the lower identifier goes first.
//
// Package life decides what becomes of an Attach. Package session gives the numbers of frames their
// meaning.
package wire

import "errors"

var (
	// ErrProtocol is matched by errors about a peer that breaks the rules of docs/PROTOCOL.md.
	ErrProtocol = errors.New("dispatch: peer violated the protocol")
	// ErrRefused is matched by errors about a peer that follows the rules, if this context does not
	// link with it, or the peer refuses the link.
	//
	// Cause: the peer has another cluster, key or version. Remedy: use the same on all nodes.
	ErrRefused = errors.New("rocl: link refused")
)

// Limits of what a peer may name.
const (
	MaxKeys = 8   // keys of a context; a Challenge has as many MACs
	MaxLane = 255 // bytes of the name of a lane
)

// Protocol: Types of frames
//
// | type | frame | meaning |
// |---|---|---|
// | 1 to 5 | Hello, Challenge, Attach, Ready, Refuse | [the handshake](#the-handshake) |
// | 16 | Data | a message of src to dst with tag |
// | 17 | Credit | the peer may have sent dst `tag` charged bytes since the session began. Sent once
// for each number. For a bounded dst, payload u64: the least that a message is charged |
// | 18 | Need | the sender waits until it may have sent dst `tag`. Payload: tag u64 and bytes u32
// of the message of src that waits, or none. A `tag` not above its grant: it waits no longer.
// Payload u64: it was granted that number, and returns what is above `tag`; ignored if more was
// granted since |
// | 19 | Gone | dst does not exist, and the message of src with tag and length (payload u32) was
// not delivered; without payload, one with bit 1 of flags. src 0: dst has ended: sent to each
// context that sent to dst or asked by Need, behind all that dst has sent it. Both forget the
// credit |
// | 20 | Bye | the context ends |
// | 21 | Begin | a message in pieces, as Data; payload: its length u32 |
// | 22 | Piece | the next bytes from src to dst; tag: their offset. Without payload: given up |
// | 23 | Call | the next frame is the request of src to dst with the number tag |
// | 24 | NoReply | call tag of src to dst gets no reply. Payload u8: 1 the request was released, 2
// no dst, 3 never enough memory |
// | 25 | TooLarge | dst's context never has memory for the message of src with tag. Payload: its
// length u32; with a Need's limit u64, it answers that Need |
// | 26 | Cancel | src gives up call tag to dst. Payload u8: 1 cancelled, 2 its deadline is over |
// | 27 | Trace | goes ahead of a message of src to dst, see [traces](#traces) |
// | 28 | Follow | of which messages to dst the sender is to tell times, see [traces](#traces) |
// | 32 | Ack | only ack |
//
// Fields that are not named are 0. Flags: bit 0 marks Data or Begin as a request, bit 1 Data, Begin
// or Piece of a message whose loss is not reported. Others are ignored.

// Frame types of the handshake. Such frames travel before a connection belongs to a link.
const (
	TypeHello = 1 + iota
	TypeChallenge
	TypeAttach
	TypeReady
	TypeRefuse
)

// Frame types that the session numbers, and retransmits after a broken connection.
const (
	TypeData     = 16 + iota // tag, src, dst, payload
	TypeCredit               // tag: the charged bytes that may be sent to dst, in all
	TypeNeed                 // src, tag: the limit that the sender waits for; payload: the message, or the limit that it returns credit of
	TypeGone                 // dst does not exist; src: origin of a refused message, tag: its tag, payload: its size, or none after FlagForget
	TypeBye                  // the context ends
	TypeBegin                // tag, src, dst of a message in pieces; payload: its length
	TypePiece                // dst, src, tag: the offset in the message that has begun; payload
	TypeCall                 // dst, src; tag: the number of the call whose request is the next frame, Data or Begin
	TypeNoReply              // dst, src; tag: the number of a call that ends without a reply; payload: why, one byte
	TypeTooLarge             // dst, src, tag of a message that the memory of dst's context never holds; payload: its size, and the limit of its Need
	TypeCancel               // dst, src; tag: the number of a call that its caller has given up; payload: why, one byte
	TypeTrace                // dst, src of the message that follows; payload: its trace; only with FeatureTraces
	TypeFollow               // dst; tag: for how long the receiver wants the times of messages; payload: of one of how many; only with FeatureTraces
)

// FlagCall marks Data and Begin frames of a request. Such a frame comes directly behind its
// TypeCall. FlagForget marks Data, Begin and Piece frames of a message whose sender is not told if
// it is not delivered. Bits of Flags without a name are ignored.
const (
	FlagCall   = 1
	FlagForget = 2
)

// Reasons why a call ends without a reply: the payload of TypeNoReply. A number without a name
// means WhyReleased.
const (
	WhyReleased = 1 + iota // the receiver of the request released it
	WhyGone                // the request's target does not exist
	WhyTooLarge            // the memory of the target's context never holds the request
)

// Reasons why a caller gives up a call: the payload of TypeCancel. A number without a name means
// WhyCancelled.
const (
	WhyCancelled = 1 + iota
	WhyDeadline  // the deadline of the call is over
)

// Replies is the serial that the replies to a context's calls are sent to. Their tag is the number
// of the call. No resource has this serial.
const Replies = 1<<31 - 1

// TypeAck acknowledges and does nothing else. It is not numbered.
const TypeAck = 32
