// SPDX-License-Identifier: Apache-2.0

// Package directory is a node's directory: the service that knows the resources of the node. It has
// three parts: the server, which keeps the resources in a database; the client, through which a
// context uses the server; and the rules by which any context can become the server.
//
// # Which process serves
//
// Clients and server meet at a Unix socket. The process that holds the lock beside the socket
// serves: a dirserver, or the first context of the node. When the server ends, its clients notice
// at once. One of them takes the lock, and the others join the new server. Each client offers the
// new server what its context owns. The directory itself owns nothing, so nothing is lost.
// Identifiers stay, because contexts made them and the node's identity is in a file beside the
// socket:
//
//	PATH        the socket, 0600
//	PATH.lock   flock: the process that holds it serves
//	PATH.node   node number, boot id, epoch, key, labels; 0600
//	PATH.member the cluster that the node belongs to, if any; 0600
//
// A server guards these files while it runs (guard.go). Before a client sends anything, it checks
// which user serves and which user owns the files (trust.go).
//
// The number of a context consists of the epoch, which grows with every server, and a count, so no
// number is given twice. After a reboot the machine is a new node.
//
// # The cluster
//
// The server asks the [Remote] that is attached to it ([Server.Attach]) for what it does not hold.
// Package cluster is such a Remote: it makes the node a member of a cluster, on behalf of a daemon
// or a context ([WithMembership]). This package uses the Remote only to ask, list, watch and trace.
//
// # Connections
//
// A context has one life connection. Its resources are registered for as long as that connection
// lasts. Questions go over ask connections, which the asking goroutine writes and reads itself.
// Each watch has a connection of its own. Another member of the cluster has one peer connection
// ([Server.ServePeer]) for all its watches; it may send watch, stop and beat there and nothing
// else.
//
// A context that has asked often receives the index of the node: a copy of the database in shared
// memory, handed over on a connection of its own. From then on the context finds and looks up
// resources without asking: see directory/image and mapped.go.
//
// # Messages
//
// A connection begins with 8 bytes: "RDIR", the version, the kind (life, ask, watch, yield, peer or
// image), and two zero bytes. Messages in both directions are, little-endian:
//
//	+---------+------+----------+---------+------ - -
//	| len u32 | type | 3 × zero |  id u64 | body
//	+---------+------+----------+---------+------ - -
//
// len counts everything after itself; an answer repeats the id of its question. In the bodies,
// identifiers have 16 bytes, and lists have the layout that package resource draws:
//
//	join      identifier (zero: a new one), token 32, list
//	register  identifier, revision u64 (0: new), list
//	update    identifier, expected revision u64, list
//	delete    identifier
//	find      pattern            start  pattern           watch  pattern
//	list      pattern            more   empty
//	lookup    identifier, pattern      next, stop, leave  empty
//	joined    identifier, token 32, list of terms
//	terms     list of terms; the id is 0, because it answers no question
//	done      revision u64
//	answer    identifier, owner, revision u64, list
//	batch     answers, each with its length u32 before it
//	event     kind u8, then as answer
//	beat      empty; its sender is alive
//	error     code u16, text
//	end       covered u32, failed nodes u64 each
//	image     identifier and token of the context; the answer is done, with a
//	          descriptor, and its size in place of the revision
//	trace     code of the search strategy u8, pattern
//	traced    JSON, a Trace: it is for people
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
//   - "certificates", if the operator's certificates prove membership of the cluster;
//   - "level", u8, if the server understands more than the first version. Level 1 adds list, more
//     and batch, and conditions in the patterns of find and list.
//
// The answers to start and next are followed by end when there are no more, and so are those to
// list and more. If the pattern of a list has an order, the answer has only the first resource of
// each node.
package directory
