// SPDX-License-Identifier: Apache-2.0

// Package netrocl has net.Conn and net.Listener over resources: a program that was
// written for TCP finds its server by attributes, and needs no addresses.
//
//	ln, err := netrocl.Listen(ctx, c, rocl.Attrs{"type": "web"})      // the server
//	err = http.Serve(ln, handler)
//
//	client := &http.Client{Transport: &http.Transport{                // a client
//		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
//			return netrocl.Dial(ctx, c, rocl.Match{"type": "web"})
//		},
//	}}
//
// It is made of what package rocl offers, and of nothing else.
//
// # A connection is two resources
//
// Each end of a connection is a resource without attributes, whose mailbox holds what was
// written and not yet read. So the mailbox's limit is the flow control of this connection
// alone: a reader that is slow stops its own writer, and no other connection. The price is
// that to connect, the directory of each node is told of one resource, and to close, that
// it is gone. A pattern that names no attribute finds these resources too. A context has
// identifiers for four thousand million resources, so for as many connections in its life.
//
// What the two ends and the listener say to each other:
//
//	message          from, to                 payload
//	tagDial          dialer to listener       the version, 1
//	tagAccept        listener to dialer       the identifier of the accepting end, as text
//	tagRefuse        listener to dialer       why there is none
//	tagData          end to end               bytes of the stream
//	tagEnd           end to end               none: no more bytes follow
//	tagClose         end to end               none: the same, and this end reads no more
//	tagGone          the library, to an end   none: the other end is gone (rocl.Resource.Monitor)
//	tagWake          an end to itself         none: a deadline has passed, or Close was called
//
// Anything else, and anything from another origin, is dropped.
//
//	open ──► CloseWrite: sends tagEnd, and goes on to read
//	  │
//	  ├────► Close: sends tagClose, if it has not sent tagEnd
//	  │        └──► lingers, for a minute at most, until tagEnd, tagClose or tagGone comes;
//	  │             or tagData, which is not wanted
//	  │               └──► the resource is deleted, which the peer learns as tagGone
//	  ├────► tagEnd, tagClose come: Read returns io.EOF. After tagClose Write fails, and
//	  │        Close sends nothing and does not linger
//	  └────► tagGone comes before them: Read and Write fail with rocl.ErrGone
//
// # Goroutines, timers and locks
//
// A [Listener] has one goroutine, which answers those that dial, until Close. A [Conn] has none
// while it is open. Close starts two: one sends the end of the stream, where Close could not, the
// other waits for the peer's end and deletes the resource. They end after a minute and a few
// seconds at the latest, or with the context. Each deadline is a timer.
//
// A Read holds Conn.reading, and a Write Conn.writing, while it waits. Close ends both, and then
// takes first the one and then the other. deadline.mu is taken last; nothing that waits is
// called with it.
package netrocl
