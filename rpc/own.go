// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rocl-go/rocl"
)

// Names of the calls that every server answers.
const (
	ownStats = "rpc.stats"
	ownJSON  = "rpc.json"
)

// A jsonCall is the arguments of ownJSON.
type jsonCall struct {
	Name string
	Args []byte
}

// offerOwn registers the calls that every server answers.
func (s *Server) offerOwn() error {
	return errors.Join(
		Register(s, ownStats, func(context.Context, struct{}) ([]MethodStats, error) { return s.Stats(), nil }),
		Register(s, ownJSON, func(ctx context.Context, c jsonCall) ([]byte, error) {
			m := (*s.names.Load())[callID(c.Name)]
			switch {
			case m == nil:
				return nil, fmt.Errorf("%w: %q", ErrUnknownCall, c.Name)
			case m.json == nil:
				return nil, fmt.Errorf("%q has a stream of results: %w", c.Name, errors.ErrUnsupported)
			}
			m.stats.begun.Add(1)
			came := time.Now()
			out, err := m.json(ctx, c.Args)
			m.stats.ended(came, err)
			return out, err
		}))
}

// jsonOf returns f for arguments and results in JSON.
func jsonOf[In, Out any](f func(context.Context, In) (Out, error)) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, p []byte) ([]byte, error) {
		var in In
		if len(bytes.TrimSpace(p)) > 0 {
			d := json.NewDecoder(bytes.NewReader(p))
			d.DisallowUnknownFields()
			if err := d.Decode(&in); err != nil {
				return nil, fmt.Errorf("%w: arguments in JSON: %w", rocl.ErrValue, err)
			}
			if _, err := d.Token(); err != io.EOF {
				return nil, fmt.Errorf("%w: arguments in JSON: more than one value", rocl.ErrValue)
			}
		}
		out, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// StatsOf returns the figures of the calls that a provider offers: its [Server.Stats].
func StatsOf(ctx context.Context, c *Client, provider rocl.GID) ([]MethodStats, error) {
	return Call[struct{}, []MethodStats](ctx, c, provider, ownStats, struct{}{})
}

// CallJSON is [Call] for callers that do not have the types of the arguments and the result: a
// command line, a debugger. args is a value in JSON that fits the type of the arguments, or nothing, which
// is the zero value. The provider converts both. The handler does not see the difference; interceptors
// see a call of rpc.json.
func CallJSON(ctx context.Context, c *Client, provider rocl.GID, name string, args []byte, opts ...Option) ([]byte, error) {
	out, err := Call[jsonCall, []byte](ctx, c, provider, ownJSON, jsonCall{name, args}, opts...)
	if e, ok := err.(*Error); ok {
		e.Call = name
	}
	return out, err
}
