// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/flowfile"
	"github.com/rocl-go/rocl/internal/programs"
	"github.com/spf13/cobra"
)

func graphCommand() *cobra.Command {
	var form, file string
	cmd := &cobra.Command{
		Use:   "graph [flags] PROGRAM [argument...]",
		Short: "Draw the graph of a program of package dataflow, with its groups as boxes",
		Long: "Let the program build its graph, and draw it: nodes and edges, with a box for each group. Feedback edges are dashed,\n" +
			"and edges between groups are bold. The program runs nothing of the graph.\n" +
			"The form is that of --form, or that of the file's ending (.svg, .mmd, .json). On standard output it is Mermaid.",
		Example: "  rocl flow graph -o graph.svg ./wordcount text.txt\n  rocl flow graph ./wordcount text.txt",
		Args:    atLeastProgram,
		RunE: func(cmd *cobra.Command, args []string) error {
			draw := map[string]func(*flowfile.Drawing) []byte{"svg": drawSVG, "mermaid": drawMermaid, "json": (*flowfile.Drawing).JSON}[form]
			switch ending := filepath.Ext(file); {
			case draw != nil:
			case form != "":
				return usage.Errorf("--form %s is not svg, mermaid or json", usage.Quote(form))
			case ending == ".svg":
				draw = drawSVG
			case ending == ".json":
				draw = (*flowfile.Drawing).JSON
			case file == "" || ending == ".mmd" || ending == ".mermaid":
				draw = drawMermaid
			default:
				return usage.Errorf("the ending of %s is not .svg, .mmd or .json: --form names the form", usage.Quote(file))
			}
			return writeDrawing(cmd, file, args, draw)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&form, "form", "", "`form` of the drawing: svg, mermaid or json")
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to this `file` in place of standard output")
	return cmd
}

func dryRunCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "dryrun [flags] PROGRAM [argument...]",
		Short: "Write a configuration with the groups of a program of package dataflow",
		Long: "Let the program build its graph, and write its groups with the names of their nodes, as FastFlow's dry run does.\n" +
			"'rocl flow run' takes that as its configuration. The program runs nothing of the graph.",
		Example: "  rocl flow dryrun -o flow.json ./wordcount text.txt",
		Args:    atLeastProgram,
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeDrawing(cmd, file, args, (*flowfile.Drawing).Configuration)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to this `file` in place of standard output")
	return cmd
}

// writeDrawing writes a drawing of a program's graph to a file, or to standard output if that has
// no name.
func writeDrawing(cmd *cobra.Command, file string, args []string, draw func(*flowfile.Drawing) []byte) error {
	d, err := drawingOf(cmd.Context(), cmd.ErrOrStderr(), args, nil)
	if err != nil {
		return err
	}
	if file != "" {
		return os.WriteFile(file, draw(d), 0o666)
	}
	_, err = cmd.OutOrStdout().Write(draw(d))
	return err
}

// drawingOf lets a program write the drawing of its graph, with further variables of the
// environment. What the program prints goes to w.
func drawingOf(ctx context.Context, w io.Writer, args, env []string) (*flowfile.Drawing, error) {
	path, err := find(args[0])
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rocl-flow-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "graph.json")
	c := exec.Command(path, args[1:]...)
	c.Env = append(append(os.Environ(), env...), flowfile.EnvDrawing+"="+file)
	c.Stdout, c.Stderr, c.WaitDelay = w, w, outputTime
	p, err := programs.Start(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		p.End()
		<-p.Ended()
		return nil, context.Cause(ctx)
	case <-p.Ended():
	}
	if err := p.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	d, err := flowfile.ReadDrawing(file)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("%s has written no graph: dataflow.Main or Launch.Run does that", args[0])
	}
	return d, err
}

// isRemote reports whether an edge connects two groups.
func isRemote(d *flowfile.Drawing, e flowfile.Edge) bool {
	return d.Nodes[e.From].Group != d.Nodes[e.To].Group
}

// drawMermaid draws a graph as a flow chart of Mermaid.
func drawMermaid(d *flowfile.Drawing) []byte {
	var s strings.Builder
	text := strings.NewReplacer(`"`, "#quot;", "\n", " ", "<", "#lt;", ">", "#gt;")
	s.WriteString("flowchart LR\n")
	nodes := func(group, indent string) {
		for i, n := range d.Nodes {
			if n.Group != group {
				continue
			}
			form := `%sn%d["%s"]` + "\n"
			if n.In == "" || n.Out == "" { // a source or a sink
				form = `%sn%d(["%s"])` + "\n"
			}
			fmt.Fprintf(&s, form, indent, i, text.Replace(n.Name))
		}
	}
	nodes("", "    ")
	for i, g := range d.Groups {
		fmt.Fprintf(&s, "    subgraph g%d[\"%s\"]\n", i, text.Replace(g))
		nodes(g, "        ")
		s.WriteString("    end\n")
	}
	for _, e := range d.Edges {
		arrow := "-->"
		switch {
		case e.Back:
			arrow = "-.->"
		case isRemote(d, e):
			arrow = "==>"
		}
		if e.Policy != "" && e.Policy != "Balanced" {
			arrow += "|" + e.Policy + "|"
		}
		fmt.Fprintf(&s, "    n%d %s n%d\n", e.From, arrow, e.To)
	}
	return []byte(s.String())
}
