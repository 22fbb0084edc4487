// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

// Calls go on while one server after another drains and ends.
func TestUppercase(t *testing.T) {
	cl := rocltest.Cluster(t, 2)
	ctx, c := t.Context(), cl.Open(1)
	upper := func(_ context.Context, text string) (string, error) { return strings.ToUpper(text), nil }
	const n = 3
	var stops []func()
	served := make(chan error, n)
	for range n {
		home := cl.Open(0)
		until, stop := context.WithCancel(ctx)
		defer stop()
		stops = append(stops, stop)
		go func() { served <- ServeUppercase(until, home, upper) }()
	}
	try.Get(c.Await(ctx, rocl.Match{"type": "uppercase"}, n))(t)
	client := try.Get(rpc.NewClient(ctx, c))(t)
	defer client.Close()
	set := try.Get(Uppercases(ctx, c))(t)
	defer set.Close()
	for i := range n {
		for range 100 {
			try.Gives(Uppercase(ctx, client, set, "text"))(t, "TEXT")
		}
		stops[i]()
		if i < n-1 {
			for range 100 {
				try.Gives(Uppercase(ctx, client, set, "text"))(t, "TEXT")
			}
		}
		try.OK(t, <-served)
	}
	_, err := Uppercase(ctx, client, set, "text")
	try.Rejects("", err)(t, "no server is left")
}
