// SPDX-License-Identifier: Apache-2.0

// Package cluster joins the directories of many nodes. Each serving directory
// is a member: memberlist tells it who else lives, and what its own database
// does not know it asks of the others by the protocol of package search.
//
// # Membership
//
// A member is named by its node number. Those it has ever met are remembered
// and joined again for as long as they are not seen alive: memberlist forgets
// its dead after 30 s, and two halves of a cluster cut for longer would stay
// apart for good. Gossip tells of each member which life of its port the
// others are to talk to. A member that closes while its contexts go on, to be
// replaced in a moment, says so: it remains a member, though one that cannot be
// asked, until it is back or a few seconds have passed. Members that meet tell
// each other which members are away or suspected to be dead (absent.go). A member
// that leaves for good tells each other one by a datagram of one byte, 15.
//
// # Questions
//
// A question travels in the datagrams of package port. Its body is its kind, an
// identifier if it is a lookup, and the pattern; the answer is identifier,
// owner, revision and attributes, as package directory has them. Who asks waits
// a while for members that do not answer and are not known to be dead: a
// directory that is being restarted costs time, not an answer.
//
// What has more than 64 KiB goes by a stream of its own (large.go). A question
// that a member does not understand, of a later version, it does not answer: a
// no would count.
//
// Of all that matches one member after another is asked, for one answer at a
// time; it keeps the place for who asked (places.go), and whoever finds it
// forgotten, because the directory was replaced, begins anew and passes over
// what it has had. A member that dies meanwhile has nothing any more.
//
// # Summaries
//
// What is registered goes into this member's summary, of which the others are
// told every few seconds, what is new alone where that is less. It is made anew
// when too much of it is gone, or too full. See package search for what a
// summary decides: whom to ask first.
//
// # Watches
//
// While anything is watched at this node there is a stream to each other member
// (stream.go draws its head), shared by all watches. What a member tells is
// compared with what it has told before, by revision, so it may be lost and made
// again at any time. A member that leaves or is seen dead takes what it had with
// it; one that is away, or that we cannot reach while others can, does not. A
// member is believed only what it says of its own resources.
package cluster
