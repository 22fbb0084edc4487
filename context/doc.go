// SPDX-License-Identifier: Apache-2.0

// Package context defines Context and Resource, the types that programs use. Programs reach this
// package through the aliases in the root package rocl, which also documents the functions. Here the standard package of the same name
// is imported as stdctx.
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
package context
