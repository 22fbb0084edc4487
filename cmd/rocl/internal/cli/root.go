// SPDX-License-Identifier: Apache-2.0

// Package cli implements the commands of rocl that show the directory and move messages. It also
// has what all commands share: output, errors and exit codes.
package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/resource"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// The exit codes.
const (
	exitFailed      = 1
	exitNoDirectory = 2
	exitPartial     = 3
	exitSilent      = 4
	exitCommand     = 5
	exitUsage       = 64
	exitInterrupted = 130
)

// nothingError is returned when nothing was found: exit code 1. Its text is printed on a terminal
// only, so that scripts get empty output.
type nothingError string

func (e nothingError) Error() string { return string(e) }

// errPartial is returned when some node could not be asked and this has been printed: exit code 3.
var errPartial = errors.New("some nodes could not be asked")

// ErrPartial is what the command of another package returns for that reason.
var ErrPartial = errPartial

// defaultTimeout is how long commands wait for an answer of the directory.
const defaultTimeout = 5 * time.Second

// Globals are the values of the flags that every command has.
type Globals struct {
	JSON    bool
	Socket  string
	Verbose bool
	Timeout time.Duration
}

// Root returns the root command, with the commands of this package.
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
	f.String("socket", "", "`path` of the directory's Unix socket (environment ROCL_SOCKET; default "+directory.DefaultSocket()+")")
	f.BoolP("verbose", "v", false, "log at level debug")
	f.Duration("timeout", defaultTimeout, "how long to wait for an answer of the directory (environment ROCL_TIMEOUT)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkSocket(cmd); err != nil {
			return err
		}
		return checkTimeout(cmd)
	}
	root.SetFlagErrorFunc(usage.FlagError)
	root.AddCommand(registerCommand(), findCommand(), watchCommand(), recvCommand(), sendCommand(), callCommand(), serveCommand(), servicesCommand(), nodesCommand(), routesCommand(), waitsCommand(), searchTraceCommand(), webCommand(), doctorCommand(), debugCommand(), logCommand(), traceCommand())
	root.SetHelpCommand(helpCommand())
	refuseOtherShells(root)
	return root
}

// checkSocket checks the path of the directory's socket, not whether a directory serves there.
func checkSocket(cmd *cobra.Command) error {
	f := cmd.Flags().Lookup("socket")
	what, at := "--socket", f.Value.String()
	if !f.Changed {
		what, at = "environment ROCL_SOCKET", os.Getenv("ROCL_SOCKET")
	} else if at == "" {
		return usage.Errorf("--socket is empty: it names the directory's Unix socket")
	}
	if err := directory.CheckDial(at); err != nil {
		return usage.Errorf("%s: %w", what, err)
	}
	return nil
}

// checkTimeout takes the timeout from the environment if no flag gives it.
func checkTimeout(cmd *cobra.Command) error {
	f := cmd.Flags().Lookup("timeout")
	what := "--timeout " + f.Value.String()
	if v := os.Getenv("ROCL_TIMEOUT"); v != "" && !f.Changed {
		what = "environment ROCL_TIMEOUT=" + v
		if err := f.Value.Set(v); err != nil {
			return usage.Errorf("%s is not a duration, such as 5s or 500ms", what)
		}
	}
	if d, _ := cmd.Flags().GetDuration("timeout"); d <= 0 {
		return usage.Errorf("%s is not more than zero", what)
	}
	return nil
}

// refuseOtherShells makes 'completion' with an unknown shell an error.
func refuseOtherShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		var shells []string
		for _, sub := range c.Commands() {
			shells = append(shells, sub.Name())
		}
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.Errorf("there is no completion for %q: the shells are %s", args[0], strings.Join(shells, ", "))
			}
			return c.Help()
		}
	}
}

// helpCommand returns a help command that, unlike cobra's, fails for an unknown name.
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
				return usage.Errorf("no help for %q: there is no such command", strings.Join(args, " "))
			}
			at.InitDefaultHelpFlag()
			at.InitDefaultVersionFlag()
			return at.Help()
		},
	}
}

// Flags returns the values of the global flags of a command.
func Flags(cmd *cobra.Command) Globals {
	var g Globals
	g.JSON, _ = cmd.Flags().GetBool("json")
	g.Socket, _ = cmd.Flags().GetString("socket")
	g.Verbose, _ = cmd.Flags().GetBool("verbose")
	g.Timeout, _ = cmd.Flags().GetDuration("timeout")
	if g.Socket == "" {
		g.Socket = os.Getenv("ROCL_SOCKET")
	}
	return g
}

