// SPDX-License-Identifier: Apache-2.0

// Package top has the commands of rocl that show what goes on in a node or a cluster, as a live
// view in a terminal, and that record and replay it.
//
//	top.go      the commands
//	source.go   where views come from: a node, or a recording
//	model.go    the state of the screen, keys, and lines
//	tables.go   the tables, their columns and rows
//	details.go  the screen of one row
//	serve.go    a recording on a page
package top

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/recording"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// minInterval is the shortest time between two views.
const minInterval = 100 * time.Millisecond

// Commands returns the commands top, record and replay.
func Commands() []*cobra.Command {
	return []*cobra.Command{topCommand(), recordCommand(), replayCommand()}
}

// watching are the flags of the commands that ask a node.
type watching struct {
	isCluster bool
	interval  time.Duration
}

func (w *watching) define(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.isCluster, "cluster", false, "the contexts of all nodes, rather than of this one")
	cmd.Flags().DurationVar(&w.interval, "interval", time.Second, "time from one view to the next")
}

// open opens a context that asks, and does not serve the directory. The caller closes it.
func (w *watching) open(cmd *cobra.Command) (*live, error) {
	if w.interval < minInterval {
		return nil, usage.Errorf("--interval must be %v or longer", minInterval)
	}
	c, err := cli.Flags(cmd).Open(cmd.Context(), rocl.JoinOnly(), rocl.WithLinger(100*time.Millisecond), rocl.WithPoll(rocl.PollNever))
	if err != nil {
		return nil, err
	}
	return &live{ctx: cmd.Context(), c: c, watching: *w, limit: max(w.interval, time.Second)}, nil
}

func topCommand() *cobra.Command {
	var w watching
	var isOnce, isAll bool
	cmd := &cobra.Command{
		Use:   "top [PATTERN...]",
		Short: "Show live which resources, links and calls move, wait or stand still",
		Long: "Show the resources, links, calls, contexts and nodes, and what goes on in them: messages that wait, rates, ages. Every\n" +
			"context is asked once in an interval. One that does not answer within it, or within a second, is shown as silent.\n" +
			"A PATTERN is name=value, name=one|two or name<3: only resources that match, and what belongs to them, are shown.\n" +
			"'?' shows the keys. Without a terminal, and with --once or --json, the tables are printed after two questions.\n" +
			"Exit code 2 if no directory serves the node, 4 if it does not answer within --timeout. With --once the contexts have\n" +
			"as long, and the exit code is 3 if one of them, or a node, does not answer.",
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := filterOf(args)
			if err != nil {
				return err
			}
			src, err := w.open(cmd)
			if err != nil {
				return err
			}
			defer src.c.Close()
			m := newModel(src, false, filter)
			m.all = isAll
			if isOnce || !isInteractive(cmd) {
				src.limit = cli.Flags(cmd).Timeout
				for speed := range 2 { // the second time after the interval
					if err := m.advance(float64(speed)); err != nil {
						return err
					}
				}
				return m.print(cmd)
			}
			return m.run(cmd)
		},
	}
	w.define(cmd)
	cmd.Flags().BoolVar(&isOnce, "once", false, "print the tables once")
	cmd.Flags().BoolVar(&isAll, "all", false, "contexts without resources too, such as those of commands")
	return cmd
}

func recordCommand() *cobra.Command {
	var w watching
	var length time.Duration
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Keep in a file what 'rocl top' would show, for 'rocl replay'",
		Long: "Write a view of all contexts to FILE once in an interval, for as long as --for says or until interrupted. FILE is gzip,\n" +
			"with a JSON object a line. It has the suffix .part until it is finished, and at most 1 GiB. A file that was cut off can\n" +
			"be replayed as far as it goes. It has names, identifiers and addresses: only its owner may read it.\n" +
			"Exit code 1 if FILE exists or cannot be written, 2 if no directory serves the node, 4 if the directory does not answer.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length <= 0 {
				return usage.Errorf("--for must be more than zero")
			}
			src, err := w.open(cmd)
			if err != nil {
				return err
			}
			defer src.c.Close()
			v, err := src.next(0)
			if err != nil {
				return err
			}
			r, err := recording.Create(args[0])
			if err != nil {
				return err
			}
			views, missed := 0, 0
			for end := v.Taken.Add(length); ; {
				if v == nil {
					missed++
				} else if err = r.Add(v); err != nil {
					break
				} else {
					views++
				}
				if !time.Now().Add(w.interval).Before(end) {
					break
				}
				if v, _ = src.next(1); cmd.Context().Err() != nil {
					break
				}
			}
			err = errors.Join(err, r.Finish())
			fmt.Fprintf(cmd.ErrOrStderr(), "%d views in %s, %sB\n", views, usage.Quote(args[0]), size(float64(r.Size())).text)
			if missed > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d times the directory did not answer\n", missed)
			}
			return err
		},
	}
	w.define(cmd)
	cmd.Flags().DurationVar(&length, "for", time.Hour, "how long to record")
	return cmd
}

