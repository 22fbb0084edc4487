// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/programs"
	"github.com/rocl-go/rocl/rpc"
	"github.com/spf13/cobra"
)

const (
	// failedMark begins the reply of 'rocl serve' if the command has failed. Then follow the status
	// as a decimal number, a newline, and the end of the command's standard error.
	failedMark = "\x00rocl serve: failed\x00"
	// saidMost limits how many of the last bytes of the command's standard error such a reply has.
	saidMost = 4 << 10
	// endMost limits how long a command may take to end after it was interrupted.
	endMost = 5 * time.Second
)

// A commandError is returned when the command of a 'rocl serve' has failed: exit code 5.
type commandError struct {
	server  rocl.GID
	status  int    // exit status; -1 if the command did not exit
	message string // the end of its standard error, or why it did not run
}

func (e *commandError) Error() string {
	what := fmt.Sprintf("the command at %v failed with exit status %d", e.server, e.status)
	if e.status < 0 {
		what = fmt.Sprintf("the command at %v failed", e.server)
	}
	if e.message == "" {
		return what
	}
	return what + ": " + e.message
}

// failure returns the reply for a command that has failed.
func failure(status int, message string) []byte {
	return fmt.Appendf(nil, "%s%d\n%s", failedMark, status, message)
}

// failed returns a commandError if the reply says that the server's command has failed.
func failed(server rocl.GID, reply []byte) error {
	rest, ok := bytes.CutPrefix(reply, []byte(failedMark))
	if !ok {
		return nil
	}
	status, message, _ := strings.Cut(string(rest), "\n")
	n, err := strconv.Atoi(status)
	if err != nil {
		n = -1
	}
	return &commandError{server, n, strings.TrimSpace(message)}
}

func callCommand() *cobra.Command {
	var tag uint64
	var raw bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "call [CALL] PATTERN...",
		Short: "Call a server of package rpc, or send standard input to a resource as one request, and print the reply",
		Long: "With a CALL: call what a server of package rpc that has these attributes offers under this name. Standard input\n" +
			"is the arguments in JSON; nothing is the zero value. The result is printed in JSON, and those of a stream\n" +
			"one a line, as they come. 'rocl services' lists the calls.\n" +
			"Characters of the result that a terminal would not just show are printed as \\u escapes, unless --raw is given.\n\n" +
			"Without: send standard input to one resource that has these attributes, as one request, and print the reply.\n" +
			"The reply is printed with escapes where a terminal would do anything else than show it, or with --raw just as it is.\n" +
			"--timeout bounds how long it takes to find the resource, and how long the reply takes. With --wait the command\n" +
			"waits longer for the resource to appear, and for a directory.\n" +
			"Exit code 1 if no resource matches, or it went before it replied, 2 if no directory serves the node,\n" +
			"4 if the directory or the resource does not answer within --timeout, 5 if the resource is a 'rocl serve' whose command failed.",
		Args: func(cmd *cobra.Command, args []string) error { return someAttributes(cmd, withoutCall(args)) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return callNames(cmd.Context(), Flags(cmd), begun), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			patterns := withoutCall(args)
			isNamed := len(patterns) < len(args)
			if isNamed {
				if tag != 0 {
					return usage.Errorf("--tag is for requests without a CALL")
				}
				patterns = append(slices.Clone(patterns), rpcServer)
			}
			l, err := pattern(patterns)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			c, me, to, err := target(ctx, g, l, wait)
			if err != nil {
				return err // before the user types a request in vain
			}
			defer c.Close()
			request, err := readAll(ctx, cmd.InOrStdin())
			if err != nil {
				return err
			}
			rctx, cancel := context.WithTimeoutCause(ctx, g.Timeout, &lateError{to, g.Timeout})
			defer cancel()
			if isNamed {
				out := cmd.OutOrStdout()
				if !raw {
					out = display.JSONLines(out)
				}
				return callNamed(rctx, out, c, to, args[0], request)
			}
			m, err := me.CallBytes(rctx, to, tag, request)
			if err != nil {
				return orLate(rctx, err)
			}
			defer m.Release()
			if err := failed(to, m.Bytes()); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if g.JSON {
				return Print(out, messageJSON{to, tag, jsonBytes(m.Bytes())})
			}
			if !raw {
				out = display.Text(out)
			}
			_, err = out.Write(m.Bytes())
			if b := m.Bytes(); err == nil && !raw && len(b) > 0 && b[len(b)-1] != '\n' {
				_, err = io.WriteString(out, "\n")
			}
			return err
		},
	}
	cmd.Flags().Uint64Var(&tag, "tag", 0, "tag of the request")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the reply as it is")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for such a resource, and for a directory, to appear")
	return cmd
}

