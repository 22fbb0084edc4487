// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// An Order and a Quote are the argument and the result of the call "quote".
type (
	Order struct {
		Item   string
		Amount int
	}
	Quote struct {
		Shop  string
		Price int
	}
)

// OpenShop offers the call "quote". The caller closes the server.
func OpenShop(ctx context.Context, c *rocl.Context, name string,
	prices map[string]int) (*rpc.Server, error) {
	quote := func(ctx context.Context, o Order) (Quote, error) {
		price, ok := prices[o.Item]
		if !ok {
			return Quote{}, fmt.Errorf("no %s for sale", o.Item)
		}
		return Quote{Shop: name, Price: price * o.Amount}, nil
	}
	return rpc.NewServer(ctx, c, rocl.Attrs{"type": "shop", "name": name},
		rpc.WithCalls(func(s *rpc.Server) error { return rpc.Register(s, "quote", quote) }))
}

// Quotes calls all shops at once and returns the quotes, the lowest first. It leaves out shops that
// return an error, or that end meanwhile.
func Quotes(ctx context.Context, c *rocl.Context, o Order) ([]Quote, error) {
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var quotes []Quote
	shops := rocl.Match{"type": "shop"}
	for answer, err := range rpc.CallAll[Order, Quote](ctx, client, shops, "quote", o) {
		var refused *rpc.Error
		switch {
		case err == nil:
			quotes = append(quotes, answer.Value)
		case errors.As(err, &refused), rocl.IsEnd(err):
			// this shop has no quote
		default:
			return nil, err
		}
	}
	slices.SortFunc(quotes, func(a, b Quote) int { return a.Price - b.Price })
	return quotes, nil
}
