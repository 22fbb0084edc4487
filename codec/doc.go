// SPDX-License-Identifier: Apache-2.0

// Package codec encodes values as the payloads of messages, and decodes them.
//
// The type T alone decides the format. Sender and receiver use the same T, or types that are equal
// by these rules:
//
//	T                                    payload
//	[]byte, string                       its bytes, with nothing before them
//	raw: a boolean, a number, an array   eight bytes that name the format and the type, then the
//	or a struct of these                 value: little-endian, without padding, int and uint
//	                                     in eight bytes
//	a slice of raw elements              eight such bytes, then the elements
//	any other                            CBOR (RFC 8949) behind the tag of self-described CBOR
//
// Raw types are equal if they have the same kinds in the same order and their structs have the same
// field names. The names of the types and struct tags do not count. All fields are sent, exported
// or not. A named type of one of these kinds is treated as its kind, whatever methods it has. A
// struct that implements encoding.BinaryMarshaler or cbor.Marshaler is not raw.
//
// CBOR has the exported fields of structs, by the names in `cbor` or `json` tags. Types that
// implement encoding.BinaryMarshaler or encoding.TextMarshaler are sent in the form of these
// methods, and times with nanoseconds and the offset of their zone. A field that the receiver's
// type lacks is an error. A field that the sender's type lacks is zero. So a new field must first
// be added to the receiver. Any program that writes self-described CBOR can be the sender. Maps in
// an interface are decoded as map[any]any.
//
// Decoded values share no memory with the payload. If the whole value is a slice without elements,
// it is decoded as nil. A payload that does not fit the type is an error that matches [ErrValue],
// never a panic: another type, too few or too many bytes, or a boolean that is neither 0 nor 1.
//
// A program that needs another format implements [Codec].
package codec
