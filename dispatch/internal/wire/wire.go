// SPDX-License-Identifier: Apache-2.0

// Package wire has what two contexts say to each other over a connection: the types of
// frames, and the messages of the handshake with their MACs. It is a codec without I/O,
// clock or lock; docs/PROTOCOL.md draws each frame.
//
// The handshake binds a connection to the link of two contexts. The dialler speaks first;
// each message is one frame.
//
//	dialler                                             acceptor
//	  │ Hello     version, from, to, lane, cluster, nonce │
//	  ├──────────────────────────────────────────────────►│ silence unless all fit
//	  │ Challenge from, nonce, MACs                       │
//	  │◄──────────────────────────────────────────────────┤
//	  │ Attach    session, known, gen, have, MAC          │
//	  ├──────────────────────────────────────────────────►│ the connection is the link's,
//	  │ Ready     session, known, gen, have, MAC          │ an earlier one is cut
//	  │◄──────────────────────────────────────────────────┤
//
// In place of Ready an acceptor that does not attach the connection sends Refuse.
//
// Each MAC is HMAC-SHA256 under a key that the directory has given to both, over everything
// said before: neither side accepts a recorded conversation. While keys are being changed a
// context has several. The acceptor proves that it knows each of its own. The dialler goes
// on under the first of its own keys that is among them, and so does the acceptor. A
// [Transcript] keeps what has been said.
//
// Session names one end's state of the link; known is the other end's as remembered; have
// is the number of the frame expected next, where sending resumes. Gen counts the
// connections of the session: one with a higher number replaces its predecessor. Where both
// sides dial at once, the context with the lower identifier goes first.
//
// Package life decides what becomes of an Attach, and package session what a frame's number
// means.
package wire

import "errors"

var (
	// ErrProtocol is matched by errors about a peer that breaks the rules of
	// docs/PROTOCOL.md.
	ErrProtocol = errors.New("dispatch: protocol violation")
	// ErrRefused is matched by errors about a peer that follows the rules, and with which
	// this context does not link, or which does not link with this context.
	ErrRefused = errors.New("rocl: link refused")
)

// Limits of what a peer may name.
const (
	MaxKeys  = 8 // keys of a context, which are as many MACs in a Challenge
	MaxLanes = 8 // lanes in either context's name, with the common one
)

// Frame types of the handshake. Such frames travel before a connection belongs to a link.
const (
	TypeHello = 1 + iota
	TypeChallenge
	TypeAttach
	TypeReady
	TypeRefuse
)

// Frame types that the session numbers, and repeats after a broken connection.
const (
	TypeData    = 16 + iota // tag, src, dst, payload
	TypeCredit              // tag: total charged bytes that dst may have been sent
	TypeNeed                // tag: total the sender waits for
	TypeGone                // dst does not exist; src: origin of a refused message, tag: its tag, payload: its size
	TypeBye                 // the context ends
	TypeBegin               // tag, src, dst of a message in pieces; payload: its length
	TypePiece               // dst, src, tag: the offset in the message that has begun; payload
	TypeCall                // dst, src; tag: the number of the call whose request is the next frame, Data or Begin
	TypeNoReply             // dst, src; tag: the number of a call that ends without a reply; payload: why, one byte
)

// FlagCall marks Data and Begin of a request, which is the next frame behind its TypeCall.
// Bits of Flags that have no name are ignored.
const FlagCall = 1

// Why a call ends without a reply: the payload of TypeNoReply. A number without a name means
// WhyReleased.
const (
	WhyReleased = 1 + iota // the receiver of the request released it
	WhyGone                // the request's target does not exist
)

// Replies is the serial to which each context has the replies to its calls sent. Their tag is
// the number of the call. It is no resource's.
const Replies = 1<<31 - 1

// TypeAck acknowledges and says nothing else. It is not numbered.
const TypeAck = 32

// Features of a context, which it tells in Attach and Ready. Bits without a name are
// ignored.
const (
	FeaturePieces = 1 << iota // takes large messages in pieces

	// FeatureBounded: it asks for credit before the first message to a resource whose serial
	// has the bit Bounded, and charges messages at least what a Credit says.
	FeatureBounded

	FeatureCalls // takes requests, and replies to them

	Features = FeaturePieces | FeatureBounded | FeatureCalls // what this version knows
)
