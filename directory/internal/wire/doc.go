// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages between the directory of a node and its clients, and their coding.
// Package directory uses it in both roles, and package cluster for what members exchange. It knows
// no sockets or files: a [Conn] is made of any net.Conn.
//
// The comments "Protocol:" of message.go have the connections, the messages and their bodies, for
// docs/PROTOCOL.md. In the bodies, identifiers have 16 bytes, and lists have the layout of package
// resource.
//
// The answers to list and more are followed by end when there are no more. If the pattern of a list
// has an order, the answer has only the first resource of each node.
//
// # Where to find what
//
// [Conn] reads messages and writes them; it embeds the [Builder] that composes them. A [Parser]
// takes a body apart and remembers that it was too short, so the caller checks once, at the end.
// Every length that is read is compared with what is there before memory is given to it. The errors
// that cross the wire have numbers, in errors.go.
package wire
