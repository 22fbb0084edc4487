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
//		err := me.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes()))
//	}, rocl.EachInOwn())
//
//	reply, err := me.CallBytes(ctx, srv.ID, 7, []byte("hello")) // in a client
//
// [Resource.Monitor] puts a message into a mailbox when another resource has ended, behind the last
// message from that resource. [MailboxMessages] limits how many messages wait for a receiver.
// Package netrocl has net.Conn and net.Listener over resources.
//
// # Nodes and clusters
//
// A node is a machine or container with one directory, which knows the resources of the node. The
// directory runs in the daemon dirserver. Without a daemon, the first context of the node serves
// the directory, and another context takes over when that one ends.
//
// Several nodes can form a cluster, either because their dirserver runs with --bind, or because
// their programs use [WithMember]. Then Find, FindAll, Lookup, Watch and Send reach the resources
// of all nodes. A program is the same for one node and for many. [ErrNotFound] is definite: every
// living node was asked. If some node could not be asked, the error is [ErrPartial].
//
// # From the paper to Go
//
// The primitives of RoCL (Alves, Pina, Exposto, Rufino) correspond to these functions:
//
//	rocl_init              Open
//	rocl_exit              Context.Close
//	rocl_register          Context.Register
//	rocl_delete            Resource.Delete
//	rocl_query             Context.Find, Context.Lookup
//	rocl_bfget             Context.Buffer
//	rocl_bfret             Buffer.Release
//	rocl_bftoret           Resource.Send (which takes the buffer over, unless it fails), Buffer.Retain to keep it
//	rocl_bfstat            Buffer.State, Buffer.Done, Buffer.Wait
//	rocl_send              Resource.Send
//	rocl_recv              Resource.Recv (blocking, timed by its ctx), Resource.TryRecv
//	rocl_new_attrl         List, Attrs
//	rocl_add_attr          List.Add, List.Want
//	rocl_get_attr          List.Get
//	rocl_kill_attrl        the garbage collector
//	rocl_query_start       Context.FindAll: the loop begins
//	rocl_query_next        …its next round
//	rocl_query_stop        …break
//
// docs/GUARANTEES.md lists what the library promises, each promise with the test that shows it.
package rocl
