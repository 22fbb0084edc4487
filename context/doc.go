// SPDX-License-Identifier: Apache-2.0

// Package context defines Context and Resource, the types that programs use. Programs reach this
// package through the aliases in the root package rocl, which also documents the functions. Here
// the standard package of the same name is imported as stdctx.
//
// A [Context] joins the parts of the library:
//
//   - a dispatcher (package dispatch), with a port on each transport, links to other contexts and
//     the mailboxes of the resources;
//   - a client of the node's directory (package directory), which registers and finds resources;
//   - a pool of registered memory (package buffers), in which messages lie;
//   - the resources that are registered through the context.
//
// A message needs the owner of its target, a flow to the target and the addresses of the owner.
// Each of the three has a cache, so almost no message asks the directory (section 4.1 of the
// paper). An entry that is outdated is noticed when using it fails: the entry is dropped, and the
// directory is asked again.
//
// A goroutine for each context, follow, reacts to changes of the directory's terms: the cluster's
// name, its keys and the address of the node. [Open] starts it and [Context.Close] ends it.
//
// # Files
//
//	context.go   Context: Open, Register, Find, Watch and Close
//	options.go   the options of Open
//	member.go    the membership of a directory that the context serves
//	terms.go     following the directory's terms
//	listen.go    where the context listens, and which addresses of other contexts are usable
//	seal.go      the transport to other nodes of a cluster with a key, and the trust in links
//	resource.go  Resource: Send, Recv, Update and Delete
//	cache.go     owners, flows and addresses, and which nodes are dead
//	find.go      options of finds, Await, Set, and sending to what a pattern finds
//	unique.go    registrations with Unique
//	call.go      calls and replies
//	handle.go    Resource.Handle
//	sendall.go   sending to several targets, and several buffers as one message
//	trysend.go   sending without waiting, and the lookups that it begins
//	routes.go    the routes of this context and of others of the node
//
// The methods in buffer.go, flush.go, monitor.go, receive.go, stats.go and value.go do
// what the names of the files say, mostly by a call of package dispatch.
//
// # Locks
//
// Context.mu guards whether Close has begun, and which answers and lookups are under way. While it
// is held, no other lock of this package is taken. cache.mu is taken while no other lock of this
// package is held. Under cache.mu a flow is asked whether it has failed, which takes locks of
// package dispatch. So that package holds no lock when it calls resolve and cache.ended. It may
// hold locks when it calls trust and checkSealed, which take none of these.
package context
