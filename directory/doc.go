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
// socket. Package directory/internal/node has the socket, these files, the lock, and the checks of
// the processes at both ends.
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
// A context has one registration connection. Its resources are registered for as long as that
// connection lasts. Questions go over ask connections, which the asking goroutine writes and reads
// itself. Each watch has a connection of its own. Another member of the cluster has one peer
// connection ([Server.ServePeer]) for all its watches; it may send watch, stop and beat there and
// nothing else.
//
// A context that has asked often receives the index of the node: a copy of the database in shared
// memory, handed over on a connection of its own. From then on the context finds and looks up
// resources without asking: see directory/internal/index and client_index.go.
//
// # Where to find what
//
// Server and client are one package because one process may have both roles: a client becomes the
// server when no other process serves, and both read and write the files, events, labels and errors
// that this package exports. The files server_*.go have the server, client_*.go the client, and the
// others types of both. Files of the same ending belong together: *_ask.go has questions, *_list.go
// listings, *_watch.go watches, *_index.go the index, *_trace.go traces. A context's registration
// connection is in server_context.go and client_requests.go, and what a takeover needs in
// server_recovery.go and client_join.go.
//
// Package directory/internal/wire has the messages. Package directory/internal/node has the socket,
// the lock, the identity and the other files of a node, and the checks of the processes at both
// ends.
package directory