func replayCommand() *cobra.Command {
	var isOnce bool
	var at, addr string
	cmd := &cobra.Command{
		Use:   "replay FILE [PATTERN...]",
		Short: "Show a recording of 'rocl record' as 'rocl top' does",
		Long: "Show a recording. Space pauses it, n goes on by one view, + and - change the speed. A pattern matches names as the tables\n" +
			"have them, since a recording has no other attributes. Without a terminal, and with --once or --json, the tables at one\n" +
			"moment are printed: at the end, or as --at says.\n" +
			"With --http, a page as that of 'rocl web' shows it, until interrupted. The URL that is printed is valid once, for two\n" +
			"minutes, and only on this machine.\n" +
			"Exit code 1 if FILE is not a recording, 3 if a context or a node did not answer (--once).",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := filterOf(args[1:])
			if err != nil {
				return err
			}
			if addr != "" && (isOnce || filter != "") {
				return usage.Errorf("--http has neither --once nor a PATTERN: the page has a search")
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			p, err := recording.NewReader(f)
			if err != nil {
				return fmt.Errorf("%s: %w", usage.Quote(args[0]), err)
			}
			if addr != "" {
				return serve(cmd, addr, at, p.Read)
			}
			m := newModel(&replay{ctx: cmd.Context(), Reader: p}, true, filter)
			isOnce = isOnce || !isInteractive(cmd)
			if isOnce || at != "" {
				if err := m.seek(at); err != nil {
					return err
				}
			}
			if isOnce {
				return m.print(cmd)
			}
			return m.run(cmd)
		},
	}
	cmd.Flags().BoolVar(&isOnce, "once", false, "print the tables once")
	cmd.Flags().StringVar(&addr, "http", "", "`address` of this machine, such as 127.0.0.1:9465, at which a page shows the recording")
	cmd.Flags().StringVar(&at, "at", "", "`time` to go to, such as 2026-11-27T18:00:00Z, or from the start, such as 5m")
	return cmd
}

// filterOf returns the arguments as a pattern.
func filterOf(args []string) (string, error) {
	filter := strings.Join(args, " ")
	if _, err := rocl.Parse(filter); err != nil {
		return "", usage.Errorf("%w", err)
	}
	return filter, nil
}

// isInteractive reports whether the command has a terminal on which it can move the cursor.
func isInteractive(cmd *cobra.Command) bool {
	isTerminal := func(v any) bool {
		f, ok := v.(*os.File)
		return ok && term.IsTerminal(int(f.Fd()))
	}
	return !cli.Flags(cmd).JSON && os.Getenv("TERM") != "dumb" && isTerminal(cmd.InOrStdin()) && isTerminal(cmd.OutOrStdout())
}

// run shows the model until the user quits, or the command is interrupted.
func (m *model) run(cmd *cobra.Command) error {
	_, err := tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithInput(cmd.InOrStdin()), tea.WithOutput(cmd.OutOrStdout()), tea.WithoutSignalHandler()).Run()
	return err
}

// advance shows the next frame.
func (m *model) advance(speed float64) error {
	m.asking, m.speed = false, speed
	f, _ := m.ask(speed)().(frame)
	m.asking, m.paused, m.stepping = false, true, true
	m.show(&f)
	m.paused = false
	return f.err
}

// seek shows the last view before a time; "" is the end. The error of a recording that was cut off
// is none if it has views.
func (m *model) seek(at string) error {
	var end time.Time
	for {
		err := m.advance(0)
		switch {
		case err == nil:
		case m.view != nil:
			return nil
		case errors.Is(err, io.EOF):
			return errEmpty
		default:
			return err
		}
		if at != "" && end.IsZero() {
			if end, err = momentOf(at, m.view.Taken); err != nil {
				return err
			}
		}
		if at != "" && !m.view.Taken.Before(end) {
			return nil
		}
	}
}

// momentOf reads the value of --at.
func momentOf(at string, start time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(at); err == nil {
		return start.Add(d), nil
	}
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return t, usage.Errorf("--at %s is neither a time such as 2026-11-27T18:00:00Z nor a duration such as 5m", usage.Quote(at))
	}
	return t, nil
}

// A line is a row in JSON.
type line struct {
	Kind  string    `json:"kind"`
	Taken time.Time `json:"taken"`
	Row   any       `json:"row"`
}

// print prints all tables.
func (m *model) print(cmd *cobra.Command) error {
	w := cmd.OutOrStdout()
	isPartial := false
	for i := range tables {
		m.table, m.at = i, 0
		m.arrange()
		isPartial = isPartial || slices.ContainsFunc(m.rows, func(r row) bool { return r.mark == "!" })
		if cli.Flags(cmd).JSON {
			for _, r := range m.rows {
				if err := cli.Print(w, line{tables[i].kind, m.view.Taken, r.value}); err != nil {
					return err
				}
			}
		} else if len(m.rows) > 0 {
			head, all := tables[i].lines(m.rows, 0, -1, false)
			if _, err := fmt.Fprintf(w, "%s\n%s\n%s\n", tables[i].name, head, strings.Join(all, "\n")); err != nil {
				return err
			}
		}
	}
	if isPartial {
		return cli.ErrPartial
	}
	return nil
}
