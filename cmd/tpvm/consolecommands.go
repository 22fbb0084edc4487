// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/tpvm"
)

// command is a command of the console.
type command struct {
	name, args  string
	least, most int // arguments
	what        string
	more        string                                                     // the rest of the help for this command
	f           func(c *console, ctx context.Context, args []string) error // ctx allows for requests that are answered at once
}

const many = math.MaxInt // any number of arguments

// consoleCommands are the commands, in the order of help.
var consoleCommands []command

func init() { // not in the declaration: help refers to the table
	consoleCommands = []command{
		{"add", "HOST...", 1, many, "add hosts on which tasks can start programs", "ssh reaches them; for its options: setenv TPVM_SSH 'ssh -F FILE'", (*console).add},
		{"alias", "[NAME [COMMAND [argument...]]]", 0, many, "list the aliases, print one, or define one", "", (*console).alias},
		{"conf", "", 0, 0, "list the hosts of the virtual machine", "", (*console).conf},
		{"delete", "HOST...", 1, many, "end the pods of hosts, and what these have started", "", (*console).delete},
		{"echo", "[word...]", 0, many, "print words", "", (*console).echo},
		{"export", "[NAME...]", 0, many, "list or name variables that are passed to what is spawned", "Programs on this host have all variables of the console; those on other hosts have the exported ones.", (*console).export},
		{"halt", "", 0, 0, "end all tasks, the pods of added hosts, and the console", "", (*console).halt},
		{"help", "[COMMAND]", 0, 1, "list the commands, or describe one", "", (*console).help},
		{"id", "", 0, 0, "print the console's identifier", "", (*console).id},
		{"jobs", "[-l]", 0, 1, "list what the console has spawned and still runs", "-l: a line for each program, too", (*console).listJobs},
		{"kill", "ID...", 1, many, "end tasks, threads and programs", aboutConsoleIDs, (*console).kill},
		{"mstat", "HOST...", 1, many, "print whether hosts are in the virtual machine", "", (*console).mstat},
		{"ps", "[-a]", 0, 1, "list the tasks", "-a: a line for each thread", (*console).ps},
		{"pstat", "ID...", 1, many, "print whether tasks run", aboutConsoleIDs, (*console).pstat},
		{"quit", "", 0, 0, "end the console; what it has spawned goes on", "", (*console).doQuit},
		{"reset", "", 0, 0, "end all tasks but the console; the hosts stay", "", (*console).reset},
		{"setenv", "[NAME [VALUE]]", 0, many, "print or set variables of the console", "See export.", (*console).setenv},
		{"sig", "SIGNAL ID...", 2, many, "send a signal to tasks and programs", aboutConsoleIDs, (*console).sig},
		{"spawn", "[option...] PROGRAM [argument...]", 1, many, "start a program", aboutSpawn, (*console).spawn},
		{"unalias", "NAME...", 1, many, "remove aliases", "", (*console).unalias},
		{"unexport", "NAME...", 1, many, "stop passing variables to what is spawned", "", (*console).unexport},
		{"version", "", 0, 0, "print the version", "", (*console).version},
	}
}

const aboutConsoleIDs = "Give the identifier as 'ps' prints it (1000005-11), or with the node or the first digits of the node in front\n" +
	"(2e49-1000005-11)."

func (k command) usage() string { return strings.TrimSpace(k.name + " " + k.args) }

// pvmAliases returns the aliases with which PVM's console begins.
func pvmAliases() map[string][]string {
	return map[string][]string{"?": {"help"}, "h": {"help"}, "j": {"jobs"}, "t": {"ps"}, "v": {"version"}}
}

func (c *console) help(_ context.Context, args []string) error {
	if len(args) > 0 {
		k, err := findCommand(c.expand(args)[0])
		if err != nil {
			return err
		}
		return printTo(c.out, "%s\n", strings.TrimSpace(k.usage()+"\n"+k.what+"\n"+k.more))
	}
	for _, k := range consoleCommands {
		if err := printTo(c.out, "%-9s %s\n", k.name, k.what); err != nil {
			return err
		}
	}
	return printTo(c.out, "'help COMMAND' describes one. PVM's trace is missing: there is no tracing.\n")
}

func (c *console) add(_ context.Context, args []string) error {
	ctx, cancel := timeoutContext(c.cmd, hostTime)
	defer cancel()
	return addHosts(ctx, c.out, c.t, args)
}

func (c *console) delete(_ context.Context, args []string) error {
	ctx, cancel := timeoutContext(c.cmd, hostTime)
	defer cancel()
	return c.t.DelHosts(ctx, args...)
}

func (c *console) conf(ctx context.Context, _ []string) error {
	hs, err := c.t.Hosts(ctx)
	if err != nil && len(hs) == 0 {
		return err
	}
	return errors.Join(printHosts(c.out, hs, false), err)
}