// completionTime is how long the directory and servers are waited for when a shell asks for
// completions.
const completionTime = time.Second

// callNames returns the names of calls that begin with begun, of all servers of package rpc that
// answer, with their types.
func callNames(ctx context.Context, g Globals, begun string) (names []cobra.Completion) {
	g.Timeout = min(g.Timeout, completionTime)
	_ = g.ask(ctx, func(p *timeoutContext, c *rocl.Context) error { // a shell is told no error
		client, err := rpc.NewClient(p, c)
		if err != nil {
			return err
		}
		defer client.Close()
		for a, err := range rpc.CallAll[struct{}, []rpc.MethodTypes](p, client, nil, "rpc.types", struct{}{}) {
			if err != nil {
				continue
			}
			for _, m := range a.Value {
				if strings.HasPrefix(m.Name, begun) && display.Quote(m.Name) == m.Name {
					names = append(names, cobra.CompletionWithDesc(m.Name, display.Quote(m.String())))
				}
			}
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// rpcServer is the attribute of servers of package rpc.
const rpcServer = "rpc=1"

// withoutCall returns the arguments after the name of a call.
func withoutCall(args []string) []string {
	if len(args) > 0 && !strings.ContainsAny(args[0], "=<>") {
		return args[1:]
	}
	return args
}

// callNamed calls a server of package rpc, and prints the result, or each result of a stream when
// it arrives.
func callNamed(ctx context.Context, w io.Writer, c *rocl.Context, to rocl.GID, name string, args []byte) error {
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		return err
	}
	defer client.Close()
	out, err := rpc.CallJSON(ctx, client, to, name, args)
	if !errors.Is(err, rpc.ErrStream) {
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", out)
		}
		return orLate(ctx, err)
	}
	for out, err := range rpc.StreamJSON(ctx, client, to, name, args) {
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", out)
		}
		if err != nil {
			return orLate(ctx, err)
		}
	}
	return nil
}

// A lateError is returned when no reply arrives within --timeout: exit code 4.
type lateError struct {
	to    rocl.GID
	after time.Duration
}

func (e *lateError) Error() string { return fmt.Sprintf("%v did not reply within %v", e.to, e.after) }

// An unreachableError is returned when there is no connection to a resource within --timeout: exit
// code 4.
type unreachableError struct {
	to     rocl.GID
	after  time.Duration
	reason error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("%v is unreachable: no connection within %v: %v", e.to, e.after, e.reason)
}

// Unwrap returns the reason.
func (e *unreachableError) Unwrap() error { return e.reason }

// orLate returns the error of a call. If the lateError has ended the call's context, orLate returns
// that, or an unreachableError if there was no connection.
func orLate(ctx context.Context, err error) error {
	late, none := (*lateError)(nil), (*rocl.NoConnectionError)(nil)
	if err == nil || !errors.As(context.Cause(ctx), &late) {
		return err
	}
	if errors.As(err, &none) {
		return &unreachableError{late.to, late.after, none.Reason}
	}
	return late
}

// readAll reads the input until ctx ends, and no more bytes than a message may have.
func readAll(ctx context.Context, in io.Reader) ([]byte, error) {
	return interrupt.Read(ctx, func() ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(in, rocl.MaxMessage+1))
		if err != nil {
			err = inputError(err)
		}
		return b, err
	})
}

