// SPDX-License-Identifier: Apache-2.0

// Command tpvm runs programs as tasks of a parallel virtual machine, and shows and ends them.
//
// The exit code of run is that of the programs. The exit codes of the other commands are: 0 done, 1
// failed, 2 no directory serves the node, 64 wrong usage, 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/internal/manual"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/tpvm"
)

// Exit codes.
const (
	exitFailed      = 1
	exitNoDirectory = 2
	exitUsage       = 64
	exitInterrupted = 130
)

func main() {
	ctx, stop := interrupt.Context(context.Background())
	code := execute(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// exitError is the exit code of a command that has printed its errors itself.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string) int {
	root := rootCommand()
	manual.Add(root, args)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var code exitError
	var misused usage.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &misused), strings.HasPrefix(err.Error(), "unknown command"):
		text, _, _ := strings.Cut(usage.Text(err), "\n")
		fmt.Fprintf(cmd.ErrOrStderr(), "tpvm: %s\nTry '%s --help'.\n", text, cmd.CommandPath())
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	complain(cmd.ErrOrStderr(), "", err)
	if errors.Is(err, rocl.ErrNoDirectory) {
		return exitNoDirectory
	}
	return exitFailed
}

// text returns the text of an error, safe to print, without the names of the libraries in front of
// its parts.
func text(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(usage.Text(err), ": tpvm: ", ": "), "tpvm: ")
}

// isNoMachine reports whether an error says that no process serves the directory of this node, so
// that no task runs on it.
func isNoMachine(err error) bool {
	return errors.Is(err, rocl.ErrNoDirectory) && (errors.Is(err, fs.ErrNotExist) || sockerr.Is(err, syscall.ECONNREFUSED))
}

// hintOf returns the advice for an error, or "".
func hintOf(err error) string {
	var late noAnswer
	switch {
	case errors.As(err, &late):
		return "'rocl search-trace kind=node' shows which node does not answer."
	case isNoMachine(err):
		return "Nothing runs on this node. Start something by 'tpvm run PROGRAM', or a directory that stays by 'dirserver', or name another\n" +
			"directory by --socket."
	case errors.Is(err, tpvm.ErrNoHost):
		return "'tpvm hosts' lists the hosts; 'tpvm add HOST' adds one."
	case errors.Is(err, tpvm.ErrNoProgram):
		return "Give the program's path, as it is on the host that it shall run on, or put it into PATH there."
	case errors.Is(err, tpvm.ErrTooMany):
		return "Start fewer, or start tasks on more hosts."
	case errors.Is(err, tpvm.ErrNoTask):
		return "'tpvm ps' lists the tasks."
	}
	return ""
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "tpvm",
		Short: "Run programs as tasks of a parallel virtual machine",
		Long: "tpvm runs programs as tasks that start each other and exchange messages, on one host or many.\n" +
			"'tpvm run -n 4 hostname' runs a program four times; 'tpvm ps' shows what runs.\n" +
			"No daemon is needed: where no dirserver runs, the first program serves the node's directory.",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("tpvm {{.Version}}\n")
	f := root.PersistentFlags()
	f.String("socket", "", "`path` of the directory's Unix socket (environment ROCL_SOCKET)")
	f.String("vm", "", "`name` of the virtual machine (environment "+tpvm.EnvVM+"; default the user's name)")
	f.BoolP("verbose", "v", false, "log at level debug")
	f.Duration("timeout", 5*time.Second, "how long to wait for an answer of the directory and of tasks")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if d, _ := cmd.Flags().GetDuration("timeout"); d <= 0 {
			return usage.Errorf("--timeout %v is not more than zero", d)
		}
		for flag, env := range map[string]string{"socket": "ROCL_SOCKET", "vm": tpvm.EnvVM} {
			if v, _ := cmd.Flags().GetString(flag); v != "" { // also for the programs that are started
				if err := os.Setenv(env, v); err != nil {
					return usage.Errorf("--%s: %w", flag, err)
				}
			}
		}
		return nil
	}
	root.SetFlagErrorFunc(usage.FlagError)
	root.AddCommand(runCommand(), psCommand(), killCommand(), sigCommand(), hostsCommand(), consoleCommand(), podCommand(), addCommand(), deleteCommand())
	return root
}

// atLeast returns a check that a command has at least n arguments. what describes them for the
// error.
func atLeast(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usage.Errorf("%s needs %s: %s", cmd.Name(), what, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return nil
	}
}

// timeoutContext returns a context that ends after --timeout, or after least if that is longer.
func timeoutContext(cmd *cobra.Command, least time.Duration) (context.Context, context.CancelFunc) {
	d, _ := cmd.Flags().GetDuration("timeout")
	d = max(d, least)
	return context.WithTimeoutCause(cmd.Context(), d, noAnswer(d))
}

// noAnswer is the cause of a context of timeoutContext that has ended.
type noAnswer time.Duration

func (d noAnswer) Error() string {
	return fmt.Sprintf("no answer within %v; --timeout allows more time", time.Duration(d))
}

// joinOnly makes a command fail if no directory serves the node, instead of serving it.
func joinOnly() tpvm.Option { return tpvm.WithRocl(rocl.JoinOnly()) }

// enrol makes the process of the command a task.
func enrol(cmd *cobra.Command, opts ...tpvm.Option) (*tpvm.Task, error) {
	log := slog.New(slog.DiscardHandler)
	if v, _ := cmd.Flags().GetBool("verbose"); v {
		log = slog.New(slog.NewTextHandler(display.Text(os.Stderr), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := timeoutContext(cmd, 0)
	defer cancel()
	return tpvm.Enrol(ctx, append(opts, tpvm.WithLogger(log), tpvm.WithRocl(rocl.WithLogger(log), rocl.WithLinger(time.Second)))...)
}

// observe calls f with a task that is not listed. The context of f is one of timeoutContext.
func observe(cmd *cobra.Command, least time.Duration, f func(context.Context, *tpvm.Task) error, opts ...tpvm.Option) error {
	t, err := enrol(cmd, append(opts, tpvm.Observing())...)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := timeoutContext(cmd, 0)
		defer cancel()
		_ = t.Exit(ctx)
	}()
	ctx, cancel := timeoutContext(cmd, least)
	defer cancel()
	return f(ctx, t)
}

// complain prints an error, and the advice for it.
func complain(w io.Writer, where string, err error) {
	fmt.Fprintf(w, "tpvm: %s%s\n", where, text(err))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintln(w, hint)
	}
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printTo prints on a command's output, and returns the error of writing.
func printTo(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(w, format, args...)
	return err
}
