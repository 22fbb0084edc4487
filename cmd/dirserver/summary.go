// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/dirserver/internal/source"
)

// summarize returns the function of directory.WithSummary, by the context of client.
func summarize(client *source.Client) func(context.Context, []rocl.GID) ([]byte, error) {
	return func(ctx context.Context, contexts []rocl.GID) (sum []byte, err error) {
		err = client.Use(ctx, func(ctx context.Context, c *rocl.Context) error {
			sum, err = c.Summarize(ctx, slices.DeleteFunc(contexts, func(id rocl.GID) bool { return id == c.ID() }))
			return err
		})
		return sum, err
	}
}
