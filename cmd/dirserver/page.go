// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/dirserver/internal/source"
	"github.com/rocl-go/rocl/cmd/internal/fabric"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/resource"
)

// newClient returns a client of the node whose directory is at socket.
func newClient(socket string, log *slog.Logger) *source.Client {
	return source.NewClient(func(ctx context.Context) (*rocl.Context, error) {
		return rocl.Open(ctx, append(fabric.Options(), rocl.JoinOnly(), rocl.WithSocket(socket), rocl.WithLinger(0), rocl.WithLogger(log))...)
	})
}

// openPage makes w's page of the node of client, until end is called.
func (w *watched) openPage(client *source.Client) (end func()) {
	src := source.New(client).OfCluster()
	w.page = web.NewPage(web.Options{
		Gate: w.gate, Counts: w.counts, View: src.View,
		Find: func(pattern *resource.List, most int) (all []resource.GID) {
			w.server.Database().Cursor(pattern).Take(func(r resource.Record) bool {
				all = append(all, r.ID)
				return len(all) < most
			})
			return all
		},
		Attributes: func(id resource.GID) (*resource.List, bool) {
			r, ok := w.server.Database().Get(id)
			return &r.Attrs, ok
		},
	})
	return w.page.Close
}

// counts returns the figures that the page shows to every process.
func (w *watched) counts() []web.Count {
	s := w.server.Stats()
	all := []web.Count{{Name: "contexts", Value: s.Contexts}, {Name: "resources", Value: s.Resources}, {Name: "watches", Value: s.Watches}}
	if w.cluster != nil {
		if c := w.cluster(); c != nil {
			m := c.Stats()
			all = append(all, web.Count{Name: "members", Value: m.Alive}, web.Count{Name: "away", Value: m.Away}, web.Count{Name: "dead", Value: m.Dead})
		}
	}
	return all
}
