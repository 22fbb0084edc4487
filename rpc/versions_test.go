// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

type (
	oldTerms struct{ A, B int64 }
	newTerms struct{ A, B, C int64 }
	oldNote  struct{ Text string }
	newNote  struct{ Text, By string }
)

// If server and caller have two versions of a raw struct, the error names both, with their fields,
// and the handler does not run.
//
// Promise (Package rpc): Two versions of a raw struct fail with an error that names both. Elsewhere
// a missing field is zero. See also TestTwoVersions.
func TestTwoVersionsOfRawStruct(t *testing.T) {
	s, c := pair(t)
	ran := false
	try.OK(t,
		errors.Join(rpc.Register(s, "old", func(_ context.Context, t oldTerms) (oldTerms, error) { ran = true; return t, nil }),
			rpc.Register(s, "new", func(_ context.Context, t newTerms) (newTerms, error) { ran = true; return t, nil }),
			rpc.Register(s, "result", func(context.Context, struct{}) (newTerms, error) { return newTerms{}, nil }),
		))
	_, toNew := rpc.Call[oldTerms, oldTerms](deadline(t), c, s.ID(), "new", oldTerms{1, 2})
	_, toOld := rpc.Call[newTerms, newTerms](deadline(t), c, s.ID(), "old", newTerms{1, 2, 3})
	for _, err := range []error{toNew, toOld} {
		var e *rpc.Error
		if !errors.Is(err, rocl.ErrValue) || ran || !errors.As(err, &e) || e.Ran {
			t.Errorf("%v, the handler ran: %t", err, ran)
		} else if !strings.Contains(err.Error(), "oldTerms {A int64; B int64}") || !strings.Contains(err.Error(), "newTerms {A int64; B int64; C int64}") {
			t.Error("the error does not name both types: ", err)
		}
	}
	if _, err := rpc.Call[struct{}, oldTerms](deadline(t), c, s.ID(), "result", struct{}{}); !errors.Is(err, rocl.ErrValue) || !strings.Contains(err.Error(), "oldTerms {A int64; B int64}") {
		t.Error(err)
	}
}

// Of two versions of another struct, a field that the sender lacks is zero. A field that the
// receiver lacks is an error that names it.
func TestTwoVersionsOfStruct(t *testing.T) {
	s, c := pair(t)
	try.OK(t,
		errors.Join(rpc.Register(s, "old", func(_ context.Context, n oldNote) (string, error) { return n.Text, nil }),
			rpc.Register(s, "new", func(_ context.Context, n newNote) (string, error) { return n.Text + n.By, nil }),
		))
	try.Gives(rpc.Call[oldNote, string](deadline(t), c, s.ID(), "new", oldNote{"text"}))(t, "text")
	try.Equal(t, string(try.Get(rpc.CallJSON(deadline(t), c, s.ID(), "new", []byte(`{"Text": "text"}`)))(t)), `"text"`)
	_, err := rpc.Call[newNote, string](deadline(t), c, s.ID(), "old", newNote{"text", "me"})
	if !errors.Is(err, rocl.ErrValue) || !strings.Contains(err.Error(), "oldNote") || !strings.Contains(err.Error(), "newNote") {
		t.Error(err)
	}
	if _, err := rpc.CallJSON(deadline(t), c, s.ID(), "old", []byte(`{"Text": "text", "By": "me"}`)); !errors.Is(err, rocl.ErrValue) || !strings.Contains(err.Error(), `"By"`) {
		t.Error(err)
	}
}
