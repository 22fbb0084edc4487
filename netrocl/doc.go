// SPDX-License-Identifier: Apache-2.0

// Package netrocl implements net.Conn and net.Listener over resources. A program that was written
// for TCP finds its server by attributes, and needs no addresses.
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
// The package uses only what package rocl offers to every program.
//
// # A connection is two resources
//
// Each end of a connection is a resource without attributes. Its mailbox holds the bytes that were
// written and not yet read. So the mailbox's limit is the flow control of this connection alone: a
// slow reader stops its own writer, and no other connection.
//
// The price is paid at the directories of both nodes: connecting registers one resource with each,
// and closing deletes it. A pattern that names no attribute finds these resources too. A context
// has about four thousand million identifiers for resources, which limits the connections in its
// life.
//
// The two ends and the listener exchange these messages:
//
//	message          from, to                 payload
//	tagDial          dialer to listener       the version, 1
//	tagAccept        listener to dialer       the identifier of the accepting end, as text
//	tagRefuse        listener to dialer       the reason for the refusal
//	tagData          end to end               bytes of the stream
//	tagEnd           end to end               none: no more bytes follow
//	tagClose         end to end               none: the same, and this end reads no more
//	tagGone          the library, to an end   none: the other end is gone (rocl.Resource.Monitor)
//	tagWake          an end to itself         none: a deadline has passed, or Close was called
//
// An end drops all other messages, and messages from any other origin.
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
// A [Listener] has one goroutine, which answers dialers until Close. A [Conn] has no goroutine
// while it is open. Close starts two. One sends the end of the stream, if Close could not. The
// other waits for the peer's end and deletes the resource. Both end after a minute and a few
// seconds at the latest, or with the context. Each deadline is a timer.
//
// A Read holds Conn.reading while it waits, and a Write holds Conn.writing. Close ends both
// operations, and then takes first reading and, after releasing it, writing. deadline.mu is the
// innermost lock; no operation that waits is called while it is held.
package netrocl
