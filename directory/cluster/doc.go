// SPDX-License-Identifier: Apache-2.0

// Package cluster joins the directories of many nodes. Each serving directory is a member.
// memberlist tells a member which other members live. A member asks the other members, by the
// protocol of package search, for what its own database does not have.
//
// # Parts
//
// Member has the settings by which a node takes part in a cluster (member.go). A Membership opens a
// Cluster with these settings when a server of the node begins, and closes it when the server ends
// (membership.go). The file of the cluster's keys is read in keys.go.
//
// A Cluster is composed of roles. Each has its own state and its own lock, and knows the roles that
// it needs. All share a core, which does not change.
//
//	memberTable  what is known of the other members     members.go, absent.go, apart.go, roll.go
//	gossip       memberlist, and what it reports        gossip.go, transport.go, quiet.go
//	joiner       joins members, and looks for lost ones join.go, places.go
//	departure    tells the other members that it goes   depart.go
//	exchanges    all that two members know, exchanged   exchange.go
//	keyset       the keys of the cluster                keyset.go
//	summaries    which member may have what             summaries.go
//	searches     drives package search, and counts      searches.go, tally.go
//	asker        questions of this node                 ask.go, listing.go, trace.go, large.go
//	answers      questions of other members             answer.go, cursors.go, question.go
//	streams      streams between members                stream.go
//	watches      watches, by one stream to each member  watch.go, feed.go
//	counts       what has happened                      stats.go
//
// Each lock is the field mu of the named type, except where the list names another field. A lock is
// taken before those to the right of its arrow. Most goroutines take one lock at a time.
//
//	Membership.keysMu → Membership.mu, keyset, and all that Open takes
//	Membership.keysMu → locks of directory.Server (SetTerms, SetLinkKeys, Attach)
//	directory.Server.wmu → watches → database.Watch
//	keyset → locks of memberlist's keyring and of the mux
//	joiner, exchanges, watches → memberTable → summaries, counts.pulseMu, locks of the mux
//	joiner, exchanges, watches → lifetime
//	searches → summaries, cursors → locks of the database
//
// The mutexes of asker, departure, gossip and quiet are taken alone.
//
// memberlist reports with a lock of its own held. So no lock that a report takes (memberTable,
// summaries, gossip and counts.pulseMu) is held while memberlist is called. Only keysMu is held
// while memberlist starts, and only keysMu and keyset while its keyring changes. No lock is held
// while a question waits or a stream is dialled.
//
// # Membership
//
// A member is named by its node number. A member remembers each member that it has met, and joins
// it again for as long as it is not seen alive. memberlist alone forgets its dead after 30 s, so
// the halves of a cluster that were cut for longer would stay apart for good. The addresses in
// Config.Join are tried for as long as the member lives: they may lead to members that none of
// those alive has met (join.go).
//
// A member that gossip takes for dead may live and refuse this one, because their keys differ. So
// the joiner probes its address. Until that has shown that no program answers there, and for as
// long as one refuses this member, no question is denied for certain.
//
// By gossip each member tells its epoch, which names the present life of its mux. The other
// members address that life alone. A member that has missed the gossip of a new epoch gets no
// answers: then the two exchange all that they know, by a stream (roll.go).
//
// A member that closes while the contexts of its node go on says so: another server is about to
// take its place. It stays a member that cannot be asked, until it is back or a few seconds have
// passed. Members that meet tell each other which members are away or suspected to be dead
// (absent.go). A member that leaves for good tells each other member by a datagram of one byte, 15.
//
// # Questions
//
// A question travels in the datagrams of package mux. Its body is its kind, an identifier unless
// it is a find, and the pattern. The answer has identifier, owner, revision and attributes in the
// format of package directory. The asking member waits a while for members that do not answer and
// are not known to be dead. So a directory that is being restarted costs time, and not an answer.
//
// The path of a question and of its answer:
//
//	asking process    Find                      directory/client_ask.go
//	  │ Unix socket
//	server            serveAsk, find            directory/server_ask.go
//	  │               Cluster.Find              cluster.go
//	  │               asker.find                ask.go
//	  │               searches.runWith          searches.go, package search
//	  │ datagrams of package mux
//	other member      Cluster.receive           cluster.go
//	                  answers.mayAnswer         answer.go
//	                  searches.receive          searches.go, package search
//	                  answers.packet            answer.go
//
// The answer goes back the same path: the other member's searches sends it, Cluster.receive of the
// asking member hands it to searches, and waiter.Ended wakes the goroutine in runWith.
//
// A question or an answer of more than 64 KiB goes by a stream of its own (large.go). A member does
// not answer a question of a later version, which it does not understand: its no would count.
//
// To list all matches, a member asks one other member after another, for one answer at a time. The
// asked member keeps a cursor for the listing (cursors.go). If it has forgotten the cursor, because
// its directory was replaced, the asking member begins again and skips what it has had. A member
// that dies meanwhile has no more resources.
//
// # Summaries
//
// Attributes that are registered are added to this member's summary. The member sends the summary
// to the other members every few seconds, or only what is new in it if that is smaller. It makes
// the summary anew when too much of its content is gone, or when it is too full. A summary decides
// which members are asked first: see package search.
//
// # Watches
//
// While a context of this node watches, there is one stream to each other member, which all watches
// share. What a member tells is compared, by revision, with what it told before. So the stream may
// break and be made again at any time. When a member leaves or is seen dead, the watches report its
// resources as gone. They do not when it is away, or when only this member cannot reach it. A
// member is believed only what it says of its own resources.
package cluster
