// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/tpvm"
)

func consoleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "console",
		Short: "Read commands as PVM's console does",
		Long: "Read commands, from a terminal or as a script from standard input; 'help' lists them.\n" +
			"At the end of a script, the output of what it has spawned is waited for. The exit code is 1 if a command has failed.",
		Args: nothing,
		RunE: func(cmd *cobra.Command, _ []string) error { return runConsole(cmd) },
	}
}

// console is a task that carries out commands.
type console struct {
	cmd    *cobra.Command
	t      *tpvm.Task
	out    io.Writer
	env    []string // of what is spawned
	jobs   []*job
	failed bool
	quit   bool
}

// job is one spawn.
type job struct {
	number int
	name   string
	ps     []*tpvm.Program
	ended  chan struct{} // closed when all have
	file   *os.File      // of the output
}

// consoleCommands are the commands, in the order of help.
var consoleCommands = []struct {
	name, args, what string
	f                func(c *console, ctx context.Context, args []string) error
}{
	{"conf", "", "list the hosts of the virtual machine", (*console).conf},
	{"echo", "[word...]", "print words", (*console).echo},
	{"halt", "", "end all tasks of the virtual machine, and the console", (*console).halt},
	{"help", "[command]", "list the commands", nil},
	{"id", "", "print the console's identifier", (*console).id},
	{"jobs", "", "list what the console has spawned and still runs", (*console).listJobs},
	{"kill", "ID...", "end tasks", (*console).kill},
	{"ps", "[-a]", "list the tasks; -a: every thread", (*console).ps},
	{"quit", "", "end the console; what it has spawned goes on", (*console).doQuit},
	{"reset", "", "end all tasks but the console", (*console).reset},
	{"setenv", "[NAME [VALUE]]", "print, or set, the environment of what is spawned", (*console).setenv},
	{"sig", "SIGNAL ID...", "send a signal to tasks", (*console).sig},
	{"spawn", "[-COUNT] [-HOST] [-GOOS/GOARCH] [->[FILE] | ->>FILE] PROGRAM [argument...] [-> FILE]", "start a program; -> prints what it prints, with a file writes it there, ->> appends it", (*console).spawn},
	{"version", "", "print the version", (*console).version},
}

func runConsole(cmd *cobra.Command) (err error) {
	t, err := enrol(cmd, false, tpvm.WithName("tpvm console"), tpvm.WithoutLaunch())
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	terminal := isTerminal(cmd.InOrStdin())
	c := &console{cmd: cmd, t: t, out: cmd.OutOrStdout()}
	defer func() {
		over, cancel := context.WithCancel(ctx)
		defer cancel()
		if terminal { // what runs goes on, without its output
			cancel()
		}
		exitErr := t.Exit(over)
		for _, j := range c.jobs {
			if j.file != nil {
				err = errors.Join(err, j.file.Close())
			}
		}
		if err == nil && !terminal {
			err = exitErr
		}
	}()
	lines := make(chan string)
	readErr := make(chan error, 1)
	go func() { // reading standard input cannot be interrupted
		defer close(lines)
		s := bufio.NewScanner(cmd.InOrStdin())
		for s.Scan() {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
		readErr <- s.Err()
	}()
	for !c.quit {
		if terminal {
			fmt.Fprint(c.out, "tpvm> ")
		}
		select {
		case line, ok := <-lines:
			if !ok {
				c.quit = true
				if err := <-readErr; err != nil {
					return fmt.Errorf("reading commands: %w", err)
				}
				continue
			}
			if err := c.do(ctx, line); err != nil {
				c.failed = true
				fmt.Fprintf(cmd.ErrOrStderr(), "tpvm: %s\n", text(err))
				if hint := hintOf(err); hint != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), hint)
				}
			}
		case <-ctx.Done():
			return exitError(exitInterrupted)
		}
	}
	if c.failed && !terminal {
		return exitError(exitFailed)
	}
	return nil
}

