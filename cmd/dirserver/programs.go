// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/dirserver/internal/source"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/promrocl"
)

// newPrograms returns a collector of the metrics of the contexts that src sees, with at most so
// many series. Attributes with names become labels of the metrics of resources.
func newPrograms(src *source.Source, srv *directory.Server, names []string, series int) prometheus.Collector {
	o := promrocl.Options{Series: series}
	for _, name := range names {
		o.Labels = append(o.Labels, labelOf(name))
	}
	if len(names) > 0 {
		o.Values = func(r *rocl.ResourceSnapshot) []string { return valuesOf(srv, r.Resource, names) }
	}
	return promrocl.NewOf(func() (all []promrocl.Context, err error) {
		v, err := src.View(context.Background())
		switch {
		case errors.Is(err, rocl.ErrClosed): // the daemon ends
			return nil, nil
		case err != nil:
			return nil, err
		}
		for i := range v.Contexts {
			c := &v.Contexts[i]
			all = append(all, promrocl.Context{Snapshot: c.Snapshot, Silent: c.Silent != ""})
		}
		return all, nil
	}, o)
}

// mostValue is the most bytes of an attribute that become the value of a label.
const mostValue = 64

// valuesOf returns the values of a resource's attributes with names, safe to show. A resource has
// "" for an attribute that it does not have.
func valuesOf(srv *directory.Server, id rocl.GID, names []string) []string {
	values := make([]string, len(names))
	record, _ := srv.Database().Get(id)
	for i, name := range names {
		v, _ := record.Attrs.Get(name)
		text := string(v[:min(len(v), mostValue)])
		if len(v) > mostValue {
			text = strings.ToValidUTF8(text, "") + "…"
		}
		values[i] = display.Quote(text)
	}
	return values
}

var notLabel = regexp.MustCompile(`[^A-Za-z0-9_]`)

// labelOf returns the label for the attributes with a name.
func labelOf(name string) string { return "attr_" + notLabel.ReplaceAllString(name, "_") }
