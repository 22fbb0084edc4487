// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/flowfile"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/spf13/cobra"
)

// A launcher starts the groups of a graph.
type launcher struct {
	shown     []string
	showAll   bool
	protocol  string
	onlyPrint bool
	limit     seconds
	keepGoing bool
	ssh       tpvm.SSH

	file   *flowfile.File
	run    string // its identifier
	socket string // of the directory, for the groups on this host; may be empty
	args   []string
	groups []*group
	ended  chan *failure // of each group that was started, when it has ended; nil: well
	errOut io.Writer
}

// grace is how long the other groups may go on after the first failure. Within this time they tell
// each other its cause, and end by themselves.
const grace = 5 * time.Second

// errLimit is the cause of the end if the run takes too long.
var errLimit = errors.New("the time limit was reached")

// launch starts the groups of a configuration and waits until they have ended.
func (l *launcher) launch(cmd *cobra.Command, f *flowfile.File, args []string) (err error) {
	ctx := cmd.Context()
	if l.protocol != "" {
		if f, err = f.WithProtocol(l.protocol); err != nil {
			return usage.Errorf("-p %w", err)
		}
	}
	for _, name := range l.shown {
		if _, err := f.Group(name); err != nil {
			return usage.Errorf("-v %s: %w", usage.Quote(name), err)
		}
	}
	path, err := find(args[0])
	if err != nil {
		return err
	}
	flags := cli.Flags(cmd)
	l.file, l.run, l.errOut, l.socket = f, rand.Text()[:8], cmd.ErrOrStderr(), flags.Socket
	l.args = append([]string{path}, args[1:]...)
	l.ended = make(chan *failure, len(f.Groups))
	p := &printer{asJSON: flags.JSON}
	hosts := map[string]string{} // a host has several groups
	for i := range f.Groups {
		g := &group{Group: &f.Groups[i]}
		if _, isKnown := hosts[g.Host]; !isKnown {
			hosts[g.Host] = otherHost(ctx, g.Host)
		}
		g.host = hosts[g.Host]
		isShown := l.showAll || slices.Contains(l.shown, g.Name)
		g.out = &lines{printer: p, group: g.Name, stream: "stdout", to: cmd.OutOrStdout(), isShown: isShown, last: &g.last}
		g.err = &lines{printer: p, group: g.Name, stream: "stderr", to: l.errOut, isShown: isShown, last: &g.last}
		l.groups = append(l.groups, g)
	}
	if l.onlyPrint {
		return l.print(cmd.OutOrStdout())
	}
	if err := l.check(ctx, args); err != nil {
		return err
	}
	if l.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(l.limit), errLimit)
		defer cancel()
	}
	began := time.Now()
	failures := l.wait(ctx)
	if !p.asJSON {
		fmt.Fprintf(l.errOut, "rocl: the run took %v\n", time.Since(began).Round(time.Millisecond))
	}
	return l.result(ctx, failures)
}

// check lets the program build its graph, and compares its groups with those of the configuration.
// So a wrong argument, another program and a group without a name in the file are found before a
// group starts.
func (l *launcher) check(ctx context.Context, args []string) error {
	var said bytes.Buffer
	d, err := drawingOf(ctx, &said, args, l.groups[0].Env)
	if err != nil {
		_, _ = l.errOut.Write(said.Bytes())
		return err
	}
	return l.file.Match(d.Groups)
}

// env returns the environment of a group, with a text that stands for the configuration.
func (l *launcher) env(g *group, config string) []string {
	name, err := filepath.Abs(l.file.Name)
	if err != nil {
		name = l.file.Name
	}
	env := []string{flowfile.EnvGroup + "=" + g.Name, flowfile.EnvRun + "=" + l.run, flowfile.EnvFile + "=" + name, flowfile.EnvConfig + "=" + config}
	if l.socket != "" && g.host == "" {
		env = append(env, "ROCL_SOCKET="+l.socket)
	}
	return append(env, g.Env...)
}

// print prints the commands that start the groups.
func (l *launcher) print(w io.Writer) error {
	for _, g := range l.groups {
		text := export(l.env(g, string(l.file.Text))) + g.command(l.args)
		if g.host == "" {
			text = "(" + text + ")" // exec must not replace the shell into which a user pastes that
		} else {
			text = "ssh -T " + quote(g.host) + " " + quote(text)
		}
		if _, err := fmt.Fprintf(w, "[%s] %s\n", g.Name, text); err != nil {
			return err
		}
	}
	return nil
}

// end ends all groups. It does not wait.
func (l *launcher) end() {
	for _, g := range l.groups {
		g.end()
	}
}

// wait starts the groups and waits until all have ended. It returns the failures in their order.
// The end of ctx ends the groups, and so does the first failure after the grace.
func (l *launcher) wait(ctx context.Context) (failures []*failure) {
	running := 0
	for _, g := range l.groups {
		if err := g.start(l.env(g, string(l.file.Text)), l.args, l.ssh, func(f *failure) { l.ended <- f }); err != nil {
			failures = append(failures, &failure{g, err, 0})
			break
		}
		running++
	}
	done, late := ctx.Done(), (<-chan time.Time)(nil)
	if len(failures) > 0 && !l.keepGoing {
		l.end() // the others would wait for a group that does not start
	}
	for running > 0 {
		select {
		case f := <-l.ended:
			running--
			if f == nil {
				continue
			}
			if failures = append(failures, f); len(failures) == 1 && !l.keepGoing {
				late = time.After(grace)
			}
		case <-late:
			l.end()
		case <-done:
			done = nil
			l.end()
		}
	}
	return failures
}

// result prints the last lines of the group that failed first, and returns the error of the run.
func (l *launcher) result(ctx context.Context, failures []*failure) error {
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), errLimit) {
			return fmt.Errorf("%w after %v: all groups were ended", errLimit, time.Duration(l.limit))
		}
		return context.Cause(ctx)
	}
	if len(failures) == 0 {
		return nil
	}
	first := failures[0]
	if i := slices.IndexFunc(failures, (*failure).isOwn); i > 0 && !first.isOwn() {
		first = failures[i]
	}
	for _, line := range first.group.last {
		_, _ = l.errOut.Write(line)
	}
	return first
}
