// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/resource"
	"github.com/spf13/cobra"
)

// nodeName returns a node's number in the form that the commands print.
func nodeName(n resource.NodeID) string { return fmt.Sprintf("%012x", uint64(n)) }

func nodeNames(ns []resource.NodeID) string {
	var all []string
	for _, n := range ns {
		all = append(all, nodeName(n))
	}
	return strings.Join(all, " ")
}

type coverageJSON struct {
	Covered int               `json:"covered"`
	Failed  []resource.NodeID `json:"failed"`
}

// reportCoverage prints on w which nodes were asked. It returns errPartial if some could not be
// asked.
func reportCoverage(w io.Writer, g Globals, v *rocl.Coverage) error {
	if g.JSON {
		if err := Print(w, coverageJSON{v.Covered, append([]resource.NodeID{}, v.Failed...)}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(w, "%d of %d nodes told what they have\n", v.Covered, v.Covered+len(v.Failed))
		if len(v.Failed) > 0 {
			fmt.Fprintf(w, "could not be asked: %s\n", nodeNames(v.Failed))
		}
	}
	if len(v.Failed) > 0 {
		return errPartial
	}
	return nil
}

// nodeJSON is a line of JSON about a node.
type nodeJSON struct {
	Node    resource.NodeID `json:"node"`
	ID      rocl.GID        `json:"id"`
	Host    string          `json:"host"`
	OS      string          `json:"os"`
	Arch    string          `json:"arch"`
	Cores   uint64          `json:"cores"`
	Memory  uint64          `json:"memory"`
	Version string          `json:"version"`
	Addr    string          `json:"addr,omitempty"`
	Labels  map[string]any  `json:"labels"`
	labels  rocl.List
}

func newNodeJSON(f *rocl.Found) nodeJSON {
	get := f.Attrs.GetString
	n := nodeJSON{
		Node: f.ID.Node(), ID: f.ID, Host: get(rocl.AttrHost), OS: get(rocl.AttrOS), Arch: get(rocl.AttrArch),
		Version: get(rocl.AttrVersion), Addr: get(rocl.AttrAddr),
	}
	n.Cores, _ = strconv.ParseUint(get(rocl.AttrCores), 10, 64)
	n.Memory, _ = strconv.ParseUint(get(rocl.AttrMemory), 10, 64)
	for name, v := range f.Attrs.All() {
		if !strings.HasPrefix(name, resource.SystemPrefix) {
			_ = n.labels.Add(name, v)
		}
	}
	n.Labels = jsonAttrs(&n.labels)
	return n
}

func nodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "nodes [PATTERN...]",
		Short: "Print the nodes that have these labels",
		Long: "Print the nodes of the cluster that have these labels, all if none is given, with what their machines are.\n" +
			"Exit code 1 if there are none, 2 if no directory serves the node, 3 if some node could not be asked,\n" +
			"4 if the directory does not answer within --timeout.",
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			if err := l.AddString(rocl.AttrKind, "node"); err != nil {
				return err
			}
			var asked rocl.Coverage
			var all []nodeJSON
			ferr := g.ask(cmd.Context(), func(p *timeoutContext, c *rocl.Context) error {
				return gather(p, c.FindAll(p, l, rocl.Covered(&asked)), func(f rocl.Found) { all = append(all, newNodeJSON(&f)) })
			}, askOnly())
			slices.SortFunc(all, func(a, b nodeJSON) int {
				return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Node, b.Node))
			})
			if err := printNodes(cmd.OutOrStdout(), g, all); err != nil {
				return err
			}
			if ferr != nil {
				return ferr
			}
			if len(asked.Failed) > 0 {
				return reportCoverage(cmd.ErrOrStderr(), g, &asked)
			}
			if len(all) == 0 {
				return nothingError("no node has these labels")
			}
			return nil
		}),
	}
}

func printNodes(w io.Writer, g Globals, all []nodeJSON) error {
	const columns = "NODE\tHOST\tSYSTEM\tCORES\tMEMORY\tADDRESS\tLABELS"
	return printTable(w, g, columns, all, func(w io.Writer, n *nodeJSON) string {
		labels := ""
		if n.labels.Len() > 0 {
			labels = strings.TrimSuffix(strings.TrimPrefix(n.labels.String(), "{"), "}")
		}
		fmt.Fprintf(w, "%s\t%s\t%s/%s\t%d\t%s\t%s\t%s\n", nodeName(n.Node), display.Quote(n.Host), display.Quote(n.OS), display.Quote(n.Arch),
			n.Cores, gib(n.Memory), cmp.Or(display.Quote(n.Addr), "-"), cmp.Or(labels, "-"))
		return ""
	})
}

