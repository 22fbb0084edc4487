// SPDX-License-Identifier: Apache-2.0

// Package node makes a process the server of its node, and lets other processes find it. It has the
// socket with the files beside it, and the checks of the processes at both ends. It does not know
// what the connections carry: a [Listener] passes each to the function Serve of its [Config].
//
// # Files
//
//	PATH        the socket, 0600
//	PATH.lock   flock: the process that holds it serves; byte locks: the contexts that live
//	PATH.node   node number, boot id, epoch, key, labels; 0600
//	PATH.member the cluster that the node belongs to, if any, and addresses of its members; 0600
//
// # Life of a Listener
//
// [New] makes a Listener of a node in memory, which can listen only at TCP ports. [Listener.Claim]
// takes the lock of the node at a path and loads the node's identity; a daemon asks a context that
// serves for the lock. [Listener.Open] then listens. From then on a guard restores files that are
// removed. If another process has the files, Displaced is closed and the function End of the Config
// is called. [Listener.Stop] ends listening, and [Listener.Unlock] lets the next process serve.
//
// # Where to find what
//
//	listener.go  a Listener, and the connections that it accepts
//	claim.go     the lock: taking it, asking for it, handing it over
//	guard.go     restoring files
//	identity.go  PATH.node
//	member.go    PATH.member
//	presence.go  which contexts live
//	files.go     reading and writing the files beside the socket
//	path.go      which paths and addresses are valid
//	trust.go     which users are trusted
//	dial.go      connecting to a server
//	tcp.go       the proofs that replace the owner of a socket at a TCP port
//
// # Locks
//
// The mutex of a socket is taken before the mutex of its Listener. No function of the Config is
// called with the mutex of the Listener held. Remade, and the parameter of WriteMember, are called
// with the mutex of a socket held.
package node
