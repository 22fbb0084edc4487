// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/tpvm"
)

// entry is a task, a thread or a program that has not enrolled, in the form that ps prints.
type entry struct {
	ID     tpvm.TID  `json:"id"`
	Parent *tpvm.TID `json:"parent,omitempty"`
	Kind   string    `json:"kind"` // task, thread, program
	Name   string    `json:"name"`
	Host   string    `json:"host"`
	Node   string    `json:"node"`
	PID    int       `json:"pid,omitempty"`
}

// list returns all tasks, threads and programs of the virtual machine, sorted by hosts. With an
// error, such as that a node could not be asked, it returns those that it has found.
func list(ctx context.Context, t *tpvm.Task) ([]entry, error) {
	var all []entry
	var failed error
	for kind, list := range map[string]iter.Seq2[tpvm.TaskInfo, error]{"program": t.Programs(ctx), "task": t.Tasks(ctx)} {
		for i, err := range list {
			if err != nil {
				failed = err
				continue // further ones may come
			}
			e := entry{ID: i.ID, Kind: kind, Name: i.Name, Host: i.Host, Node: i.Node, PID: i.PID}
			if i.IsThread {
				e.Kind = "thread"
			}
			if !i.Parent.IsZero() {
				e.Parent = &i.Parent
			}
			all = append(all, e)
		}
	}
	slices.SortFunc(all, byHost)
	return all, failed
}

// byHost orders entries by the names of hosts, and the entries of a host by identifier.
func byHost(a, b entry) int {
	return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Node, b.Node), a.ID.Compare(b.ID))
}

// short returns an identifier without its node.
func short(id tpvm.TID) string {
	_, rest, _ := strings.Cut(id.String(), "-")
	return rest
}

// shorten returns the shortest text that names each entry: the numbers of context and resource,
// with the node in front if several entries have the same numbers.
func shorten(all []entry) map[tpvm.TID]string {
	count := map[string]int{}
	for _, e := range all {
		count[short(e.ID)]++
	}
	names := map[tpvm.TID]string{}
	for _, e := range all {
		if names[e.ID] = short(e.ID); count[short(e.ID)] > 1 {
			names[e.ID] = e.ID.String()
		}
	}
	return names
}

// resolve returns the identifier of the entry that a text names: by the whole identifier, without
// the node, or with the first digits of the node.
func resolve(all []entry, what string) (tpvm.TID, error) {
	var found, begun []entry
	for _, e := range all {
		node, rest, _ := strings.Cut(e.ID.String(), "-")
		digits, tail, _ := strings.Cut(what, "-")
		switch {
		case what == e.ID.String():
			return e.ID, nil
		case what == rest, digits != "" && strings.HasPrefix(node, digits) && tail == rest:
			found = append(found, e)
		case what != "" && (strings.HasPrefix(rest, what) || strings.HasPrefix(e.ID.String(), what)):
			begun = append(begun, e)
		}
	}
	switch {
	case len(found) == 1:
		return found[0].ID, nil
	case len(found) > 1:
		return tpvm.TID{}, fmt.Errorf("%s is ambiguous: there are %s", usage.Quote(what), candidates(all, found))
	case len(begun) > 0:
		return tpvm.TID{}, fmt.Errorf("%s is incomplete: there are %s", usage.Quote(what), candidates(all, begun))
	default:
		if id, err := rocl.ParseGID(what); err == nil && !id.IsZero() {
			return id, fmt.Errorf("%v: %w", id, tpvm.ErrNoTask)
		}
		return tpvm.TID{}, fmt.Errorf("%s: %w", usage.Quote(what), tpvm.ErrNoTask)
	}
}

// mostCandidates is how many identifiers an error lists.
const mostCandidates = 5