func gib(b uint64) string { return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30)) }

func searchTraceCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "search-trace PATTERN...",
		Short: "Search the cluster, and print which nodes were asked and what they said",
		Long: "Search the cluster for a resource that has these attributes, and print which nodes were asked, how, what each answered\n" +
			"and how long it took. The output is what this node saw.\n" +
			"For nodes that other nodes asked, it has only the total, unless --search unicast asks each node directly.\n" +
			"The other nodes are asked even if this node has such a resource.\n" +
			"Exit code 1 if there is none, 2 if no directory serves the node, 3 if there is none and some node could not be asked,\n" +
			"4 if the directory does not answer within --timeout.",
		Args: someAttributes,
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			how, err := strategy.Parse(name)
			if err != nil {
				return usage.Errorf("--search %q is not auto, unicast, broadcast or tree", name)
			}
			t, err := trace(cmd.Context(), g, how, l)
			if err != nil {
				return err
			}
			if how == strategy.Broadcast && !slices.ContainsFunc(t.Steps, func(s directory.TraceStep) bool { return s.How == how.String() }) {
				const without = "without a broadcast: this node has no group, or no other node to ask"
				note(cmd, g, map[string]string{"note": without}, without)
			}
			out := cmd.OutOrStdout()
			if g.JSON {
				err = Print(out, t)
			} else {
				err = printTrace(out, &t)
			}
			switch {
			case err != nil:
				return err
			case !t.Found.IsZero():
				return nil
			case len(t.Failed) > 0:
				return errPartial
			}
			return nothingError("no resource matches")
		}),
	}
	cmd.Flags().StringVar(&name, "search", "auto", "`strategy`: auto, as any search goes; tree, without summaries; unicast, ask each node by itself; broadcast, all with one packet, if the cluster has a group")
	_ = cmd.RegisterFlagCompletionFunc("search", cobra.FixedCompletions([]string{"auto", "tree", "unicast", "broadcast"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// trace asks the node's directory to trace a search. It joins as a context without resources.
func trace(ctx context.Context, g Globals, how strategy.Strategy, l *rocl.List) (directory.Trace, error) {
	p := g.withTimeout(ctx)
	defer p.stop()
	c, err := directory.Join(p, directory.DialSocket(g.path()), directory.WithClientLogger(g.logger()))
	if err != nil {
		return directory.Trace{}, p.err(err)
	}
	defer c.Close()
	t, err := c.Trace(p, how, l)
	return t, p.err(err)
}

// printTrace prints a line for each question.
func printTrace(w io.Writer, t *directory.Trace) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tHOW\tFOR\tASKED\tTOOK\tANSWER")
	for _, s := range t.Steps {
		took := ms(s.Took)
		if s.Took == 0 {
			took = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", nodeName(s.Node), display.Quote(s.How), count(s.Members, "node"), "+"+ms(s.Asked), took, answer(&s))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if t.More > 0 {
		fmt.Fprintf(w, "and %d more\n", t.More)
	}
	switch {
	case !t.Found.IsZero():
		fmt.Fprintf(w, "found %v in %s\n", t.Found, ms(t.Took))
	case len(t.Failed) > 0:
		fmt.Fprintf(w, "not found in %s, and %d of %d nodes could not be asked\n", ms(t.Took), len(t.Failed), len(t.Failed)+t.Covered)
	default:
		fmt.Fprintf(w, "not found in %s: %s asked\n", ms(t.Took), count(t.Covered, "node"))
	}
	if len(t.Failed) > 0 {
		fmt.Fprintf(w, "could not be asked: %s\n", nodeNames(t.Failed))
	}
	_, err := fmt.Fprintf(w, "messages: %d sent and %d received by this node, %d at least in all\n", t.Sent, t.Received, t.Messages)
	return err
}

// answer returns the outcome of a question in words.
func answer(s *directory.TraceStep) string {
	switch s.Outcome {
	case "found":
		return fmt.Sprintf("found %v", s.Found)
	case "none":
		a := "none"
		if s.Members > 1 {
			a += fmt.Sprintf(" of %d", s.Covered)
		}
		if s.Failed > 0 {
			a += fmt.Sprintf(", %d not reached", s.Failed)
		}
		return a
	case "silent":
		return "silent"
	case "":
		return "not waited for"
	}
	return display.Quote(s.Outcome)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
