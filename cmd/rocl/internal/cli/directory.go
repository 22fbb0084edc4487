// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/resource"
	"github.com/spf13/cobra"
)

type foundJSON struct {
	Time     *time.Time       `json:"time,omitempty"`
	Event    string           `json:"event,omitempty"`
	Node     *resource.NodeID `json:"node,omitempty"`
	ID       *rocl.GID        `json:"id,omitempty"`
	Revision uint64           `json:"revision,omitempty"`
	Attrs    map[string]any   `json:"attrs,omitempty"`
}

func registerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "register name=value...",
		Short: "Register a resource for as long as this command runs",
		Long: "Register a resource for as long as this command runs, which is until it is interrupted.\n" +
			"--timeout bounds how long it takes to register. Exit code 4 if the directory does not answer within it.",
		Args: someAttributes,
		RunE: of(ownAttributes, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			ctx := cmd.Context()
			c, r, err := g.register(ctx, l)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := announce(cmd, g, r, l); err != nil {
				return err
			}
			<-ctx.Done()
			return c.Close()
		}),
	}
}

// register opens a context and registers a resource with the attributes l.
func (g Globals) register(ctx context.Context, l *rocl.List) (*rocl.Context, *rocl.Resource, error) {
	c, err := g.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	p := g.withTimeout(ctx)
	defer p.stop()
	r, err := c.Register(p, l)
	if err != nil {
		c.Close()
		return nil, nil, p.err(err)
	}
	return c, r, nil
}

// announce prints the resource that this command has registered.
func announce(cmd *cobra.Command, g Globals, r *rocl.Resource, l *rocl.List) error {
	id := r.ID()
	if g.JSON {
		return Print(cmd.OutOrStdout(), foundJSON{ID: &id, Revision: r.Revision(), Attrs: jsonAttrs(l)})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), id)
	return err
}

func findCommand() *cobra.Command {
	var want []string
	var first, system, cluster bool
	cmd := &cobra.Command{
		Use:   "find [PATTERN...]",
		Short: "Print the resources that have these attributes",
		Long: "Print the resources that have these attributes, all if none is given.\n" + patternHelp +
			"With --cluster, say of each on which node it is, and at the end how many nodes told what they have and which could not be asked.\n" +
			"Exit code 1 if there are none, 2 if no directory serves the node, 3 if some node could not be asked,\n" +
			"4 if the directory does not answer within --timeout.",
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			names, err := wanted(want)
			if err != nil {
				return err
			}
			if cluster && first {
				return usage.Errorf("--first asks no further than one, --cluster asks every node: choose one")
			}
			if system {
				if err := l.AddString("rocl.kind", "context"); err != nil {
					return err
				}
			}
			opts := []rocl.FindOption{rocl.Want(names...)}
			var asked rocl.Coverage
			if cluster {
				opts = append(opts, rocl.Covered(&asked))
			}
			n := 0
			err = g.ask(cmd.Context(), func(p *timeoutContext, c *rocl.Context) error {
				for f, err := range answers(p, c.FindAll(p, l, opts...)) {
					if err != nil {
						return err
					}
					if system && f.ID == c.ID() {
						continue
					}
					n++
					if err := printFound(cmd.OutOrStdout(), g, &f, cluster); err != nil || first {
						return err
					}
				}
				return nil
			}, askOnly())
			if err == nil && cluster {
				err = reportCoverage(cmd.ErrOrStderr(), g, &asked)
			}
			if err == nil && n == 0 {
				err = nothingError("no resource matches")
			}
			return err
		}),
	}
	cmd.Flags().StringArrayVar(&want, "want", nil, "print the values of these attributes only: `names`, separated by commas; may be repeated")
	cmd.Flags().BoolVar(&cluster, "cluster", false, "say on which node each is, and which nodes were asked")
	cmd.Flags().BoolVar(&first, "first", false, "stop after one")
	cmd.Flags().BoolVar(&system, "contexts", false, "find contexts rather than resources")
	return cmd
}

// printFound prints a resource, with its node if withNode is set.
func printFound(w io.Writer, g Globals, f *rocl.Found, withNode bool) (err error) {
	line := foundJSON{ID: &f.ID, Revision: f.Revision, Attrs: jsonAttrs(&f.Attrs)}
	node := f.ID.Node()
	switch {
	case g.JSON:
		if withNode {
			line.Node = &node
		}
		err = Print(w, line)
	case withNode:
		_, err = fmt.Fprintf(w, "%s %v %v\n", nodeName(node), f.ID, &f.Attrs)
	default:
		_, err = fmt.Fprintf(w, "%v %v\n", f.ID, &f.Attrs)
	}
	return err
}

// wanted returns the names in the values of --want, which commas separate.
func wanted(values []string) (names []string, err error) {
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			if err := new(rocl.List).AddString(name, ""); err != nil {
				return nil, usage.Errorf("--want %s: %w", usage.Quote(v), err)
			}
			names = append(names, name)
		}
	}
	return names, nil
}

// watchTime is the form in which watch prints times, in the local time zone.
const watchTime = "15:04:05.000"

func watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch [PATTERN...]",
		Short: "Print resources as they appear, change and go",
		Long: "Print the resources that have these attributes, all if none is given, as they appear, change and go, until interrupted.\n" + patternHelp +
			"Each line begins with the time at which the command learned of it.\n" +
			"--timeout bounds how long it takes to reach the directory. Exit code 4 if it does not answer within that.",
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			ctx := cmd.Context()
			c, err := g.Open(ctx, askOnly(), rocl.WithLinger(askLinger))
			if err != nil {
				return err
			}
			defer c.Close()
			for ev, err := range c.Watch(ctx, l) {
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				now := time.Now()
				line := foundJSON{Time: &now, Event: ev.Kind.String()}
				if ev.Kind != rocl.Synced {
					line.ID, line.Revision, line.Attrs = &ev.ID, ev.Revision, jsonAttrs(&ev.Attrs)
				}
				if g.JSON {
					err = Print(cmd.OutOrStdout(), line)
				} else if ev.Kind != rocl.Synced {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %-8v %v %v\n", now.Format(watchTime), ev.Kind, ev.ID, &ev.Attrs)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
