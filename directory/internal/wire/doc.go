// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages between the directory of a node and its clients, and their coding.
// Package directory uses it in both roles, and package cluster for what members exchange. It knows
// no sockets or files: a [Conn] is made of any net.Conn.
//
// # Connections
//
// A connection begins with 8 bytes, the greeting: "RDIR", the version, the kind (life, ask, watch,
// yield, peer or index), and two zero bytes. Messages in both directions are, little-endian:
//
//	+---------+------+----------+---------+------ - -
//	| len u32 | type | 3 × zero |  id u64 | body
//	+---------+------+----------+---------+------ - -
//
// len counts everything after itself; an answer repeats the id of its question.
//
// # Messages
//
// In the bodies, identifiers have 16 bytes, and lists have the layout that package resource draws:
//
//	join      identifier (zero: a new one), token 32, list
//	register  identifier, revision u64 (0: new), list
//	update    identifier, expected revision u64, list
//	delete    identifier
//	find      pattern            watch  pattern
//	list      pattern            more   empty
//	lookup    identifier, pattern      stop, leave  empty
//	joined    identifier, token 32, list of terms
//	terms     list of terms; the id is 0, because it answers no question
//	done      revision u64
//	answer    a record: identifier, owner, revision u64, list
//	batch     records, each with its length u32 before it
//	event     kind u8, then a record
//	beat      empty; its sender is alive
//	error     code u16, text
//	end       covered u32, failed nodes u64 each
//	index     identifier and token of the context; the answer is done, with a
//	          descriptor, and its size in place of the revision
//	trace     code of the search strategy u8, pattern
//	traced    JSON, a directory.Trace: it is for people
//
// The list of a join has up to two entries. "member" says that the context would make the node a
// member of its cluster if it came to serve. "offers", a u64, is the number of registrations that
// follow of what the context owned under an earlier server.
//
// Terms are the following entries. A receiver ignores other names.
//
//   - "key", one for each link key, the newest first;
//   - "cluster", the name of the cluster, if the node is in one;
//   - "host", the IP address at which other nodes reach this one;
//   - "sealed", if links to other nodes are to be sealed;
//   - "certificates", if the operator's certificates prove membership of the cluster.
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
