// SPDX-License-Identifier: Apache-2.0

// Package mux is the one port, UDP and TCP, of a member of a cluster. Gossip, the datagrams of
// searches and the streams between directories share it. Their first byte tells them apart.
//
//	                                                 ┌──► Receive
//	datagram ─── 'R'  sealed, counted, seen once ────┤
//	                                                 └──► Gossip
//
//	                     ┌ 244  memberlist's ──────────────► Gossip
//	stream   ─── (TLS) ──┤ 'L'  large, sealed, seen once ──► Receive
//	                     └ else ───────────────────────────► Stream
//
// # Datagrams
//
// Each datagram is sealed with AES-256-GCM, under a key that only the present incarnations of its
// sender and its receiver share. The key is derived from the cluster's key, the cluster's name, and
// the number and epoch of both. An epoch is drawn at random when a port is opened, and told by
// gossip. So a datagram recorded before either of them restarted does not open. A datagram recorded
// later is caught by a window over the counter that is in each. A datagram that does not open is
// dropped without an answer: a program without the key does not even learn that a member is there.
//
// In a cluster without a key, a checksum takes the place of the cipher. Its seed is what would have
// been the key. It catches accidents and former incarnations, and no attackers.
//
// A cast goes to all members at once, by multicast or broadcast, under a key of its sender's
// incarnation alone. A receiver takes casts only from a number on that the sender has told it in a
// datagram between the two.
//
// Gossip, memberlist's datagrams, is sealed for the present incarnations of sender and receiver as
// well, by a key of its own. It also goes to members that were parted from: memberlist tells the
// dead that they are dead, so that they can deny it. Without this seal, a recorded rumour of a
// death would be believed: memberlist numbers what is said of a member from 1 in each of its
// incarnations. memberlist's own seal adds nothing in datagrams. In streams it keeps out a program
// that has a certificate and not the key.
//
// Before two members know each other's incarnations, they say hello: a datagram to an address,
// which a member answers, sealed with a key of all members. A recorded hello is answered too, with
// as many bytes, and only makes the receiver look for the sender. The members then exchange what
// they know by a stream. A member that another one addresses in its former incarnation learns by a
// beacon that a member is there ([Mux.Knock]). A program that answers no hello and refuses streams
// is told from none at all by [Mux.Probe].
//
// Members are parted from and met again in the same incarnations, whenever one is taken for dead in
// error. Counters then go on, and what was heard stays heard.
//
// All members that know the key are equal: any of them could pretend to be another one. The key
// keeps strangers out, and not members that lie.
//
// # Streams
//
// If there is a key, all streams use TLS. That includes memberlist's, which would otherwise answer
// a stranger. A stream whose caller cannot show that it is a member is closed without a reply. The
// first byte inside TLS tells the streams apart.
//
// A stranger has two seconds to show that it is a member. The number of strangers is limited:
// beyond the limit the oldest gives way, so that a member always gets in.
//
// A payload that is too large for a datagram goes by a stream of its own. It is sealed and counted
// as a datagram is, with and without TLS. Its length is believed when its head has been opened, and
// costs no memory before the bytes come.
//
// # Reading
//
// The sockets are in a [subsys.Poller]. Normally its keeper reads them, and parks in the Go runtime
// while nothing comes. A goroutine that waits for an answer, and may spend a processor on that,
// reads a socket itself ([Mux.Ask]). That socket is not in the Poller meanwhile, so an answer does
// not wake the keeper too.
package mux
