// SPDX-License-Identifier: Apache-2.0

// Package codec turns values into the payloads of messages, and back.
//
// The type T alone decides the format. Sender and receiver use the same T, or types that
// the table calls equal:
//
//	T                                    payload
//	[]byte, string                       its bytes, with nothing before them
//	raw: a boolean, a number, an array   eight bytes that name the format and the type, then the
//	or a struct of these                 value: little-endian, without padding, int and uint
//	                                     in eight bytes
//	a slice of raw elements              eight such bytes, then the elements
//	any other                            CBOR (RFC 8949) behind the tag of self-described CBOR
//
// Raw types are equal if they have the same kinds in the same order and structs have the same
// field names; the names of the types do not count, and neither do struct tags. All fields
// are sent, exported or not. A named type of one of these kinds is treated as its kind,
// whatever methods it has; a struct that implements encoding.BinaryMarshaler or
// cbor.Marshaler is not raw.
//
// CBOR has the exported fields of structs, by the names that `cbor` or `json` tags give them.
// Types that implement encoding.BinaryMarshaler or encoding.TextMarshaler are sent as these
// say, times with nanoseconds and the offset of their zone. A field that the receiver's type
// lacks is an error; one that the sender's lacks is zero. So a new field is first added to
// the receiver. Any program that writes self-described CBOR can be the sender. Maps in an
// interface come as map[any]any.
//
// Decoded values share no memory with the payload. A slice without elements that is the whole
// value comes as nil. What does not fit is an error that matches [ErrValue], never a panic: another
// type, too few bytes or too many, a boolean that is neither 0 nor 1.
//
// A program that wants another format implements [Codec].
package codec
