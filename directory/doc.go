// SPDX-License-Identifier: Apache-2.0

// Package directory is a node's directory: the server that keeps the node's
// resources in a database, the client a context uses, and the arrangement by
// which any context can be the server.
//
// # Who serves
//
// Clients and server meet at a Unix socket. Whoever holds the lock beside the
// socket serves: a dirserver, or the first context of the node. When the
// server goes, its clients notice at once, one of them takes the lock, and all
// join again and offer what they own: the directory owns nothing (soft state),
// so nothing is lost, and identifiers stay, because contexts made them and the
// node's identity is in a file beside the socket:
//
//	PATH        the socket, 0600
//	PATH.lock   flock: whoever holds it serves
//	PATH.node   node number, boot id, epoch, key, labels; 0600
//	PATH.member the cluster that the node belongs to, if it does; 0600
//
// A server looks after these files while it runs (guard.go), and a client looks
// whose they are before it says anything (trust.go).
//
// A number given to a context is the epoch, which grows with every server,
// and a count: never the same twice. After a reboot the node is another.
//
// # The cluster
//
// What a server does not hold it asks of whoever is attached to it
// ([Server.Attach]): package cluster makes the node a member of a cluster, as a
// daemon or a context says ([WithMembership]), and this package knows no more of
// it than that there are others to ask, to list, to watch and to trace.
//
// # Connections
//
// A context has one life connection: what it registers is there for as long as
// the connection is. Questions go over ask connections, on which the asking
// goroutine writes and reads itself; each watch has a connection of its own.
// Another member of the cluster has one peer connection ([Server.ServePeer]) for
// all its watches; it may say watch, stop and beat there and nothing else.
//
// A context that asks much is handed an image of the database over a connection
// of its own, and from then on finds and looks up without asking: see
// directory/image, and mapped.go.
//
// # Messages
//
// A connection begins with 8 bytes, "RDIR", the version and the kind (life,
// ask, watch, yield, peer or image), two zero bytes. Messages in both directions are, little-endian:
//
//	+---------+------+----------+---------+------ - -
//	| len u32 | type | 3 × zero |  id u64 | body
//	+---------+------+----------+---------+------ - -
//
// len counts everything after itself; an answer repeats the id of its question.
// Bodies, with identifiers of 16 bytes and lists as package resource draws them:
//
//	join      identifier (zero: a new one), token 32, list
//	register  identifier, revision u64 (0: new), list
//	update    identifier, expected revision u64, list
//	delete    identifier
//	find      pattern            start  pattern           watch  pattern
//	list      pattern            more   empty
//	lookup    identifier, pattern      next, stop, leave  empty
//	joined    identifier, token 32, list of terms
//	terms     list of terms; the id is 0: nobody has asked
//	done      revision u64
//	answer    identifier, owner, revision u64, list
//	batch     answers, each with its length u32 before it
//	event     kind u8, then as answer
//	beat      empty; its sender is there
//	error     code u16, text
//
// The list of a join has "member" if the context would make the node a member
// of its cluster, should it come to serve, and "offers", a u64, if that many
// registrations of what it owned under an earlier server follow. Terms are "key", one for each link
// key, the first is the newest; "cluster", its name, if the node is in one;
// "host", the IP address where other nodes reach this one; "sealed", if links
// to other nodes are to be; "certificates", if the operator's show who is one of
// the cluster; "level", u8, if the server understands more than the first version: at 1
// list, more and batch, and conditions in the patterns of find and list. Other names
// are passed over.
//
//	end       covered u32, failed nodes u64 each
//	image     identifier and token of the context; the answer is done, with a
//	          descriptor, and its size in place of the revision
//	trace     way u8, pattern
//	traced    JSON, a [Trace]: it is for people
//
// The answers to start and next are followed by end, when there are no more, and so are
// those to list and more. A list whose pattern has an order is answered with the first
// resource of each node alone.
package directory
