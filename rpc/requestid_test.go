// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// Calls have request identifiers. Those that a handler makes have the one of its own call, and so
// has the line in the server's log about a handler that panicked.
//
// Promise (Package rpc): Calls of a handler have the request identifier of its own call.
func TestRequestIDs(t *testing.T) {
	sock := freeaddr.Socket(t)
	home := open(t, sock)
	var log logged.Log
	s := serve(t, home, rpc.WithLogger(log.Logger()))
	c := client(t, home, rpc.CallInterceptors(rpc.RequestIDs()))
	try.OK(t,
		errors.Join(rpc.Register(s, "inner", func(ctx context.Context, _ struct{}) (string, error) { return rpc.RequestID(ctx), nil }),
			rpc.Register(s, "outer", func(ctx context.Context, _ struct{}) (string, error) {
				inner, err := rpc.Call[struct{}, string](ctx, c, s.ID(), "inner", struct{}{})
				if own := rpc.RequestID(ctx); own == "" || inner != own {
					t.Errorf("%q within %q", inner, own)
				}
				return inner, err
			}),
			rpc.Register(s, "panic", func(context.Context, struct{}) (string, error) { panic("on purpose") }),
		))
	had := map[string]bool{"": true}
	for range 3 {
		id, err := rpc.Call[struct{}, string](deadline(t), c, s.ID(), "outer", struct{}{})
		if err != nil || had[id] {
			t.Errorf("identifier %q, %v", id, err)
		}
		had[id] = true
	}
	own := rpc.WithMetadata(rpc.Metadata{"request-id": "own", "other": "x"})
	try.Gives(rpc.Call[struct{}, string](deadline(t), c, s.ID(), "outer", struct{}{}, own))(t, "own")
	try.Fails(rpc.Call[struct{}, string](deadline(t), c, s.ID(), "panic", struct{}{}, own))(t, rpc.ErrPanic)
	if text := log.String(); !strings.Contains(text, "request=own") {
		t.Errorf("the log has %s", text)
	}
	try.Equal(t, rpc.RequestID(t.Context()), "", "outside of handlers")
	plain := client(t, home)
	if id, err := rpc.CallAny[struct{}, string](deadline(t), plain, rocl.Match{}, "inner", struct{}{}); id.Value != "" || err != nil {
		t.Errorf("%q without the interceptor, %v", id.Value, err)
	}
}
