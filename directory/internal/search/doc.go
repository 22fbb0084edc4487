// SPDX-License-Identifier: Apache-2.0

// Package search is the protocol by which a directory asks the other directories of a cluster. A
// question reaches every node and comes back with an answer, or with a no that is definite. The
// package has no sockets, goroutines or clock: a [Node] is given packets and the time, and
// calls a function to send. The directory server drives it over UDP. The simulation (searchtest,
// directory/internal/scale) drives thousands of nodes.
//
// # Covering
//
// Nodes are ordered by number. To cover a range of nodes, the range is cut into as many parts as
// the fan-out. The first node of each part, its head, is asked to cover its part in the same way.
// That makes a spanning tree, anew for each question, out of what each node knows of the
// membership. With a fan-out as large as the cluster, the tree is flat and every node is asked
// directly.
//
//	asker ── ask [a,z] cut in three ──► a ──► b, c …
//	                                 ├► i ──► j, k …
//	                                 └► q ──► r, s …
//
// A node that has an answer sends it at once. The answer goes up the tree without waiting for other
// nodes, with the number of the node that gave it.
//
// A no goes up only when all nodes below have said no. It has the number of nodes covered and a
// checksum of their node numbers. So the asker knows that the no is that of exactly the nodes that
// it takes for members. If the two differ, or if a head does not answer, the asker cuts the part
// again and asks its nodes itself.
//
// A head that is silent for a hop is asked again. It repeats its answer, or says that it is busy
// and is waited for. So when a packet is lost far down the tree, no node above asks twice. A node
// that cannot be reached at all is named in the no, which then is not definite.
//
// # Asking likely nodes first
//
// Each node sends a summary of what it holds, a Bloom filter ([Summary]), and then in batches what
// is new ([Filters]). The asker first asks only the nodes whose summary has all known attributes of
// the pattern. A summary may be old: so if they all say no, all nodes are asked. A filter saves
// questions, and never answers them.
package search
