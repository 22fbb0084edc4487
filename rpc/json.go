// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"

	"github.com/rocl-go/rocl"
)

// ownStats is the name of the call by which every server returns its figures.
const ownStats = "rpc.stats"

// StatsOf returns the figures of the calls that a provider offers: its [Server.Stats].
func StatsOf(ctx context.Context, c *Client, provider rocl.GID) ([]MethodStats, error) {
	return Call[struct{}, []MethodStats](ctx, c, provider, ownStats, struct{}{})
}

// CallJSON is [Call] for callers without the types of the arguments and the result, such as a
// command line or a debugger. args is a JSON value that fits the type of the arguments, or empty
// for the zero value. The provider converts both by package encoding/json. A call with a stream of
// results fails with ErrStream: see [StreamJSON].
func CallJSON(ctx context.Context, c *Client, provider rocl.GID, name string, args []byte, opts ...Option) ([]byte, error) {
	return Call[[]byte, []byte](ctx, c, provider, name, args, inJSON(opts)...)
}

// StreamJSON is [Stream] in the same way as CallJSON is Call: each result is a JSON value.
func StreamJSON(ctx context.Context, c *Client, provider rocl.GID, name string, args []byte, opts ...Option) iter.Seq2[[]byte, error] {
	return Stream[[]byte, []byte](ctx, c, provider, name, args, inJSON(opts)...)
}

func inJSON(opts []Option) []Option {
	return append(opts[:len(opts):len(opts)], func(c *config) { c.isJSON = true })
}

// asJSON is the codec of calls with flagJSON.
type asJSON[T any] struct{}

func (asJSON[T]) Append(p []byte, v T) ([]byte, error) {
	q, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: in JSON: %w", rocl.ErrValue, err)
	}
	return append(p, q...), nil
}

func (asJSON[T]) Decode(p []byte) (v T, err error) {
	if len(bytes.TrimSpace(p)) == 0 {
		return v, nil
	}
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, fmt.Errorf("%w: in JSON: %w", rocl.ErrValue, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return v, fmt.Errorf("%w: in JSON: more than one value", rocl.ErrValue)
	}
	return v, nil
}
