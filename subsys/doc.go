// SPDX-License-Identifier: Apache-2.0

// Package subsys defines the contract between the dispatcher (package dispatch) and a transport,
// and has the machinery that transports share.
//
// A [Transport] opens a [Port] for a context. A port accepts and dials connections ([Conn]). A
// connection carries frames ([Frame]), whole and in order, to a [Sink] until it goes down, which it
// reports once. Everything that has to survive a broken connection, such as sequence numbers,
// acknowledgements and credit, is in package dispatch. So a transport stays small: it moves frames,
// and reports when it cannot.
//
// # The frame
//
// Every frame starts with the 32 bytes of a [Header]. Stream transports put them on the wire, in
// the form that docs/PROTOCOL.md shows. Other transports may carry the struct. Seq and Ack are
// modulo 2³². Src and Dst are the serials of the origin and the target resource. A connection joins
// two contexts, so the rest of their identifiers never travels, and a peer cannot speak for a
// context that is not its own.
//
// # Which goroutine calls what
//
// The progress goroutine is the one that drives the [Poller] at the moment. It holds
// Config.Progress meanwhile.
//
//	call                               goroutine                      may wait
//	Transport.Listen                   any                            no
//	Port.Dial                          any                            until ctx ends
//	Port.Close                         any, without Config.Progress   for the port's goroutines
//	Config.Accept                      one of the port                no
//	Conn.Start                         any, without Config.Progress   for the progress goroutine
//	Conn.Close, Admit                  any                            no
//	Conn.Send                          one at a time                  no
//	Sink.Frames, Room, Writable        the progress goroutine         no
//	Sink.Down                          any, once                      no
//	Source.Ready, Ring.Look, SetIdle   the progress goroutine         no
//
// A sink may call Send and Close of any connection, its own included. So a connection holds no lock
// that Send takes while it calls its sink. A connection does not call its sink after Down or Close,
// except that a call in progress may continue.
//
// Payload bytes given to Send stay readable until the frame is acknowledged or the connection is
// closed. Payload bytes given to a sink belong to the frame's Buf, which the sink retains if it
// keeps them.
//
// Some locks have a level of package lock, below all locks of package dispatch: 120 for Conn.mu of
// package stream and sender.mu of package shm, 130 for returns.mu of package shm, and 140 for
// Poller.mu. The other locks are plain mutexes, such as those of ports. The documentation of each
// package gives their order. No lock is taken while Poller.mu is held.
//
// # When a peer ends
//
// If the peer's process closes the connection or is killed, the connection first delivers what has
// arrived. Then it calls Down with [ErrPeerClosed]. If the peer breaks the protocol, it calls Down
// with [ErrProtocol] at once. A machine that is switched off, or a network that is cut, ends no
// connection: the dispatcher asks [Prober.Unanswered] at intervals, and closes a connection to a
// machine that does not answer. A transport neither dials again nor sends again.
//
// # Progress
//
// The descriptors of a context's stream connections are in one set, the [Poller]: an epoll set, a
// kqueue on macOS and the BSDs, and poll(2) elsewhere. A goroutine that waits for a message drives
// it, by polling or by sleeping in it. If no goroutine waits, one is parked, on Linux in the
// runtime's poller, and watches the set. A transport that receives through memory registers as a
// [Ring]: each poll looks at the memory. On Linux, a goroutine that waits for rings alone may sleep
// on a futex for a short time (Nap), which takes less time than epoll_wait.
//
// # A new transport
//
// A transport takes a day if it is written in this order. The model is transport.go of package
// simnet: it has all parts of the contract in 300 lines. A transport over sockets of TCP builds on
// package stream instead, and has only a Protocol and a Writer, as package tcp does.
//
//  1. [Transport.Listen], [Port.Addr] and [Port.Reaches]: a scheme, and addresses that do not change.
//     An address of another form is ErrAddress. What the machine lacks is ErrUnavailable: the context
//     logs it, and does without the transport.
//  2. Two ends that know each other: a goroutine of the port gives each accepted connection to
//     Config.Accept, and Dial ends with its ctx. The dispatcher says hello in the first frames and
//     proves who it is, so a transport has a handshake only for needs of its own.
//  3. [Conn.Send]: takes what fits, copies or retains it, and never waits. The header is on the wire
//     as [Header.Put] writes it. A frame of type TypeBatch is a run of frames with their headers.
//  4. Receiving: [stream.Reader] makes frames of bytes, asks the sink for room for large ones, and
//     stops while memory is short. Otherwise call Sink.Frames with payloads in buffers of Config.Pool.
//     A goroutine of the transport holds Config.Progress for that. If the transport has a descriptor,
//     register it as a [Source] of Config.Poller, and if it has memory to look at, as a [Ring]: then
//     the goroutine that waits for a message fetches it itself, which saves a switch of goroutines.
//  5. The end: once, behind all that has come, and never after Close. Close closes, Down reports.
//  6. [Prober] and [Streamer] if its connections cross a network, and [Unsealed] if others can read
//     it there. [Brief] if a connection can take a small frame without a system call.
//
// Run the conformance suite (subsystest.Test) from the second step on. It says which part of the
// contract is broken. At last give the transport to a context by rocl.WithTransports.
//
// [stream.Reader]: https://pkg.go.dev/github.com/rocl-go/rocl/subsys/stream#Reader
package subsys
