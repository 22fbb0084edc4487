// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/flowfile"
)

// A Launch says what a process runs of its graph. Its launcher, such as `rocl flow run`, has told
// it by the environment, or a person by flags.
type Launch struct {
	// Group is the group that the process runs. If it is empty, the process runs the whole graph.
	Group string
	// Config has the settings of the group.
	Config Config
	// Options are further options of the run, such as [Trace] and [LogStats].
	Options []RunOption

	file    *flowfile.File // nil without a configuration file
	group   *flowfile.Group
	drawing string // if not empty: the file for the graph, which does not run
	groups  string // if not empty: the file for the groups, in FastFlow's form
	show    string // the group whose nodes are printed, or all
}

// ParseFlags returns what the environment and the flags in args say, and the other arguments. A
// flag is more than the environment. The flags have FastFlow's names. Each takes its value behind =
// or as the next argument:
//
//	--DFF_Config FILE      the configuration file
//	--DFF_GName GROUP      the group that this process runs
//	--DFF_dryrun FILE      writes the groups and their nodes to a file, and runs nothing
//	--DFF_PrintGroup NAME  prints the nodes of a group, or of all, before it runs
//
// ParseFlags fails with ErrConfig if the configuration file is wrong or does not have the group.
func ParseFlags(args []string) (l *Launch, rest []string, err error) {
	l = &Launch{Group: os.Getenv(flowfile.EnvGroup), drawing: os.Getenv(flowfile.EnvDrawing)}
	file := ""
	flags := map[string]*string{"--DFF_Config": &file, "--DFF_GName": &l.Group, "--DFF_dryrun": &l.groups, "--DFF_PrintGroup": &l.show}
	for i := 0; i < len(args); i++ {
		name, v, hasValue := strings.Cut(args[i], "=")
		to := flags[name]
		if to == nil {
			if args[i] == "--" {
				rest = append(rest, args[i:]...)
				break
			}
			rest = append(rest, args[i])
			continue
		}
		if !hasValue {
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("%w: the flag %s has no value", ErrConfig, name)
			}
			v = args[i]
		}
		if v == "" {
			return nil, nil, fmt.Errorf("%w: the value of %s is empty", ErrConfig, name)
		}
		*to = v
	}
	if l.drawing != "" || l.groups != "" {
		return l, rest, nil
	}
	return l, rest, l.configure(file)
}

// configure reads the configuration: in the file of that name, or else in the environment.
func (l *Launch) configure(file string) (err error) {
	switch text := os.Getenv(flowfile.EnvConfig); {
	case file != "":
		l.file, err = flowfile.Read(file)
	case text != "":
		l.file, err = flowfile.Parse(cmp.Or(os.Getenv(flowfile.EnvFile), flowfile.EnvConfig), []byte(text))
	}
	if err == nil && l.file != nil {
		if l.Group == "" {
			return fmt.Errorf("%w: %s is given without a group", ErrConfig, l.file.Name)
		}
		if l.group, err = l.file.Group(l.Group); err == nil {
			l.Config = configOf(l.group)
		}
	}
	l.Config.Run = os.Getenv(flowfile.EnvRun)
	return err
}

// Run runs the part of the graph that the launch says. For a group, and for a graph with an elastic
// farm, it opens a context with the given options, and closes it afterwards. It fails with
// ErrConfig if the groups of the graph are not those of the configuration file. Otherwise it is
// like [Graph.Run].
func (l *Launch) Run(ctx context.Context, g *Graph, o ...rocl.Option) error {
	switch {
	case l.drawing != "":
		return g.drawing().Write(l.drawing)
	case l.groups != "":
		return os.WriteFile(l.groups, g.drawing().Configuration(), 0o666)
	case l.show != "":
		g.show(os.Stdout, l.show)
	}
	if l.Group == "" && !g.needsContext() {
		return g.Run(ctx, l.Options...)
	}
	if l.file != nil {
		if err := l.file.Match(g.groups()); err != nil {
			return err
		}
		if err := setCores(l.group.Cores); err != nil {
			return l.file.Errorf("threadMapping", "group %q: %w", l.Group, err)
		}
		o = append(o, transports(l.file.Protocol)...)
	}
	in := InGroup
	if l.Group == "" {
		in = func(c *rocl.Context, _ string, cfg Config) RunOption { return Using(c, cfg) }
	} else if err := g.check(l.Group); err != nil {
		return err
	}
	c, err := rocl.Open(ctx, o...)
	if err != nil {
		return err
	}
	err = g.Run(ctx, append(slices.Clip(l.Options), in(c, l.Group, l.Config))...)
	if cerr := c.Close(); !errors.Is(cerr, rocl.ErrGone) { // credit for a group that has sent all and ended
		err = errors.Join(err, cerr)
	}
	return err
}

// transports returns the options for a protocol of a configuration file. A protocol that rocl lacks
// leaves the choice to rocl, as no protocol does.
func transports(protocol string) []rocl.Option {
	over := map[string][]string{"TCP": {"tls", "tcp"}, "SHM": {"shm"}}[protocol]
	if over == nil {
		return nil
	}
	return []rocl.Option{rocl.WithRules(rocl.Rule{Match: rocl.Match{"type": "dataflow"}, Over: over})}
}

// Main is the main function of a program that builds one graph. build gets the arguments of the
// program without the flags of [ParseFlags]. Main runs what these flags and the environment say,
// until a signal interrupts it. It prints an error, with what crossed the edges to a group that was
// lost, and ends the process. The exit code is 0 if the
// run ended well, 1 if it failed, 3 if another group failed, 130 if a signal ended it.
func Main(build func(args []string) (*Graph, error), o ...rocl.Option) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	group, err := launch(ctx, os.Args[1:], build, o)
	code := exitCode(ctx, group, err)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		printLost(os.Stderr, err)
	}
	os.Exit(code)
}

// launch builds the graph and runs it. It returns the group that it runs.
func launch(ctx context.Context, args []string, build func([]string) (*Graph, error), o []rocl.Option) (string, error) {
	l, rest, err := ParseFlags(args)
	if err != nil {
		return "", err
	}
	g, err := build(rest)
	if err != nil {
		return "", err
	}
	return l.Group, l.Run(ctx, g, o...)
}

// printLost prints what crossed the edges to the group that was lost or has failed.
func printLost(w io.Writer, err error) {
	var e *RunError
	if !errors.As(err, &e) {
		return
	}
	for _, x := range e.Edges {
		fmt.Fprintf(w, "  %v\n", x)
	}
}

// exitCode returns the exit code for an error of a group.
func exitCode(ctx context.Context, group string, err error) int {
	var e *RunError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e) && e.Group != group:
		return flowfile.ExitOther
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return 130
	}
	return 1
}