// do carries out a line.
func (c *console) do(ctx context.Context, line string) error {
	words, err := split(line)
	if err != nil || len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return err
	}
	if words[0] == "help" || words[0] == "?" {
		return c.help(words[1:])
	}
	for _, k := range consoleCommands {
		if k.name == words[0] {
			if err := k.f(c, ctx, words[1:]); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no command %s; 'help' lists them", usage.Quote(words[0]))
}

// split splits a line into words; quotes keep spaces, and a backslash the next character.
func split(line string) (words []string, err error) {
	var b strings.Builder
	quote, isWord, escaped := rune(0), false, false
	for _, r := range line {
		switch {
		case escaped:
			b.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, isWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			b.WriteRune(r)
		case r == '\'' || r == '"':
			quote, isWord = r, true
		case r == ' ' || r == '\t' || r == '\r':
			if isWord {
				words = append(words, b.String())
				b.Reset()
				isWord = false
			}
		default:
			b.WriteRune(r)
			isWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("the line ends within quotes: %s", usage.Quote(line))
	}
	if isWord {
		words = append(words, b.String())
	}
	return words, nil
}

// brief is the context of a question that is answered at once.
func (c *console) brief() (context.Context, context.CancelFunc) { return patience(c.cmd) }

func (c *console) help(args []string) error {
	for _, k := range consoleCommands {
		if len(args) > 0 && k.name != args[0] {
			continue
		}
		if err := printTo(c.out, "%-8s %s\n         %s\n", k.name, k.args, k.what); err != nil || len(args) > 0 {
			return err
		}
	}
	if len(args) > 0 {
		return fmt.Errorf("there is no command %s", usage.Quote(args[0]))
	}
	return nil
}

func (c *console) conf(context.Context, []string) error {
	ctx, cancel := c.brief()
	defer cancel()
	hs, err := c.t.Hosts(ctx)
	if err != nil {
		return err
	}
	return printHosts(c.out, hs, false)
}

func (c *console) echo(_ context.Context, args []string) error {
	return printTo(c.out, "%s\n", strings.Join(args, " "))
}

func (c *console) id(context.Context, []string) error { return printTo(c.out, "%v\n", c.t.ID()) }

func (c *console) version(context.Context, []string) error {
	return printTo(c.out, "%s\n", version.String())
}

func (c *console) doQuit(context.Context, []string) error {
	c.quit = true
	return nil
}

func (c *console) ps(_ context.Context, args []string) error {
	ctx, cancel := c.brief()
	defer cancel()
	all, err := list(ctx, c.t)
	if err != nil {
		return err
	}
	return printTree(c.out, all, slices.Contains(args, "-a"))
}

func (c *console) kill(_ context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("which task? 'ps' lists them")
	}
	ctx, cancel := c.brief()
	defer cancel()
	return signalEach(ctx, c.t, syscall.SIGTERM, args)
}

func (c *console) sig(_ context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("which signal, to which task? sig TERM ID")
	}
	s, err := parseSignal(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := c.brief()
	defer cancel()
	return signalEach(ctx, c.t, s, args[1:])
}

// reset ends all tasks but the console.
func (c *console) reset(context.Context, []string) error {
	ctx, cancel := c.brief()
	defer cancel()
	all, err := list(ctx, c.t)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		if e.ID == c.t.ID() || e.Kind == "thread" {
			continue
		}
		if err := c.t.Signal(ctx, e.ID, syscall.SIGTERM); err != nil && !errors.Is(err, tpvm.ErrNoTask) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *console) halt(ctx context.Context, args []string) error {
	c.quit = true
	return c.reset(ctx, args)
}

func (c *console) setenv(_ context.Context, args []string) error {
	switch len(args) {
	case 0:
		return printTo(c.out, "%s\n", strings.Join(c.env, "\n"))
	case 1:
		v, _ := os.LookupEnv(args[0])
		for _, e := range c.env {
			if k, w, _ := strings.Cut(e, "="); k == args[0] {
				v = w
			}
		}
		return printTo(c.out, "%s\n", v)
	}
	c.env = slices.DeleteFunc(c.env, func(e string) bool { return strings.HasPrefix(e, args[0]+"=") })
	c.env = append(c.env, args[0]+"="+strings.Join(args[1:], " "))
	return nil
}

func (c *console) listJobs(context.Context, []string) error {
	for _, j := range c.jobs {
		select {
		case <-j.ended:
			continue
		default:
		}
		if err := printTo(c.out, "[%d] %d %s\n", j.number, len(j.ps), j.name); err != nil {
			return err
		}
	}
	return nil
}

// request is what a spawn asks for.
type request struct {
	n             int
	host, arch    string
	args          []string // the program first
	prints        bool
	file          string
	appendsToFile bool
}

// parseSpawn reads the arguments of spawn.
func parseSpawn(args []string) (r request, err error) {
	r.n = 1
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		a := args[0]
		args = args[1:]
		to, isFile := strings.CutPrefix(a, "->")
		switch {
		case isFile:
			to, r.appendsToFile = strings.CutPrefix(to, ">")
			r.prints = true
			if r.file = to; r.appendsToFile && to == "" {
				return r, errors.New("->> needs a file, with no space between")
			}
		case a == "--":
		case a == "-":
			return r, errors.New("- is no option")
		default:
			what := a[1:]
			if n, err := strconv.Atoi(what); err == nil {
				if n < 1 {
					return r, fmt.Errorf("the count %s is not more than zero", what)
				}
				r.n = n
			} else if strings.Contains(what, "/") {
				r.arch = what
			} else {
				r.host = what
			}
		}
		if a == "--" {
			break
		}
	}
	if len(args) == 0 {
		return r, errors.New("which program?")
	}
	// As in a shell, a file may be named at the end.
	if k := len(args) - 2; k > 0 && (args[k] == "->" || args[k] == "->>") {
		r.prints, r.appendsToFile, r.file = true, args[k] == "->>", args[k+1]
		args = args[:k]
	}
	r.args = args
	return r, nil
}

