// SPDX-License-Identifier: Apache-2.0

// Package dataflow runs graphs of typed stages, in one process or cut into several, with the same
// program.
//
// A graph consists of parts. [From] makes a source, [Do] a stage and [To] a sink. [Pipeline],
// [Farm], [AllToAll], [Fuse], [Loop] and [Ring] compose parts to greater ones, and the compiler
// checks that the types of their items fit:
//
//	src := dataflow.From(numbers)
//	farm := dataflow.Farm(4, func(int) dataflow.Part[int, int] { return dataflow.Do(square{}) },
//		dataflow.Policy(dataflow.OnDemand(2)))
//	sum := dataflow.To(add)
//	g, err := dataflow.New("squares", dataflow.Pipeline3(src, farm, sum))
//	err = g.Run(ctx)
//
// Each node, which is a source, a stage or a sink, is called by one goroutine, for one item at a
// time. A stage needs no lock for its own state.
//
// # Channels
//
// Each stage of a pipeline is connected with each node of the next one. A connection is an edge. It
// keeps the order of the items and hands them over: the sender must not touch what it has sent. The
// channels of a node, which are the ends of its edges, are numbered in the order in which the parts
// were given to the function that composed them. [Out] sends to the channel that the [Policy]
// chooses, or to a channel by its number.
//
// A sender waits while the consumer has not taken up enough of what was sent ([Window]). So a slow
// sink slows the source down, and memory is bounded. Feedback is the exception: SendBack never
// waits for a consumer, because two nodes of a loop could wait for each other. Instead a node takes
// a fresh item only if no feedback waits for it.
//
// # End of the stream
//
// A node ends when all its input channels have ended, feedback included, or when it returns [Done].
// Then the channels that it sends on end too. So a loop never ends by itself: a node in it must
// return Done. The end of a channel carries the number of its items, and a difference is an error.
// [Graph.Run] returns nil if each node has ended well. Otherwise it returns a [*RunError] with the
// first failure of the whole run, in each group that the failure affects.
//
// # Groups
//
// [Graph.Group] puts nodes into a group. Each process builds the whole graph and runs the nodes of
// one group with [InGroup]. A group is a rocl context. The edges between groups are messages of
// package rocl. The groups of a run find each other by attributes: the graph's name, the run, and a
// hash of the graph, so that two programs with different graphs do not mix.
package dataflow
