// Package cli has the commands of rocl that show the directory and move
// messages, and what all commands share: output, errors and exit codes.
package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Exit codes.
const (
	exitFailed      = 1
	exitNoDirectory = 2
	exitPartial     = 3
	exitUsage       = 64
	exitInterrupted = 130
)

// UsageError marks errors of whoever typed the command.
type UsageError struct{ Err error }

func (u *UsageError) Error() string { return u.Err.Error() }
func (u *UsageError) Unwrap() error { return u.Err }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// errNothing says that nothing was found: exit code 1, and nothing to print.
var errNothing = errors.New("nothing found")

// errPartial says that some node could not be asked: exit code 3, and it has
// been printed.
var errPartial = errors.New("some nodes could not be asked")

// Globals are the flags every command has.
type Globals struct {
	JSON    bool
	Socket  string
	Verbose bool
}

// Root makes the command that the others belong to.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "rocl",
		Short: "Programs find each other by attributes and exchange messages",
		Long: "rocl shows what the library does: start with 'rocl demo'.\n" +
			"Two shells can talk: 'rocl recv name=there' in one, 'rocl send name=there' in the other.\n" +
			"Completion for your shell: 'rocl completion --help'.",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("rocl {{.Version}}\n")
	f := root.PersistentFlags()
	f.Bool("json", false, "print one JSON object a line")
	f.String("socket", os.Getenv("ROCL_SOCKET"), "Unix socket of the node's directory (environment ROCL_SOCKET, default "+directory.DefaultSocket()+")")
	f.BoolP("verbose", "v", false, "log what the library does")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err} })
	root.AddCommand(registerCommand(), findCommand(), watchCommand(), recvCommand(), sendCommand(), nodesCommand(), routesCommand(), searchTraceCommand())
	root.SetHelpCommand(helpCommand())
	return root
}

// helpCommand is cobra's, to which a name that there is not is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if at, _, err := c.Root().Find(args); err == nil && at != nil {
				for _, sub := range at.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), begun) {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			at, left, err := c.Root().Find(args)
			if err != nil || at == nil || len(left) > 0 {
				return Usagef("no help for %q: there is no such command", strings.Join(args, " "))
			}
			at.InitDefaultHelpFlag()
			at.InitDefaultVersionFlag()
			return at.Help()
		},
	}
}

// Flags reads the global flags of a command.
func Flags(cmd *cobra.Command) Globals {
	var g Globals
	g.JSON, _ = cmd.Flags().GetBool("json")
	g.Socket, _ = cmd.Flags().GetString("socket")
	g.Verbose, _ = cmd.Flags().GetBool("verbose")
	return g
}

// Logger is where the library logs to: nowhere unless --verbose is given.
func (g Globals) Logger() *slog.Logger {
	if !g.Verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(display.Text(os.Stderr), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Options are the options of rocl.Open that the flags ask for.
func (g Globals) Options() []rocl.Option {
	return []rocl.Option{rocl.WithSocket(g.Socket), rocl.WithLogger(g.Logger())}
}

// Run runs the command line and returns the exit code.
func Run(ctx context.Context, root *cobra.Command) int {
	cmd, err := root.ExecuteContextC(ctx)
	return report(ctx, os.Stderr, cmd, err)
}

func report(ctx context.Context, w io.Writer, cmd *cobra.Command, err error) int {
	var u *UsageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNothing):
		return exitFailed
	case errors.Is(err, errPartial):
		return exitPartial
	case errors.As(err, &u), strings.HasPrefix(err.Error(), "unknown command"), strings.Contains(err.Error(), "arg(s)"):
		fmt.Fprintf(w, "rocl: %s\nTry '%s --help'.\n", display.Error(err), cmd.CommandPath())
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, rocl.ErrNoDirectory):
		fmt.Fprintf(w, "rocl: %s\nNothing serves this node's directory: start 'dirserver', or any program that opens a context, such as 'rocl register name=value'.\n", text(err))
		return exitNoDirectory
	case errors.Is(err, rocl.ErrNotFound):
		fmt.Fprintf(w, "rocl: no resource matches; 'rocl find' lists those there are.\n")
		return exitFailed
	}
	fmt.Fprintf(w, "rocl: %s\n", text(err))
	if errors.Is(err, rocl.ErrPartial) { // "there is none" would be wrong
		return exitPartial
	}
	return exitFailed
}

// text is an error that may say already that it is rocl's.
func text(err error) string { return strings.TrimPrefix(display.Error(err), "rocl: ") }

// attributes reads k=v arguments; order is kept and names may repeat.
func attributes(args []string) (*rocl.List, error) {
	l := new(rocl.List)
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			return nil, Usagef("%q is not name=value", a)
		}
		if err := l.AddString(k, v); err != nil {
			return nil, &UsageError{fmt.Errorf("%q: %w", a, err)}
		}
	}
	return l, nil
}

// Print writes one JSON object as a line, with \u escapes in place of what a
// terminal would not just show.
func Print(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(display.JSON(b), '\n'))
	}
	return err
}

// jsonBytes is text as a string, and what is not UTF-8 as {"base64": "…"}.
func jsonBytes(b []byte) any {
	if utf8.Valid(b) {
		return string(b)
	}
	return map[string]string{"base64": base64.StdEncoding.EncodeToString(b)}
}

// jsonAttrs is an object; a name that repeats has an array of its values.
func jsonAttrs(l *rocl.List) map[string]any {
	m := map[string]any{}
	for name, v := range l.All() {
		switch old := m[name].(type) {
		case nil:
			m[name] = jsonBytes(v)
		case []any:
			m[name] = append(old, jsonBytes(v))
		default:
			m[name] = []any{old, jsonBytes(v)}
		}
	}
	for name := range l.Wanted() {
		if _, ok := m[name]; !ok {
			m[name] = nil
		}
	}
	return m
}

// Terminal says whether w is one.
func Terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
