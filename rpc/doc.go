// SPDX-License-Identifier: Apache-2.0

// Package rpc calls functions in other processes, which are found by attributes. It does what
// Mercury and Margo do for services in C, in the form of Go.
//
// A server is a resource of rocl that offers calls by name:
//
//	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"type": "store"})
//	err = rpc.Register(s, "put", func(ctx context.Context, in Put) (Receipt, error) { … })
//	defer s.Close(ctx)
//
// Callers that search at the same time may find the server before "put" is registered, and get
// [ErrUnknownCall]. With [WithCalls] the calls are registered first.
//
// A client calls a server by its identifier, or any server with the attributes:
//
//	cl, err := rpc.NewClient(ctx, c)
//	receipt, err := rpc.Call[Put, Receipt](ctx, cl, id, "put", in)
//	a, err := rpc.CallAny[Put, Receipt](ctx, cl, rocl.Match{"type": "store"}, "put", in)
//
// # Forms of calls
//
//	Call                    waits for the result
//	Go                      returns a Future
//	Send                    one way: no result, no error of the handler
//	Stream                  yields the results of RegisterStream
//	ClientStream            sends a stream of arguments to RegisterClientStream
//	TwoWay                  does both, for RegisterTwoWay
//	CallAny, CallAll        to one or to every server with the attributes, as a Policy says
//	CallJSON                without the types: what 'rocl call NAME' does
//
// A [Policy] has deadlines, retries, hedging and circuits. [Serve] runs a server that drains when
// it ends.
//
// # Guarantees
//
// A handler runs at most once for each call; [Error] tells whether it has run. The deadline of the
// caller's context applies to the handler's context, and cancelling the first cancels the second. A
// call ends when its server's process ends (rocl.ErrGone), and a handler's context ends when its
// caller's process ends. An error keeps its kind: errors.Is finds io.EOF, fs.ErrNotExist,
// rocl.ErrFull and others, and the errors of [WithErrors]. A panic ends one call.
//
// # Where handlers run
//
// A server has one goroutine that receives requests. A handler runs in a goroutine of its own, in
// which further handlers run after it. With [Inline] the receiving goroutine runs the handler. That
// takes less time, and is for handlers that do not wait. With [InPool] the handlers run in a pool
// of package pool, which limits how many run at a time, sets their order and bounds their queue.
// [Server.Place] moves a call from one place to another.
//
// Handlers may call their own server, and servers whose handlers call theirs, also in pools of one
// worker. Such a nested call runs in the calling goroutine: see [InPool].
//
// # Large values
//
// Arguments and results above a limit ([DefaultOverflow], 1 MiB) do not travel in the message. They
// stay with the sender until the other side pulls them by package bulk: the server pulls arguments
// when the handler's turn has come, and the caller pulls a result when the reply has arrived.
// [CallOverflow] and [WithOverflow] change the limits. With [Inline] another goroutine pulls the
// arguments, and runs the handler.
//
// # On the wire
//
// A request is one message of rocl, whose tag is the xxhash of the name, and the reply is another
// one. The header has 24 bytes, and 16 more if the caller's context can end; see wire.go. Values
// are encoded by package codec, or by the program's own [rocl.Codec]. A handle of package bulk
// replaces a value that stays with its sender. If two names have the same hash, the server refuses
// to register the second.
package rpc
