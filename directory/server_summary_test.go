// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A server gives its summary to clients of the node, makes it once for all that ask within half a
// second, and passes the contexts that have joined.
func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, size := 0, 10
		var joined []resource.GID
		fails := errors.New("a test")
		s := NewServer(WithSummary(func(_ context.Context, contexts []resource.GID) ([]byte, error) {
			if made++; size < 0 {
				return nil, fails
			}
			joined = contexts
			return make([]byte, size), nil
		}))
		defer s.Close()
		c := try.Get(Join(t.Context(), s.Dialer()))(t)
		defer c.Close()
		for range 3 {
			try.Equal(t, len(try.Get(c.Summary(t.Context(), c.Node()))(t)), 10)
		}
		try.Equal(t, made, 1, "times that the summary was made")
		if len(joined) != 1 || joined[0] != c.Self() {
			t.Errorf("the contexts are %v", joined)
		}
		time.Sleep(summaryFresh)
		size = MaxSummary
		try.Equal(t, len(try.Get(c.Summary(t.Context(), c.Node()))(t)), MaxSummary)
		time.Sleep(summaryFresh)
		for _, size = range []int{MaxSummary + 1, -1} {
			if b, err := c.Summary(t.Context(), c.Node()); err == nil {
				t.Errorf("a summary of %d bytes", len(b))
			}
		}
		try.Fails(c.Summary(t.Context(), c.Node()+1))(t, ErrNoSummary, "of a node that is none")
		s.Attach(nothing())
		try.Fails(c.Summary(t.Context(), c.Node()+1))(t, ErrPartial, "of a member that cannot be asked")
	})
}

// A server without a function makes no summary.
func TestNoSummary(t *testing.T) {
	s, c := in(t, nil)
	try.Fails(s.Summary(t.Context()))(t, ErrNoSummary, "at the server")
	try.Fails(c.Summary(t.Context(), c.Node()))(t, ErrNoSummary, "at a client")
}
