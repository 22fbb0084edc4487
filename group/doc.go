// SPDX-License-Identifier: Apache-2.0

// Package group ends a group of processes when one of them fails, with one error that names the
// first cause. It does for processes what errgroup does for goroutines: when a worker is killed,
// the error everywhere is that the worker has ended, and not that the source has lost its
// connection.
//
//	g, err := group.Join(ctx, c, "indexing", rocl.Attrs{"role": "worker", "shard": "3"})
//	g.Go(func(ctx context.Context) error { … })
//	err = g.Wait() // group indexing: member role=worker shard=3 (…) on host7: group: the member has ended: …
//
// # What is promised
//
// The group has failed when a function of a member returns an error or panics, or when a member
// ends, or is cut off, before its functions have returned. Then the contexts of the functions of
// all members end, and Wait returns an [*Error] with the first cause that this member knows: the
// end of a member, of which monitors tell, or the error of a function, which its member tells.
// Members learn of a cause in milliseconds on one node, and in the time of rocl.WithGiveUp at the
// latest. A member that has ended before it learned of the failure does not return it. If two
// members fail at the same time, two members may return different causes. After a cut both sides
// fail.
//
// A function whose error matches rocl.ErrGone or rocl.ErrUnreachable has mostly seen the end of
// another member. Such an error is the cause only if no monitor names another one within a second.
//
// A member that ends well, because Wait has returned nil, does not end the others. A member that
// joins while others end either meets them or does not: one that it has not met does not make it
// fail. The group of a second run needs a name of its own if members of the first may still be
// ending.
//
// # Exact recovery
//
// A [Source] and a [Sink] tell which items a worker between them held when it ended.
package group
