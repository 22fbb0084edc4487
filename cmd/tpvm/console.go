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
	"golang.org/x/term"

	"github.com/rocl-go/rocl/cmd/internal/interrupt"
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
		Args:    usage.Nothing,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runConsole(cmd, rc) },
	}
	cmd.Flags().StringVar(&rc, "rc", "", "start-up `file` (default $HOME/"+rcName+", where there is one)")
	return cmd
}

// console is a task that carries out commands.
type console struct {
	cmd     *cobra.Command
	ctx     context.Context // ends with the console
	t       *tpvm.Task
	out     io.Writer // of commands, and of spawned programs
	err     io.Writer // of errors
	aliases map[string][]string
	exports []string // names of the variables that spawned programs get
	jobs    []*job
	line    *term.Terminal // reads the lines of a user at a terminal; else nil
	quit    bool
}

// runConsole enrols the console, and carries out the start-up file and then the commands of a
// terminal or a script.
func runConsole(cmd *cobra.Command, rc string) (err error) {
	t, err := enrol(cmd, tpvm.WithName("tpvm console"), tpvm.WithoutLaunch())
	if err != nil {
		return err
	}
	c := &console{cmd: cmd, t: t, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), aliases: pvmAliases()}
	terminal := isTerminal(cmd.InOrStdin()) && isTerminal(c.out)
	if terminal {
		c.useTerminal()
	}
	var stop func()
	c.ctx, stop = context.WithCancel(cmd.Context())
	defer func() { err = errors.Join(err, c.end(!terminal, stop)) }()
	if err := c.readRC(rc); err != nil {
		return err
	}
	if terminal {
		return c.converse()
	}
	return c.runScript()
}

// end ends the console. If waits is set, as for a script, it waits for jobs that print. Otherwise
// these go on without their output. stop ends the goroutines that follow the jobs.
func (c *console) end(waits bool, stop func()) error {
	ctx, cancel := context.WithCancel(c.cmd.Context())
	defer cancel()
	if !waits {
		cancel()
	}
	for _, j := range c.jobs {
		if j.prints {
			select {
			case <-j.ended:
			case <-ctx.Done():
			}
		}
	}
	stop()
	err := c.t.Exit(ctx)
	if !waits || c.cmd.Context().Err() != nil {
		err = nil
	}
	for _, j := range c.jobs {
		if err == nil && waits { // no goroutine writes any more
			err = j.err
		}
		if j.file != nil {
			err = errors.Join(err, j.file.Close())
		}
	}
	return err
}

// readRC carries out the commands of the start-up file. It does nothing if there is no default
// file.
func (c *console) readRC(path string) error {
	isDefault := path == ""
	if isDefault {
		home, err := os.UserHomeDir()
		if err != nil { // there is no home directory
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
	for n := 1; !c.quit && c.ctx.Err() == nil && s.Scan(); n++ {
		if err := c.do(s.Text()); err != nil {
			complain(c.err, fmt.Sprintf("%s:%d: ", path, n), err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("start-up file %s: %w", path, err)
	}
	return nil
}

// useTerminal makes the console print by its terminal, which keeps the line that a user types below
// the output.
func (c *console) useTerminal() {
	c.line = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{c.cmd.InOrStdin(), c.out}, "tpvm> ")
	c.out, c.err = c.line, c.line
}

// converse carries out the commands of a terminal.
func (c *console) converse() error {
	fd := int(c.cmd.InOrStdin().(*os.File).Fd())
	for !c.quit {
		line, err := c.readLine(fd)
		if errors.Is(err, io.EOF) {
			return printTo(c.out, "\n")
		}
		if err != nil {
			return endOfInput(err)
		}
		if err := c.do(line); err != nil {
			complain(c.err, "", err)
		}
	}
	return nil
}

// readLine reads a line, which the user may edit.
func (c *console) readLine(fd int) (string, error) {
	if width, height, err := term.GetSize(fd); err == nil && width > 0 {
		_ = c.line.SetSize(width, height)
	}
	before, err := term.MakeRaw(fd)
	if err != nil {
		return "", fmt.Errorf("reading commands: %w", err)
	}
	defer func() { _ = term.Restore(fd, before) }()
	return interrupt.Read(c.ctx, c.line.ReadLine)
}

// runScript carries out the commands of standard input. It fails if one of them has failed.
func (c *console) runScript() error {
	next := lines(c.cmd.InOrStdin())
	failed := false
	for n := 1; !c.quit; n++ {
		line, err := interrupt.Read(c.ctx, next)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return endOfInput(err)
		}
		if err := c.do(line); err != nil {
			failed = true
			complain(c.err, fmt.Sprintf("line %d: ", n), err)
		}
	}
	if failed {
		return exitError(exitFailed)
	}
	return nil
}

// lines returns a function that reads the next line of a script.
func lines(r io.Reader) func() (string, error) {
	s := bufio.NewScanner(r)
	return func() (string, error) {
		if s.Scan() {
			return s.Text(), nil
		}
		if err := s.Err(); err != nil {
			return "", fmt.Errorf("reading commands: %w", err)
		}
		return "", io.EOF
	}
}

// endOfInput returns the error of the command for the error err of the last read.
func endOfInput(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, context.Canceled):
		return exitError(exitInterrupted)
	}
	return err
}

// do carries out one line.
func (c *console) do(line string) error {
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
	ctx, cancel := timeoutContext(c.cmd, 0)
	defer cancel()
	if err := k.f(c, ctx, args); err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	return nil
}

// expand replaces aliases. Each alias is replaced once, so that an alias may have the name of a
// command.
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

// findCommand returns the command with a name.
func findCommand(name string) (command, error) {
	for _, k := range consoleCommands {
		if k.name == name {
			return k, nil
		}
	}
	return command{}, fmt.Errorf("there is no command %s; 'help' lists them", usage.Quote(name))
}