// enrolTime is how long spawn waits for tasks to print their identifiers.
const enrolTime = time.Second

func (c *console) spawn(ctx context.Context, args []string) error {
	r, err := parseSpawn(args)
	if err != nil {
		return err
	}
	j := &job{number: len(c.jobs) + 1, name: r.args[0], ended: make(chan struct{})}
	opts := []tpvm.SpawnOption{tpvm.OnHost(r.host), tpvm.OnArch(r.arch), tpvm.Args(r.args[1:]...), tpvm.Env(c.env...)}
	switch {
	case r.file != "":
		how := os.O_TRUNC
		if r.appendsToFile {
			how = os.O_APPEND
		}
		if j.file, err = os.OpenFile(r.file, os.O_WRONLY|os.O_CREATE|how, 0o666); err != nil {
			return err
		}
		err = c.t.Catchout(j.file)
	case r.prints:
		err = c.t.Catchout(c.out)
	default:
		opts = append(opts, tpvm.NoOutput())
	}
	if err != nil {
		return err
	}
	brief, cancel := c.brief()
	defer cancel()
	j.ps, err = c.t.Start(brief, r.args[0], r.n, opts...)
	err = errors.Join(err, c.t.Catchout(nil))
	if len(j.ps) == 0 {
		if j.file != nil {
			err = errors.Join(err, j.file.Close())
		}
		return err
	}
	c.jobs = append(c.jobs, j)
	go func() {
		defer close(j.ended)
		for _, p := range j.ps {
			_, _ = p.Wait(ctx)
		}
	}()
	if perr := printTo(c.out, "[%d] %d started\n", j.number, len(j.ps)); perr != nil {
		return errors.Join(err, perr)
	}
	enrolled, stop := context.WithTimeout(ctx, enrolTime)
	defer stop()
	for _, p := range j.ps {
		id, terr := p.Task(enrolled)
		if terr != nil { // it is no task, or not yet
			id = p.ID()
		}
		if perr := printTo(c.out, "%v\n", id); perr != nil {
			return errors.Join(err, perr)
		}
	}
	return err
}
