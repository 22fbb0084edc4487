// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/spf13/cobra"
)

func waitsCommand() *cobra.Command {
	var isCluster bool
	var least time.Duration
	cmd := &cobra.Command{
		Use:   "waits [PATTERN...]",
		Short: "Print who waits for whom, and for how long: calls, sends, receives, and messages that are not received",
		Long: "Print the calls, sends and receives of this node that have waited for --least or longer, and the messages that have\n" +
			"waited so long while none was received. Each is followed by what it waits for, by what that waits for, and so on; the\n" +
			"last line says why that does not go on. A line with 'maybe' is a guess: a process does not tell which of its handlers\n" +
			"makes a call. With a PATTERN only waits of such resources, or for them, are printed.\n" +
			"Every context is asked twice, with --least between. So the times are from the first question on: ≥ says that a wait\n" +
			"may have begun long before.\n" +
			"With --cluster the other nodes are asked for summaries.\n" + patternHelp +
			"Exit code 1 if nothing waits, 2 if no directory serves the node, 3 if a context or a node does not answer,\n" +
			"4 if the directory does not answer within --timeout.",
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			if least <= 0 {
				return usage.Errorf("--least %v is not more than zero", least)
			}
			var of []rocl.GID
			var o observe.Observer
			err := g.ask(cmd.Context(), func(p *timeoutContext, c *rocl.Context) (err error) {
				if l.Len() > 0 {
					err = gather(p, c.FindAll(p, l), func(f rocl.Found) { of = append(of, f.ID) })
				}
				if err == nil {
					err = g.observeTwice(p.parent, c, &o, isCluster, least)
				}
				return err
			})
			if err != nil {
				return err
			}
			chains := o.Waits(least, of...)
			if l.Len() > 0 && len(of) == 0 {
				chains = nil
			}
			if err := printChains(cmd.OutOrStdout(), g, chains); err != nil {
				return err
			}
			if err := reportSilent(cmd, g, &o); err != nil || len(chains) > 0 {
				return err
			}
			return tellNothing(cmd, g, "nothing waits")
		}),
	}
	cmd.Flags().BoolVar(&isCluster, "cluster", false, "ask the other nodes of the cluster too")
	cmd.Flags().DurationVar(&least, "least", time.Second, "how long what is printed has waited")
	return cmd
}

// tellNothing returns a nothingError. It prints the text on standard error where a nothingError is
// not printed: an empty output does not say whether the command has looked.
func tellNothing(cmd *cobra.Command, g Globals, text string) error {
	if !isTerminal(cmd.OutOrStdout()) {
		note(cmd, g, map[string]string{"nothing": text}, "%s", text)
	}
	return nothingError(text)
}

// observeTwice adds two views to o, which are taken at the given interval. It does not wait for
// silent contexts before it asks again.
func (g Globals) observeTwice(ctx context.Context, c *rocl.Context, o *observe.Observer, isCluster bool, interval time.Duration) error {
	type view struct {
		*observe.View
		error
	}
	first := make(chan view, 1)
	go func() {
		v, err := observe.Gather(ctx, c, isCluster, g.Timeout)
		first <- view{v, err}
	}()
	select {
	case <-time.After(interval):
	case <-ctx.Done():
	}
	second, err := observe.Gather(ctx, c, isCluster, g.Timeout)
	v := <-first
	if err = cmp.Or(v.error, err); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = &silentError{g.path(), g.Timeout}
		}
		return err
	}
	o.Add(v.View)
	o.Add(second)
	return nil
}

// printChains prints chains, a line for each step, with an empty line between two chains.
func printChains(w io.Writer, g Globals, chains []observe.Chain) error {
	for i := range chains {
		c := &chains[i]
		if g.JSON {
			if err := Print(w, c); err != nil {
				return err
			}
			continue
		}
		var b strings.Builder
		if i > 0 {
			b.WriteByte('\n')
		}
		for n, s := range c.Steps {
			switch {
			case n > 0:
				fmt.Fprintf(&b, "      %s\n", s.Text)
			case c.More > 0:
				fmt.Fprintf(&b, "≥%-4s %s, and %d more\n", display.Duration(c.Age), s.Text, c.More)
			default:
				fmt.Fprintf(&b, "≥%-4s %s\n", display.Duration(c.Age), s.Text)
			}
		}
		mark := "end:"
		if c.Cycle > 0 {
			mark = "cycle:"
		}
		fmt.Fprintf(&b, "      %s %s\n", mark, c.End)
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// reportSilent prints which contexts and nodes have not answered. It returns errPartial if there
// are any.
func reportSilent(cmd *cobra.Command, g Globals, o *observe.Observer) (err error) {
	for _, r := range o.Contexts() {
		if r.SilentSince.IsZero() {
			continue
		}
		err = errPartial
		note(cmd, g, r, "process %d of node %s (context %v) is silent: %s", r.PID, r.Node, r.Context, r.Reason)
	}
	for _, n := range o.Nodes() {
		if n.Error != "" {
			err = errPartial
			note(cmd, g, n, "node %s could not be asked: %s", n.Name, n.Error)
		}
	}
	return err
}
