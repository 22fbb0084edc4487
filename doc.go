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
// [Resource.Monitor] puts a message into a mailbox when another resource has ended, behind the last
// message from that resource. [MailboxMessages] limits how many messages wait for a receiver.
// Package netrocl has net.Conn and net.Listener over resources.
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
// # Methods
//
// The types of this package are aliases of types in other packages, so that all packages of the
// library name the same types and nothing is copied or wrapped between them. The documentation of
// their methods is with the types; this list links to it. The functions are documented here, and
// package context repeats their first sentences. Most programs import this package only. Members of
// a cluster also import directory/cluster, and remote procedure calls, bulk transfers and other
// layers have packages of their own: rpc, bulk, pool, netrocl and tpvm.
//
// Context:
//
//   - [Context.Addrs] returns the addresses at which other contexts reach this one
//   - [Context.Await] finds a number of resources, and waits until there are as many
//   - [Context.Buffer] returns a buffer for a payload, from the pool
//   - [Context.BufferWait] is Buffer that waits while the memory is used up
//   - [Context.Poll] reads what has arrived, without waiting
//   - [Context.Close] delivers what was accepted, deletes the resources, and frees everything
//   - [Context.Explain] adds to an error why a resource's context is not reached
//   - [Context.Find] finds one resource by its attributes
//   - [Context.FindAll] yields all resources that match
//   - [Context.Flush] waits until all messages of the context have been delivered
//   - [Context.ID] returns the identifier of the context
//   - [Context.Lend] makes a buffer of the program's own memory
//   - [Context.Lookup] finds a resource by its identifier
//   - [Context.Register] registers a resource
//   - [Context.Routes] tells which transport each link uses
//   - [Context.Stats] returns counts of messages, bytes and links
//   - [Context.Watch] yields changes of the resources that match
//   - [Context.WatchIDs] yields changes of resources whose identifiers are given
//
// Resource: attributes and life:
//
//   - [Resource.ID] returns the identifier of the resource
//   - [Resource.Context] returns the context of the resource
//   - [Resource.Revision] returns the revision of the attributes
//   - [Resource.Set] changes one attribute
//   - [Resource.Update] replaces the attributes
//   - [Resource.CompareAndSet] replaces the attributes if they have a given revision
//   - [Resource.Delete] withdraws the resource
//   - [Resource.Close] is Delete that waits no longer than the linger time
//
// Resource: sending:
//
//   - [Resource.Send] sends a buffer, which it takes over
//   - [Resource.SendBytes] sends a copy of a slice
//   - [Resource.SendAndForget] is SendBytes for a message whose loss is of no interest
//   - [Resource.TrySend] is Send that does not wait for room
//   - [Resource.SendAll] sends one buffer to several resources
//   - [Resource.SendTo] finds a resource and sends to it
//   - [Resource.SendToAll] sends to all resources that match
//   - [Resource.Flush] waits until the messages of the resource have been delivered
//
// Resource: receiving:
//
//   - [Resource.Recv] returns the next message that the selectors select
//   - [Resource.TryRecv] is Recv that does not wait
//   - [Resource.Messages] yields messages in a loop
//   - [Resource.Handle] calls a function for each message
//   - [Resource.Peek] returns origin, tag and size of the next message, and leaves it
//   - [Resource.PutBack] returns a message to the mailbox
//   - [Resource.Waiting] tells how many messages wait
//   - [Resource.Monitor] has a message put into the mailbox when another resource has ended
//
// Resource: calls:
//
//   - [Resource.Call] sends a request and returns the reply
//   - [Resource.CallBytes] is Call with a copy of a slice
//   - [Resource.CallInto] is CallBytes whose reply lies in memory of the program
//   - [Resource.StartCall] sends a request and does not wait: see Pending
//   - [Resource.StartCallBytes] is StartCall with a copy of a slice
//   - [Resource.Reply] replies to a request
//   - [Resource.ReplyBytes] is Reply with a copy of a slice
//
// Message:
//
//   - [Message.Bytes] returns the payload
//   - [Message.Len] returns its size
//   - [Message.From] returns the identifier of the sender
//   - [Message.Tag] returns the tag
//   - [Message.IsCall] reports whether the message is a request that waits for a reply
//   - [Message.OnCancel] tells that the caller has given up the call
//   - [Message.Waited] returns how long a request has been in its mailbox
//   - [Message.IsGone] reports whether the message tells of the end of a monitored resource
//   - [Message.GoneErr] returns why that resource has ended
//   - [Message.Buffer] returns the memory of the payload, to be passed on without a copy
//   - [Message.ReadOnly] reports whether the payload may only be read
//   - [Message.Writable] returns a payload that may be written
//   - [Message.Read] implements io.Reader
//   - [Message.WriteTo] implements io.WriterTo
//   - [Message.Release] gives the memory back
//
// Pending:
//
//   - [Pending.Wait] returns the reply
//   - [Pending.Cancel] ends the call
//
// Buffer:
//
//   - [Buffer.Bytes] returns the memory
//   - [Buffer.Len] returns its size
//   - [Buffer.Cap] returns how far Resize can extend it
//   - [Buffer.Resize] changes the size
//   - [Buffer.Write] appends bytes
//   - [Buffer.WriteString] appends a string
//   - [Buffer.ReadFrom] appends what a reader has
//   - [Buffer.Slice] returns a buffer of a part of the memory
//   - [Buffer.Retain] adds a reference
//   - [Buffer.Release] gives a reference back
//   - [Buffer.Refs] returns the number of references
//   - [Buffer.ReadOnly] reports whether the memory may only be read
//   - [Buffer.State] tells how far a message has come
//   - [Buffer.Done] reports whether the message is delivered or failed
//   - [Buffer.Wait] waits until it is
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
//
// [Context.Addrs]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Addrs
// [Context.Await]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Await
// [Context.Buffer]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Buffer
// [Context.BufferWait]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.BufferWait
// [Context.Close]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Close
// [Context.Explain]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Explain
// [Context.Find]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Find
// [Context.FindAll]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.FindAll
// [Context.Flush]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Flush
// [Context.ID]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.ID
// [Context.Lend]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Lend
// [Context.Lookup]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Lookup
// [Context.Poll]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Poll
// [Context.Register]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Register
// [Context.Routes]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Routes
// [Context.Stats]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Stats
// [Context.Watch]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.Watch
// [Context.WatchIDs]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Context.WatchIDs
// [Message.OnCancel]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.OnCancel
// [Message.Waited]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Waited
// [Resource.ID]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.ID
// [Resource.Context]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Context
// [Resource.Revision]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Revision
// [Resource.Set]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Set
// [Resource.Update]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Update
// [Resource.CompareAndSet]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.CompareAndSet
// [Resource.Delete]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Delete
// [Resource.Close]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Close
// [Resource.Send]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Send
// [Resource.SendBytes]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.SendBytes
// [Resource.SendAndForget]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.SendAndForget
// [Resource.TrySend]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.TrySend
// [Resource.SendAll]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.SendAll
// [Resource.SendTo]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.SendTo
// [Resource.SendToAll]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.SendToAll
// [Resource.Flush]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Flush
// [Resource.Recv]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Recv
// [Resource.TryRecv]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.TryRecv
// [Resource.Messages]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Messages
// [Resource.Handle]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Handle
// [Resource.Peek]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Peek
// [Resource.PutBack]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.PutBack
// [Resource.Waiting]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Waiting
// [Resource.Monitor]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Monitor
// [Resource.Call]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Call
// [Resource.CallBytes]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.CallBytes
// [Resource.CallInto]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.CallInto
// [Resource.StartCall]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.StartCall
// [Resource.StartCallBytes]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.StartCallBytes
// [Resource.Reply]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.Reply
// [Resource.ReplyBytes]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Resource.ReplyBytes
// [Message.Bytes]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Bytes
// [Message.Len]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Len
// [Message.From]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.From
// [Message.Tag]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Tag
// [Message.IsCall]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.IsCall
// [Message.GoneErr]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.GoneErr
// [Message.IsGone]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.IsGone
// [Message.Buffer]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Buffer
// [Message.ReadOnly]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.ReadOnly
// [Message.Writable]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Writable
// [Message.Read]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Read
// [Message.WriteTo]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.WriteTo
// [Message.Release]: https://pkg.go.dev/github.com/rocl-go/rocl/dispatch#Message.Release
// [Pending.Wait]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Pending.Wait
// [Pending.Cancel]: https://pkg.go.dev/github.com/rocl-go/rocl/context#Pending.Cancel
// [Buffer.Bytes]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Bytes
// [Buffer.Len]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Len
// [Buffer.Cap]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Cap
// [Buffer.Resize]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Resize
// [Buffer.Write]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Write
// [Buffer.WriteString]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.WriteString
// [Buffer.ReadFrom]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.ReadFrom
// [Buffer.Slice]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Slice
// [Buffer.Retain]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Retain
// [Buffer.Release]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Release
// [Buffer.Refs]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Refs
// [Buffer.ReadOnly]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.ReadOnly
// [Buffer.State]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.State
// [Buffer.Done]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Done
// [Buffer.Wait]: https://pkg.go.dev/github.com/rocl-go/rocl/buffers#Buffer.Wait
package rocl
