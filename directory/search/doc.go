// SPDX-License-Identifier: Apache-2.0

// Package search is how a directory asks the others: the protocol by which a
// question reaches every node of a cluster and comes back with an answer, or
// with a no that is definite. It is a machine without sockets, goroutines or
// clock: a [Node] is told of packets and of the time, and says what to send.
// The server drives it over UDP, the simulation (searchtest, tests/scale) by the
// thousand.
//
// # Covering
//
// Nodes are ordered by number. To cover a range of them, the range is cut into
// as many parts as the fan-out, and the first node of each part, its head, is
// asked to cover its part in the same way: a spanning tree, made anew for each
// question out of what each node knows of the membership. With a fan-out as
// large as the cluster the tree is flat and every node is asked directly.
//
//	asker ── ask [a,z] cut in three ──► a ──► b, c …
//	                                 ├► i ──► j, k …
//	                                 └► q ──► r, s …
//
// A node that has an answer gives it at once, and it goes up past everything
// else, with the number of who gave it. A no goes up only when all below have said no, with the number of nodes
// covered and a checksum of their numbers, so that the asker knows that the no
// is that of exactly the nodes it believes in: where the two differ, or a head
// does not answer, the part is cut again and asked by the asker itself. A head
// that is silent for a hop is asked again: its answer comes once more, or it
// says that it is busy and is waited for, so that a packet lost far down the tree
// has nobody above ask twice. A node that cannot be reached at all is named in
// the no, which then is not definite.
//
// # Asking first who may know
//
// Each node spreads a summary of what it holds, a Bloom filter ([Summary]), and
// then in batches what is new ([Filters]). The asker first asks those alone
// whose summary has all the pattern's known attributes. A summary may be old: so
// if they all say no, everybody is asked. A filter saves questions, it never
// answers them.
package search
