// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/tpvm"
)

// rcName is the start-up file in the user's home directory.
const rcName = ".tpvmrc"

func consoleCommand() *cobra.Command {
	var rc string
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Read commands as PVM's console does",
		Long: "Read commands, from a terminal or as a script from standard input; 'help' lists them.\n" +
			"The commands in $HOME/" + rcName + ", or in the file that --rc names, come first, such as 'alias' and 'setenv'. One that\n" +
			"fails there is reported with its line, and the next one follows.\n" +
			"A script goes on behind a command that fails. At its end, the output of what it has spawned is waited for, and the exit\n" +
			"code is 1 if a command has failed.",
		Example: "  tpvm console\n  echo 'spawn -4 -> hostname' | tpvm console\n  tpvm console --rc /dev/null <script",
		Args:    nothing,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runConsole(cmd, rc) },
	}
	cmd.Flags().StringVar(&rc, "rc", "", "start-up `file` (default $HOME/"+rcName+", where there is one)")
	return cmd
}

// console is a task that carries out commands.
type console struct {
	cmd     *cobra.Command
	t       *tpvm.Task
	out     io.Writer
	aliases map[string][]string
	exports []string // names of variables for what is spawned
	jobs    []*job
	quit    bool
}

func runConsole(cmd *cobra.Command, rc string) (err error) {
	t, err := enrol(cmd, tpvm.WithName("tpvm console"), tpvm.WithoutLaunch())
	if err != nil {
		return err
	}
	c := &console{cmd: cmd, t: t, out: cmd.OutOrStdout(), aliases: pvmAliases()}
	terminal := isTerminal(cmd.InOrStdin())
	defer func() { err = errors.Join(err, c.end(!terminal)) }()
	if err := c.readRC(cmd.Context(), rc); err != nil {
		return err
	}
	if terminal {
		return c.converse(cmd.Context())
	}
	return c.runScript(cmd.Context())
}

// end ends the console. For a script it waits for the output of what runs; else that goes on
// without its output.
func (c *console) end(waits bool) error {
	ctx, cancel := context.WithCancel(c.cmd.Context())
	defer cancel()
	if !waits {
		cancel()
	}
	err := c.t.Exit(ctx)
	if !waits || c.cmd.Context().Err() != nil {
		err = nil
	}
	for _, j := range c.jobs {
		if j.file != nil {
			err = errors.Join(err, j.file.Close())
		}
	}
	return err
}

// readRC carries out the commands of the start-up file.
func (c *console) readRC(ctx context.Context, path string) error {
	isDefault := path == ""
	if isDefault {
		home, err := os.UserHomeDir()
		if err != nil { // there is none
			return nil
		}
		path = filepath.Join(home, rcName)
	}
	f, err := os.Open(path)
	if isDefault && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("start-up file: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for n := 1; !c.quit && ctx.Err() == nil && s.Scan(); n++ {
		if err := c.do(ctx, s.Text()); err != nil {
			complain(c.cmd.ErrOrStderr(), fmt.Sprintf("%s:%d: ", path, n), err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("start-up file %s: %w", path, err)
	}
	return nil
}

// converse carries out the commands of a terminal.
func (c *console) converse(ctx context.Context) error {
	lines := c.lines(ctx)
	for !c.quit {
		c.tellEnded()
		fmt.Fprint(c.out, "tpvm> ")
		line, err := lines(ctx)
		if err != nil {
			return endOfInput(err)
		}
		if err := c.do(ctx, line); err != nil {
			complain(c.cmd.ErrOrStderr(), "", err)
		}
	}
	return nil
}

// runScript carries out the commands of standard input, and fails if one has failed.
func (c *console) runScript(ctx context.Context) error {
	lines := c.lines(ctx)
	failed := false
	for n := 1; !c.quit; n++ {
		line, err := lines(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return endOfInput(err)
		}
		if err := c.do(ctx, line); err != nil {
			failed = true
			complain(c.cmd.ErrOrStderr(), fmt.Sprintf("line %d: ", n), err)
		}
	}
	if failed {
		return exitError(exitFailed)
	}
	return nil
}

// lines returns a function that returns the next line of standard input. Reading it cannot be
// interrupted: another goroutine does that.
func (c *console) lines(ctx context.Context) func(context.Context) (string, error) {
	lines, ended := make(chan string), make(chan error, 1)
	go func() {
		s := bufio.NewScanner(c.cmd.InOrStdin())
		for s.Scan() {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
		if err := s.Err(); err != nil {
			ended <- fmt.Errorf("reading commands: %w", err)
			return
		}
		ended <- io.EOF
	}()
	return func(ctx context.Context) (string, error) {
		select {
		case line := <-lines:
			return line, nil
		case err := <-ended:
			return "", err
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// endOfInput returns the error of the command for that of the last read.
func endOfInput(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, context.Canceled):
		return exitError(exitInterrupted)
	}
	return err
}

// do carries out a line.
func (c *console) do(ctx context.Context, line string) error {
	words, err := split(line)
	if err != nil || len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return err
	}
	words = c.expand(words)
	k, err := findCommand(words[0])
	if err != nil {
		return err
	}
	args := words[1:]
	if len(args) < k.least || len(args) > k.most {
		return fmt.Errorf("usage: %s", k.usage())
	}
	if err := k.f(c, ctx, args); err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	return nil
}

// expand replaces aliases. Each is replaced once, so that one may have the name of a command.
func (c *console) expand(words []string) []string {
	var seen []string
	for {
		a, ok := c.aliases[words[0]]
		if !ok || slices.Contains(seen, words[0]) {
			return words
		}
		seen = append(seen, words[0])
		words = slices.Concat(a, words[1:])
	}
}

// findCommand returns the command of a name.
func findCommand(name string) (command, error) {
	for _, k := range consoleCommands {
		if k.name == name {
			return k, nil
		}
	}
	return command{}, fmt.Errorf("there is no command %s; 'help' lists them", usage.Quote(name))
}