func (c *console) mstat(ctx context.Context, args []string) error {
	hs, err := c.t.Hosts(ctx)
	if err != nil {
		return err
	}
	return c.printStates("HOST", args, func(name string) string {
		if findHost(hs, name) >= 0 {
			return "ok"
		}
		return "no host of the virtual machine"
	})
}

func (c *console) pstat(ctx context.Context, args []string) error {
	all, err := list(ctx, c.t)
	if err != nil {
		return err
	}
	return c.printStates("ID", args, func(what string) string {
		if _, err := resolve(all, what); errors.Is(err, tpvm.ErrNoTask) {
			return "does not run"
		} else if err != nil {
			return text(err)
		}
		return "runs"
	})
}

// printStates prints a table of names and the result of f for each.
func (c *console) printStates(title string, names []string, f func(name string) string) error {
	var b bytes.Buffer // so that output of jobs does not come between
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s\tSTATUS\n", title)
	for _, n := range names {
		fmt.Fprintf(tw, "%s\t%s\n", display.Quote(n), f(n))
	}
	return errors.Join(tw.Flush(), printTo(c.out, "%s", &b))
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

// flag reports whether the arguments are the one option of a command. It fails for other arguments.
func flag(args []string, name string) (bool, error) {
	switch {
	case len(args) == 0:
		return false, nil
	case args[0] == name:
		return true, nil
	}
	return false, fmt.Errorf("there is no option %s", display.Quote(args[0]))
}

func (c *console) ps(ctx context.Context, args []string) error {
	withThreads, err := flag(args, "-a")
	if err != nil {
		return err
	}
	all, err := list(ctx, c.t)
	if err != nil {
		return err
	}
	return printTree(c.out, all, withThreads)
}

func (c *console) kill(ctx context.Context, args []string) error {
	return signalEach(ctx, c.t, syscall.SIGTERM, args)
}

func (c *console) sig(ctx context.Context, args []string) error {
	s, err := parseSignal(args[0])
	if err != nil {
		return err
	}
	return signalEach(ctx, c.t, s, args[1:])
}

// reset ends all tasks but the console, and the programs that have not enrolled.
func (c *console) reset(ctx context.Context, _ []string) error {
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

// halt ends all tasks, the pods that AddHosts has started, and the console.
func (c *console) halt(ctx context.Context, args []string) error {
	c.quit = true
	err := c.reset(ctx, args)
	ctx, cancel := timeoutContext(c.cmd, hostTime)
	defer cancel()
	hs, hostsErr := c.t.Hosts(ctx)
	if hostsErr != nil {
		return errors.Join(err, hostsErr)
	}
	for _, h := range hs {
		if h.Launcher != tpvm.LauncherPod || h.Added == "" { // an operator has started the pod, or there is none
			continue
		}
		if gone := c.t.DelHosts(ctx, h.Added); !errors.Is(gone, tpvm.ErrNoPod) || errors.Is(gone, rocl.ErrPartial) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

func (c *console) setenv(_ context.Context, args []string) error {
	switch len(args) {
	case 0:
		return c.printLines(slices.Sorted(slices.Values(os.Environ())))
	case 1:
		return printTo(c.out, "%s\n", os.Getenv(args[0]))
	}
	return os.Setenv(args[0], strings.Join(args[1:], " "))
}

func (c *console) export(_ context.Context, args []string) error {
	if len(args) == 0 {
		return c.printLines(c.exports)
	}
	for _, name := range args {
		if !slices.Contains(c.exports, name) {
			c.exports = append(c.exports, name)
		}
	}
	return nil
}

func (c *console) unexport(_ context.Context, args []string) error {
	c.exports = slices.DeleteFunc(c.exports, func(name string) bool { return slices.Contains(args, name) })
	return nil
}

func (c *console) alias(_ context.Context, args []string) error {
	if len(args) > 1 {
		c.aliases[args[0]] = args[1:]
		return nil
	}
	names := args
	if len(args) == 0 {
		names = slices.Sorted(maps.Keys(c.aliases))
	}
	for _, name := range names {
		a, ok := c.aliases[name]
		if !ok {
			return fmt.Errorf("there is no alias %s", display.Quote(name))
		}
		if err := printTo(c.out, "%s\t%s\n", name, strings.Join(a, " ")); err != nil {
			return err
		}
	}
	return nil
}

func (c *console) unalias(_ context.Context, args []string) error {
	for _, name := range args {
		if _, ok := c.aliases[name]; !ok {
			return fmt.Errorf("there is no alias %s", display.Quote(name))
		}
		delete(c.aliases, name)
	}
	return nil
}

func (c *console) printLines(lines []string) error {
	for _, l := range lines {
		if err := printTo(c.out, "%s\n", display.Quote(l)); err != nil {
			return err
		}
	}
	return nil
}
