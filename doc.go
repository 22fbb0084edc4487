// SPDX-License-Identifier: Apache-2.0

// Package rocl lets Go programs find each other by attributes and exchange messages.
//
// A process opens a [Context] with [Open] and registers resources with it. A [Resource] has
// attributes, such as type=server and model=llama, and a mailbox. Another program finds the
// resource by its attributes, without an address and without configuration, and sends it messages
// with tags. A message lies in a [Buffer], which is memory of a pool. Over shared memory the
// receiver reads a large message where the sender wrote it; no copy is made.
//
//	c, err := rocl.Open(ctx)
//	me, err := c.Register(ctx, rocl.Attrs{"type": "client"})
//	srv, err := c.Find(ctx, rocl.Match{"type": "server"})
//	b, err := c.Buffer(5)
//	copy(b.Bytes(), "hello")
//	err = me.Send(ctx, srv.ID, 7, b) // takes b over, unless it fails
//	answer, err := me.Recv(ctx, rocl.From(srv.ID))
//
// A server handles requests and replies to them. A client calls the server. The call fails with
// [ErrGone] as soon as the server has ended, so it needs no timeout to notice a crash:
//
//	err = me.Handle(ctx, func(m *rocl.Message) { // in the server
//		if err := me.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes())); err != nil {
//			log.Print(err)
//		}
//	}, rocl.EachInOwn())
//
//	reply, err := me.CallBytes(ctx, srv.ID, 7, []byte("hello")) // in a client
//
// [Context.Find], [Context.FindAll], [Context.Await] and [Context.Watch] look for resources.
// [Resource.Send], [Resource.Recv], [Resource.Call] and [Resource.Handle] exchange messages.
// [Resource.Monitor] puts a message into a mailbox when another resource has ended, behind the last
// message from that resource. [MailboxMessages] limits how many messages wait for a receiver.
//
// # Nodes and clusters
//
// A node is a machine or container with one directory, which knows the resources of the node. The
// directory runs in the daemon dirserver. Without a daemon, the first context of the node serves
// the directory, and another context takes over when that one ends. Each context then gives the
// next directory what it owns, so identifiers, attributes and revisions stay.
//
// Several nodes can form a cluster, either because their dirserver runs with --bind, or because
// their programs use [WithMember]. Then Find, FindAll, Lookup, Watch and Send reach the resources
// of all nodes. A program is the same for one node and for many. [ErrNotFound] is definite: every
// living node was asked. If some node could not be asked, the error is [ErrPartial].
//
// # Packages above
//
//   - [github.com/rocl-go/rocl/rpc]: remote procedure calls by name
//   - [github.com/rocl-go/rocl/work]: tasks for workers that come and go
//   - [github.com/rocl-go/rocl/group]: processes that end together, with the first cause
//   - [github.com/rocl-go/rocl/bulk]: regions of memory that other processes pull and push
//   - [github.com/rocl-go/rocl/live]: the current members of a pattern, and picks among them
//   - [github.com/rocl-go/rocl/netrocl]: net.Conn and net.Listener over resources
//   - [github.com/rocl-go/rocl/pool]: where units of work run
//   - [github.com/rocl-go/rocl/tpvm]: tasks, groups and messages as in PVM
//   - [github.com/rocl-go/rocl/directory/cluster]: the settings of a [Member]
//   - [github.com/rocl-go/rocl/rocltest]: nodes in memory for tests
//
// docs/GUARANTEES.md lists what the library promises, each promise with the test that shows it.
//
// # From the paper to Go
//
// The primitives of RoCL (Alves, Pina, Exposto, Rufino) correspond to these functions:
//
//	rocl_init, rocl_exit                Open, Context.Close
//	rocl_register, rocl_delete          Context.Register, Resource.Delete
//	rocl_query                          Context.Find, Context.Lookup
//	rocl_query_start, _next, _stop      the loop over Context.FindAll, its next round, break
//	rocl_bfget, rocl_bfret              Context.Buffer, Buffer.Release
//	rocl_bftoret                        Resource.Send, which takes the buffer over; Buffer.Retain to keep it
//	rocl_bfstat                         Buffer.State, Buffer.Done, Buffer.Wait
//	rocl_send                           Resource.Send
//	rocl_recv                           Resource.Recv (blocking, timed by its ctx), Resource.TryRecv
//	rocl_new_attrl, rocl_kill_attrl     List, Attrs; the garbage collector
//	rocl_add_attr, rocl_get_attr        List.Add, List.Want; List.Get
package rocl