// candidates lists the identifiers of some of the entries.
func candidates(all, some []entry) string {
	names := shorten(all)
	var b strings.Builder
	for i, e := range some {
		if i == mostCandidates {
			fmt.Fprintf(&b, " and %d more", len(some)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%s)", names[e.ID], display.Quote(e.Name))
	}
	return b.String()
}

func psCommand() *cobra.Command {
	var asJSON, withThreads bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Print the tasks of the virtual machine",
		Long: "Print the tasks of the virtual machine, each below the one that spawned it, by hosts. More than three threads of the\n" +
			"same name on a host are one line, unless --threads is given. A program in brackets has not enrolled: it has not started\n" +
			"yet, or is no task. The exit code is 0 also where nothing runs.",
		Args: usage.Nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []entry
			err := observe(cmd, 0, func(ctx context.Context, t *tpvm.Task) (err error) {
				all, err = list(ctx, t)
				return err
			}, joinOnly())
			if isNoMachine(err) {
				err = nil
			}
			switch {
			case err != nil && len(all) == 0:
				return err
			case asJSON:
				return errors.Join(printJSON(cmd.OutOrStdout(), all), err)
			}
			return errors.Join(printTree(cmd.OutOrStdout(), all, withThreads), err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&withThreads, "threads", false, "print a line for each thread")
	return cmd
}

func printJSON[T any](w io.Writer, all []T) error {
	for _, v := range all {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(display.JSON(b), '\n')); err != nil {
			return err
		}
	}
	return nil
}

// mostThreads is how many threads of one name and parent have a line each.
const mostThreads = 3

// printTree prints entries below their parents.
func printTree(w io.Writer, all []entry, withThreads bool) error {
	if len(all) == 0 {
		return printTo(w, "no tasks\n")
	}
	names := shorten(all)
	children := map[tpvm.TID][]entry{}
	var roots []entry
	for _, e := range all {
		if e.Parent != nil && names[*e.Parent] != "" {
			children[*e.Parent] = append(children[*e.Parent], e)
		} else {
			roots = append(roots, e)
		}
	}
	var b bytes.Buffer // so that other output does not come between
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ID\tPID\tHOST\tTASK")
	hosts, tasks, threads := map[string]bool{}, 0, 0
	var print func(es []entry, indent string)
	print = func(es []entry, indent string) {
		same := map[string]int{}
		for _, e := range es {
			if e.Kind == "thread" && len(children[e.ID]) == 0 {
				same[e.Node+"\x00"+e.Name]++
			}
		}
		type line struct {
			id, pid, host, name string
			below               []entry
		}
		var lines []line
		for _, e := range es {
			hosts[e.Node] = true
			l := line{id: names[e.ID], pid: "-", host: display.Quote(e.Host), name: display.Quote(e.Name), below: children[e.ID]}
			switch e.Kind {
			case "thread":
				threads++
				k := e.Node + "\x00" + e.Name
				if n := same[k]; !withThreads && len(l.below) == 0 && (n > mostThreads || n < 0) {
					same[k] = -1
					if n < 0 { // counted in the line of the first
						continue
					}
					l.id, l.name = l.id+"…", fmt.Sprintf("%s (%d threads)", l.name, n)
				} else {
					l.name += " (thread)"
				}
			case "program":
				tasks++
				l.name = "[" + l.name + "]"
			default:
				tasks++
			}
			if e.PID != 0 {
				l.pid = strconv.Itoa(e.PID)
			}
			lines = append(lines, l)
		}
		for i, l := range lines {
			branch, below := "├─ ", "│  "
			if i == len(lines)-1 {
				branch, below = "└─ ", "   "
			}
			if indent == "-" {
				branch, below = "", ""
			}
			at := strings.TrimPrefix(indent, "-")
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s%s\n", l.id, l.pid, l.host, at+branch, l.name)
			if len(l.below) > 0 {
				print(l.below, at+below)
			}
		}
	}
	print(roots, "-")
	if err := tw.Flush(); err != nil {
		return err
	}
	return printTo(w, "%s%s, %s on %s\n", &b, count(tasks, "task"), count(threads, "thread"), count(len(hosts), "host"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
