// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"

	"github.com/rocl-go/rocl"
)

// A Model describes a server of a model. Its fields with tags are attributes.
type Model struct {
	Type  string   `rocl:"type"`
	Name  string   `rocl:"name"`
	Load  float64  `rocl:"load"`
	Zones []string `rocl:"zone"` // an attribute for each zone
}

// Announce registers a server of a model.
func Announce(ctx context.Context, c *rocl.Context, m Model) (*rocl.Resource, error) {
	a, err := rocl.AttrsOf(m)
	if err != nil {
		return nil, err
	}
	return c.Register(ctx, a)
}

// Models returns the models that match a text such as: load<3 zone=north|south name="big one"
func Models(ctx context.Context, c *rocl.Context, text string) (all []Model, err error) {
	pattern, err := rocl.Parse("type=model " + text)
	if err != nil {
		return nil, err
	}
	for f, err := range c.FindAll(ctx, pattern) {
		var m Model
		if err == nil {
			err = rocl.Into(f, &m)
		}
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
	return all, nil
}