// path returns the path at which the commands look for the directory.
func (g Globals) path() string {
	if g.Socket != "" {
		return g.Socket
	}
	return directory.DefaultSocket()
}

// logger returns the logger for the library: it writes to standard error with --verbose, and
// discards otherwise.
func (g Globals) logger() *slog.Logger {
	level := &slog.HandlerOptions{Level: slog.LevelDebug}
	switch {
	case !g.Verbose:
		return slog.New(slog.DiscardHandler)
	case g.JSON:
		return slog.New(slog.NewJSONHandler(display.JSONLines(os.Stderr), level))
	}
	return slog.New(slog.NewTextHandler(display.Text(os.Stderr), level))
}

// Run runs the command line and returns the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(ctx, cmd, args, err)
}

// A problem is an error in the form that --json prints.
type problem struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	Code  int    `json:"code"`
}

// report prints err on standard error and returns the exit code.
func report(ctx context.Context, cmd *cobra.Command, args []string, err error) int {
	p, quiet := explain(ctx, cmd, err)
	asJSON := slices.Contains(args, "--json") // also if the flags could not be read
	if v, err := cmd.Flags().GetBool("json"); err == nil && cmd.Flags().Changed("json") {
		asJSON = v
	}
	w := cmd.ErrOrStderr()
	switch {
	case err == nil, quiet && (asJSON || p.Error == "" || !isTerminal(cmd.OutOrStdout())):
	case asJSON:
		_ = Print(w, p)
	default:
		fmt.Fprintf(w, "rocl: %s\n", p.Error)
		if p.Hint != "" {
			fmt.Fprintln(w, p.Hint)
		}
	}
	return p.Code
}

// explain returns how an error is printed, with its exit code. quiet is true if the error has been
// printed, or is printed on a terminal only.
func explain(ctx context.Context, cmd *cobra.Command, err error) (p problem, quiet bool) {
	var misused usage.Error
	var nothing nothingError
	var silent *silentError
	var incomplete *incompleteError
	var late *lateError
	var unreachable *unreachableError
	var none *rocl.NoConnectionError
	var command *commandError
	var ill *doctorError
	switch {
	case err == nil:
		return p, true
	case errors.As(err, &nothing):
		return problem{Error: text(nothing), Code: exitFailed}, true
	case errors.Is(err, errPartial):
		return problem{Code: exitPartial}, true
	case errors.As(err, &ill):
		return problem{Code: ill.code}, true
	case strings.HasPrefix(err.Error(), "unknown command"):
		return problem{unknown(err), fmt.Sprintf("Try '%s --help'.", cmd.CommandPath()), exitUsage}, false
	case errors.As(err, &misused), strings.Contains(err.Error(), "arg(s)"):
		return problem{text(err), fmt.Sprintf("Try '%s --help'.", cmd.CommandPath()), exitUsage}, false
	case ctx.Err() != nil:
		return problem{Code: exitInterrupted}, true
	case errors.As(err, &silent):
		return problem{text(silent), "Its process may be stopped or overloaded; --timeout or ROCL_TIMEOUT allows more time.", exitSilent}, false
	case errors.As(err, &unreachable), errors.As(err, &none):
		return problem{text(err), "'rocl routes' prints the links that dial. See that the process of the resource runs, and firewalls.", exitSilent}, false
	case errors.As(err, &incomplete):
		return problem{text(incomplete), "'rocl search-trace' shows which node is silent; --timeout or ROCL_TIMEOUT allows more time.", exitPartial}, false
	case errors.As(err, &late):
		return problem{text(late), "--timeout or ROCL_TIMEOUT allows more time.", exitSilent}, false
	case errors.Is(err, rocl.ErrNoReply):
		return problem{text(err), "It receives messages without replying to them; 'rocl send' sends it some.", exitFailed}, false
	case errors.As(err, &command):
		return problem{text(command), "", exitCommand}, false
	case errors.Is(err, directory.ErrOccupied):
		p = problem{text(err), "Remove it if no program needs it, or name another path by --socket or ROCL_SOCKET.", exitFailed}
		if errors.Is(err, rocl.ErrNoDirectory) {
			p.Code = exitNoDirectory
		}
		return p, false
	case errors.Is(err, rocl.ErrNoDirectory):
		return problem{text(err), "Start 'dirserver', or any program that opens a context, such as 'rocl register name=value'.", exitNoDirectory}, false
	case errors.Is(err, web.ErrNoPage):
		return problem{text(err), "Start 'dirserver --http :9464'.", exitNoDirectory}, false
	case errors.Is(err, rocl.ErrNotFound):
		return problem{"no resource matches", "'rocl find' lists the resources.", exitFailed}, false
	case errors.Is(err, rocl.ErrPartial): // "there is none" would be wrong
		return problem{text(err), "", exitPartial}, false
	}
	return problem{text(err), "", exitFailed}, false
}