func serveCommand() *cobra.Command {
	var workers int
	cmd := &cobra.Command{
		Use:   "serve name=value... -- COMMAND [ARG...]",
		Short: "Register a resource that answers each request with what a command prints",
		Long: "Register a resource, and run a command for each message sent to it, with the message as its standard input.\n" +
			"What the command prints is the reply to a request ('rocl call', or Resource.Call of a program); what it prints\n" +
			"of any other message goes to standard output. Its environment has ROCL_FROM, the sender, and ROCL_TAG.\n" +
			"If it fails, the caller is told the exit status and the end of its standard error, and this command goes on.\n" +
			"A process that the command leaves behind must not hold its output: after 5 s that is a failure.\n" +
			"It runs until it is interrupted, and then interrupts the commands that run, with all that they have started.\n" +
			"--timeout bounds how long it takes to register. Exit code 4 if the directory does not answer within it.",
		Args: func(cmd *cobra.Command, args []string) error {
			n := cmd.ArgsLenAtDash()
			if n < 0 {
				return usage.Errorf("serve needs a command after --: %s", cmd.UseLine())
			}
			if len(args) == n {
				return usage.Errorf("serve needs a command after --, and there is none: %s", cmd.UseLine())
			}
			return someAttributes(cmd, args[:n])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			n := cmd.ArgsLenAtDash()
			l, err := ownAttributes(args[:n])
			if err != nil {
				return err
			}
			if workers < 1 {
				return usage.Errorf("--workers %d is less than 1", workers)
			}
			path, err := exec.LookPath(args[n])
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			c, r, err := g.register(ctx, l)
			if err != nil {
				return err
			}
			defer c.Close()
			note(cmd, g, map[string]any{"serving": r.ID()}, "serving as %v", r.ID())
			s := &server{
				r: r, path: path, args: args[n:], errOut: &lockedWriter{w: cmd.ErrOrStderr()},
				out: &lockedWriter{w: cmd.OutOrStdout()}, timeout: g.Timeout,
			}
			defer programs.ReapOrphans()()
			if s.guard, err = programs.NewGuard(); err != nil {
				g.logger().Info("the processes that commands have started go on if this process is killed", "err", err)
			} else {
				defer s.guard.Close()
			}
			err = r.Handle(ctx, func(m *rocl.Message) {
				if err := s.handle(ctx, m); err != nil {
					g.logger().Info("replying", "to", m.From(), "err", err)
				}
			}, rocl.Workers(workers))
			if err != nil {
				return err
			}
			return c.Close()
		},
	}
	cmd.Flags().IntVar(&workers, "workers", runtime.NumCPU(), "how many commands run at the same time; further messages wait")
	return cmd
}

// run runs a command, and ends it with all that it has started when ctx ends.
func (s *server) run(ctx context.Context, c *exec.Cmd) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p, err := programs.Start(c)
	if err != nil {
		return err
	}
	if s.guard != nil {
		s.guard.Add(p)
	}
	defer context.AfterFunc(ctx, p.End)()
	return p.Wait()
}

// A server replies to messages with the output of a command.
type server struct {
	r           *rocl.Resource
	path        string
	args        []string        // the command's name and its arguments
	out, errOut io.Writer       // of this process
	timeout     time.Duration   // of a reply
	guard       *programs.Guard // nil: it could not be started
}

// handle runs the command for m, and replies.
func (s *server) handle(ctx context.Context, m *rocl.Message) error {
	var out limitedBuffer
	var said tail
	c := exec.Command(s.path)
	c.Args = s.args
	c.Env = append(os.Environ(), "ROCL_FROM="+m.From().String(), fmt.Sprintf("ROCL_TAG=%d", m.Tag()))
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(m.Bytes()), &out, io.MultiWriter(s.errOut, &said)
	// If this process is killed, the kernel ends the command when the thread that started it ends,
	// so that thread must not end earlier. The guard ends the processes that the command has
	// started.
	c.SysProcAttr = endsWithThread()
	c.WaitDelay = endMost
	runtime.LockOSThread()
	err := s.run(ctx, c)
	runtime.UnlockOSThread()
	reply := out.b.Bytes()
	var exit *exec.ExitError
	switch {
	case out.isFull:
		reply = failure(-1, fmt.Sprintf("it printed more than %d bytes", rocl.MaxMessage))
	case ctx.Err() != nil && err != nil:
		reply = failure(-1, "it was interrupted")
	case errors.As(err, &exit):
		reply = failure(exit.ExitCode(), string(said.b))
	case errors.Is(err, exec.ErrWaitDelay):
		reply = failure(-1, fmt.Sprintf("its output was still open %v after it had ended, in a process that it has started", endMost))
	case err != nil:
		reply = failure(-1, err.Error())
	}
	if !m.IsCall() {
		if err != nil {
			return err
		}
		_, err = s.out.Write(reply)
		return err
	}
	// The caller gets a reply even if this command is being interrupted.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	return s.r.ReplyBytes(rctx, m, reply)
}

// A limitedBuffer takes as many bytes as a message may have.
type limitedBuffer struct {
	b      bytes.Buffer
	isFull bool
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if l.b.Len()+len(p) > rocl.MaxMessage {
		l.isFull = true
		return 0, rocl.ErrTooLarge
	}
	return l.b.Write(p)
}

// A tail keeps the last saidMost bytes that were written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b); n > saidMost {
		t.b = append(t.b[:0], t.b[n-saidMost:]...)
	}
	return len(p), nil
}

// A lockedWriter passes Writes on one at a time.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
