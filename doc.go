// SPDX-License-Identifier: Apache-2.0

// Package rocl lets Go programs find each other by what they are and exchange
// messages as fast as the machine allows.
//
// A process opens a [Context]. It registers resources, sets of attributes such
// as {type=server, model=llama}. Anyone finds a resource by attributes, with no
// address and no configuration, and sends it tagged messages held in pooled,
// registered buffers that no layer copies where the transport can do without.
//
//	c, err := rocl.Open(ctx)
//	me, err := c.Register(ctx, rocl.Attrs{"type": "client"})
//	srv, err := c.Find(ctx, rocl.Match{"type": "server"})
//	b, err := c.Buffer(5)
//	copy(b.Bytes(), "hello")
//	err = me.Send(ctx, srv.ID, 7, b) // takes b over, unless it fails
//	answer, err := me.Recv(ctx, rocl.From(srv.ID))
//
// A server replies to requests. Its client calls, and is told as soon as the server has ended:
//
//	err = me.Handle(ctx, func(m *rocl.Message) { // in the server
//		err := me.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes()))
//	}, rocl.EachInOwn())
//
//	reply, err := me.CallBytes(ctx, srv.ID, 7, []byte("hello")) // in a client; rocl.ErrGone
//
// [Resource.Monitor] tells that a resource has ended, behind its last message. [MailboxMessages]
// bounds what waits for a receiver. Package netrocl has net.Conn and net.Listener over
// resources.
//
// Resources are kept by the node's directory: a dirserver, or, where none
// runs, the first context of the node, from which another takes over.
//
// Where nodes are members of a cluster, because their dirserver has --bind, or by
// [WithMember], all this holds across them: Find, FindAll, Lookup, Watch and Send
// reach whatever any node has, and a program is the same for one node and many.
// ErrNotFound is definite: every node that lives has been asked. Where some could
// not be, the error is ErrPartial.
//
// # From the paper to Go
//
// The primitives of RoCL (Alves, Pina, Exposto, Rufino) and what they are here:
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
// What is promised, and the test that shows it, stands in docs/GUARANTEES.md.
package rocl
