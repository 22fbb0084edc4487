// Package cluster joins the directories of many nodes. Each serving directory
// is a member: memberlist tells it who else lives, and what its own database
// does not know it asks of the others by the protocol of package search.
//
// # Membership
//
// A member is named by its node number. Those it has ever met are remembered
// and joined again for as long as they are not seen alive: memberlist forgets
// its dead after 30 s, and two halves of a cluster cut for longer would stay
// apart for good.
//
// # Questions
//
// A question travels as a best-effort message of memberlist, which seals it
// with the cluster's key if there is one; an answer too large for a packet goes
// over a connection. The body of a question is its kind, an identifier if it is
// a lookup, and the pattern; the answer is identifier, owner, revision and
// attributes, as package directory has them.
package cluster
