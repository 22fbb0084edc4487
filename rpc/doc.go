// SPDX-License-Identifier: Apache-2.0

// Package rpc makes calls of functions in other processes, which are found by attributes. It does what
// Mercury and Margo do for services in C, in the form of Go.
//
// A server is a resource of rocl that offers calls by name:
//
//	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"type": "store"})
//	err = rpc.Register(s, "put", func(ctx context.Context, in Put) (Receipt, error) { … })
//	defer s.Close(ctx)
//
// A client calls a server by its identifier, or any one that has the attributes:
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
//	CallAny, CallAll        to one or to every server with the attributes
//	CallJSON                without the types: what 'rocl call NAME' does
//
// # What is promised
//
// A handler runs at most once for each call; [Error] tells whether it has. The deadline of the caller's context is that of the handler's, and
// cancelling the one cancels the other. A call ends when its server's process ends (rocl.ErrGone), and
// a handler's context when its caller's process does. An error keeps its kind: errors.Is
// finds io.EOF, fs.ErrNotExist, rocl.ErrFull and others, and those of [WithErrors]. A panic ends one call.
//
// # Where handlers run
//
// A server has one goroutine that receives requests. A handler runs in a goroutine of its own. With
// [Inline] the receiving goroutine runs it, which takes half the time, and is for handlers that do
// not wait. With [InPool] they run in a pool of package pool: so many at a time, in an order, with a bounded
// queue. [Server.Place] moves a call from one to another.
//
// # Large values
//
// Arguments and results of more than a limit ([DefaultOverflow], 1 MiB) do not travel in the message. They stay with the sender until
// the other side pulls them by package bulk: arguments when the handler's turn has come, a result when the reply is
// there. [CallOverflow] and [WithOverflow] change the limits. With [Inline] the arguments are pulled first, by
// another goroutine.
//
// # On the wire
//
// A request is one message of rocl, whose tag is the xxhash of the name, and the reply is another one.
// The header has 24 bytes; see wire.go. Values are encoded by package codec, or by the program's own
// [rocl.Codec]; what stays with its sender is replaced by a handle of package bulk. Two names with the same hash are refused where they are registered.
package rpc
