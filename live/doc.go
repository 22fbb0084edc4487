// SPDX-License-Identifier: Apache-2.0

// Package live keeps the current members of a pattern, and picks one of them for each request.
//
//	workers, err := live.Follow(ctx, c, rocl.Match{"type": "worker"})
//	defer workers.Close()
//	...
//	m, err := workers.Pick(live.Least("load"))
//	reply, err := me.CallBytes(ctx, m.ID, tag, request)
//	m.Done(err) // the request is over; if err is an end, m is not picked again
//
// What is promised:
//
//   - A [Set] has the members that the node's directory knows. It follows takeovers of the directory
//     and cuts in the cluster by itself, until its ctx ends or [Set.Close].
//   - A Pick that begins after the end of a member is known here does not return it. The watch tells
//     the end, or the program does, with the error of a request ([Member.Done]) or of a monitor
//     ([Set.Ended]).
//   - Contexts with the same members pick the same member for the same key with [Hash]. If a member
//     comes or goes, only the keys move that the member gets or had.
//   - With [Least], own requests in flight count. Eight requests at once over four equal members
//     go 2, 2, 2, 2, however old the published numbers are.
//
// What is not promised: that a picked member lives. Its process can end at any moment, and its node
// can be behind a cut that gossip has not noticed yet, which takes seconds. A request to it fails
// then, or waits. Two contexts see a change at different moments, so their picks for a key can
// differ meanwhile. In a partition, a Set has the members of its own side.
//
// # Ways to pick
//
//	way           the member                                        for
//	Hash(key)     that the key belongs to                           caches, shards, sessions
//	Turn()        after the one that was picked last                equal requests
//	Random()      any                                               many clients, without a pattern
//	Least(name)   with the least number in the attribute name,      requests of unequal length
//	              plus the own requests in flight
//	Nearest()     of this context, then of this node, then others,  large messages
//	              in turn
//
// A pick takes some dozens of nanoseconds, with a thousand members too, and does not allocate.
//
// Typed attributes, patterns as text and calls by name are in packages rocl and rpc.
package live