// note prints a message that is no error on standard error: the text, or with --json the object v.
func note(cmd *cobra.Command, g Globals, v any, format string, args ...any) {
	if g.JSON {
		_ = Print(cmd.ErrOrStderr(), v)
	} else {
		fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
	}
}

// text returns the text of an error without the library's name at the beginning of each part.
func text(err error) string { return usage.Text(err) }

// unknown returns cobra's error about an unknown command, on one line.
func unknown(err error) string {
	what, like, ok := strings.Cut(err.Error(), "Did you mean this?")
	what = display.Escape(strings.TrimSpace(what))
	if ok {
		what += "; did you mean " + strings.Join(strings.Fields(like), " or ") + "?"
	}
	return what
}

// someAttributes returns an error if no attribute is given.
func someAttributes(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage.Errorf("%s needs at least one attribute: %s", cmd.Name(), cmd.UseLine())
	}
	return nil
}

// of returns the function of a command whose arguments are attributes, which read reads.
func of(read func([]string) (*rocl.List, error), f func(*cobra.Command, Globals, *rocl.List) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		l, err := read(args)
		if err != nil {
			return err
		}
		return f(cmd, Flags(cmd), l)
	}
}

// attributes reads arguments of the form k=v. It keeps their order, and names may repeat.
func attributes(args []string) (*rocl.List, error) {
	l := new(rocl.List)
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			return nil, usage.Errorf("%s is not name=value", usage.Quote(a))
		}
		if err := l.AddString(k, v); err != nil {
			return nil, usage.Errorf("%s: %w", usage.Quote(a), err)
		}
	}
	return l, nil
}

// patternHelp is the part of a help text about arguments that pattern reads.
const patternHelp = "A PATTERN is name=value, name=one|two, or name<3 (also <=, >, >=, ==, !=); a value with spaces is in double quotes: 'name=\"a b\"'.\n"

// pattern reads arguments that are conditions of a pattern, in the form of [rocl.Parse].
func pattern(args []string) (*rocl.List, error) {
	for _, a := range args {
		if strings.TrimSpace(a) == "" { // an unset variable of a script would match everything
			return nil, usage.Errorf("%s is no condition such as name=value or name<3", usage.Quote(a))
		}
	}
	l, err := resource.Parse(strings.Join(args, " "))
	if err != nil {
		return nil, usage.Errorf("%w", err)
	}
	return l, nil
}

// ownAttributes reads arguments of the form k=v for a resource of this command.
func ownAttributes(args []string) (*rocl.List, error) {
	l, err := attributes(args)
	if err != nil {
		return nil, err
	}
	for name := range l.All() {
		if strings.HasPrefix(name, resource.SystemPrefix) {
			return nil, usage.Errorf("%s: %w", usage.Quote(name), resource.ErrReservedName)
		}
	}
	return l, nil
}

// Print writes v as one line of JSON. Characters that would control a terminal are written as \u
// escapes.
func Print(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(display.JSON(b), '\n'))
	}
	return err
}

// printTable prints a row of a table for each line, under the names of the columns, or with --json
// each line as a line of JSON. Without lines it prints nothing. printRow writes a row, or returns a
// text in its place, such as an error: that is printed below the table, whose columns stay narrow.
func printTable[T any](w io.Writer, g Globals, columns string, lines []T, printRow func(w io.Writer, line *T) (below string)) error {
	if g.JSON {
		for i := range lines {
			if err := Print(w, &lines[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(lines) == 0 {
		return nil
	}
	var rows bytes.Buffer
	below := ""
	for i := range lines {
		if text := printRow(&rows, &lines[i]); text != "" {
			below += text + "\n"
		}
	}
	if rows.Len() > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "%s\n%s", columns, &rows)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, below)
	return err
}

// jsonBytes returns text as a string, and bytes that are not UTF-8 as {"base64": "…"}.
func jsonBytes(b []byte) any {
	if utf8.Valid(b) {
		return string(b)
	}
	return map[string]string{"base64": base64.StdEncoding.EncodeToString(b)}
}

// jsonAttrs returns attributes as an object. A name that repeats has an array of its values.
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

// isTerminal reports whether w is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
