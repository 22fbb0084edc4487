// SPDX-License-Identifier: Apache-2.0

// Package port is the one port, UDP and TCP, at which a member of a cluster is
// reached: gossip, the datagrams of searches and the streams between
// directories share it, told apart by their first byte.
//
//	                                                 ┌──► Receive
//	datagram ─── 'R'  sealed, counted, seen once ────┤
//	                                                 └──► Gossip
//
//	                     ┌ 244  memberlist's ──────────────► Gossip
//	stream   ─── (TLS) ──┤
//	                     └ else ours ──────────────────────► Stream
//
// # Datagrams
//
// Each is sealed with AES-256-GCM under a key that only its sender's and its
// receiver's present lives share: it is derived from the cluster's key, the
// cluster's name, and number and epoch of both, where an epoch is drawn at
// random when a port is opened and told by gossip. So what was recorded before
// either of them restarted opens nothing, and what was recorded since is caught
// by a window over the counter that is in each. Whatever does not open is
// dropped without an answer: who does not know the key learns nothing, not even
// that somebody is there. In a cluster without a key a checksum takes the
// place of the cipher, seeded by what would have been the key: it catches
// accidents and former lives, not attackers.
//
// A cast goes to all members at once, by multicast or broadcast, under a key of
// its sender's life alone. A receiver takes casts only from a number on that
// the sender has told it between the two of them.
//
// Gossip, memberlist's datagrams, is sealed for the present lives of sender and
// receiver as well, by a key of its own, and goes to members that are parted from
// too: memberlist tells the dead that they are, so that they can deny it. A
// recorded rumour of a death would be believed otherwise: memberlist numbers what
// is said of a member from 1 in each of its lives. What memberlist seals itself
// adds nothing in datagrams. In streams it keeps out a program that has a
// certificate and not the key.
//
// Before two members know each other's lives they say hello: a datagram to an
// address, which a member answers, sealed with a key of all members. A recorded
// hello is answered too, with as many bytes, and changes nothing. What a member
// knows of the others comes by a stream then. A member that another takes for
// its former life is told by a beacon that somebody is there ([Port.Knock]).
//
// Members are parted from and met again in the same lives, whenever one is taken
// for dead in error: counters go on, and what was heard stays heard.
//
// All who know the key are equals: any of them could say that it is another.
// The key keeps strangers out, not members that lie.
//
// # Streams
//
// Where there is a key all streams are TLS's, also memberlist's, which would
// answer a stranger otherwise: who cannot show that it is a member is cut without
// a word. What is inside is told apart by its first byte.
//
// A stranger has two seconds to show who he is, and there is room for so many;
// then the oldest goes, so that a member always gets in. What is too large for
// a datagram goes by a stream of its own, sealed and counted as a datagram is,
// whether there is TLS or not; its length is believed when its head has been
// opened, and costs no memory before the bytes come.
//
// # Who reads
//
// The sockets are in a [subsys.Poller]. Normally its keeper reads them, parked
// in the runtime's poller while nothing comes. Who waits for an answer and is
// willing to spend a processor on it reads them himself ([Port.Ask]); the
// gate is shut meanwhile so that his packet does not wake the keeper as well.
package port
