// SPDX-License-Identifier: Apache-2.0

// Package context is the machinery below rocl.Context. It knows neither that type nor
// rocl.Resource.
//
// A message needs the owner of its target, a flow to the target and the addresses of the owner.
// [Targets] finds them and caches each of the three, so almost no message asks the directory
// (section 4.1 of the paper). An entry that is outdated is noticed when using it fails: the entry
// is dropped, and the directory is asked again.
//
//   - [Config]: what the options of rocl.Open set, and how a context joins its directory
//   - [Lifetime]: the goroutines of a context, and the end that they wait for
//   - [Directory]: the client of the node's directory, and claims for what must be unique
//   - [Targets]: flows over the lanes of [Rules], and addresses, from caches or the directory
//   - [Ports]: where the context listens, and what seals its links, by the directory's terms
//   - [Questions]: the routes of other contexts of the node
//
// # Locks
//
// The lock of a cache is taken while no other lock of this package is held. Under it a flow is
// asked whether it has failed, which takes locks of package dispatch. So that package holds no lock
// when it calls Targets.Resolve and Targets.Ended. It may hold locks when it calls Ports.Trust and
// the check of a transport, which take none of these. The locks of lookups and of answers are held
// while Lifetime.mu is taken.
package context
