// SPDX-License-Identifier: Apache-2.0

// Package subprocess starts the child processes of benchmarks, the demonstration and tests. A child
// does not outlive the process that has started it. It reads tasks as lines from its standard
// input, and answers with lines on its standard output.
package subprocess

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/posix"
)

const (
	endsWithin   = 5 * time.Second // between the end of a child's input and the signal that kills it
	closesWithin = 5 * time.Second // between the end of a child and that of its output, which its own children may hold
	unreadLines  = 10_000          // a child that has written more lines waits until some are read
)

// ErrEnded is returned by Line and End when the process has ended.
var ErrEnded = errors.New("subprocess: the process has ended")

// A Process is a child process. Its methods are safe for concurrent use.
type Process struct {
	// Cmd is the command that was started. Its Wait must not be called.
	Cmd *exec.Cmd
	// Lines has the lines of the standard output, if the command named no other place for it. The
	// channel is closed when the process has ended.
	Lines <-chan string

	in       io.WriteCloser // nil if the command named another standard input
	discard  func()         // from then on, lines are lost for which Lines has no place
	unwanted chan struct{}  // closed by discard
	ended    chan struct{}
	err      error // of exec.Cmd.Wait, when ended is closed
}

// Self returns a command that runs the executable of this process with the given arguments.
func Self(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	cmd := exec.Command(exe, args...)
	cmd.Err = errors.Join(cmd.Err, err)
	return cmd
}

// An Option changes how Start starts a process.
type Option func(*options)

type options struct {
	isMerged bool
	prepare  func() error
}

// Merged sends the lines of the error output to Lines too.
func Merged() Option { return func(o *options) { o.isMerged = true } }

// Prepared calls f in the thread that starts the child, before it does so. The child inherits what
// f changes of the thread, such as its namespaces. The thread ends with the child.
func Prepared(f func() error) Option { return func(o *options) { o.prepare = f } }

// Start starts cmd. The child is the leader of a process group, so an interrupt at the terminal
// does not reach it. The kernel kills it when this process ends. If cmd does not name them, the
// standard input is a pipe for WriteLine, the standard output goes to Lines, and the error output
// to that of this process. If the command sets no WaitDelay, that is five seconds.
func Start(cmd *exec.Cmd, opts ...Option) (*Process, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	lines := make(chan string, unreadLines)
	p := &Process{Cmd: cmd, Lines: lines, unwanted: make(chan struct{}), ended: make(chan struct{})}
	p.discard = sync.OnceFunc(func() { close(p.unwanted) })
	r, w := io.Pipe()
	if cmd.Stdout == nil {
		cmd.Stdout = w
	}
	if o.isMerged {
		cmd.Stderr = cmd.Stdout
	} else if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if cmd.Stdin == nil {
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		p.in = in
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	beginGroup(cmd.SysProcAttr)
	endWithParent(cmd.SysProcAttr)
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = closesWithin
	}
	started := make(chan error)
	go p.run(o.prepare, started, func() { w.Close() })
	go p.readLines(r, lines)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("subprocess: start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	return p, nil
}

// Run starts cmd as Start does, waits for its end, and returns its two outputs and its exit code.
// The code is -1 if a signal has ended the child. An output for which the command names another
// place is empty. If the command names no standard input, the child reads none. Run kills the child
// when ctx ends, and then returns the cause of ctx. A code other than zero is no error.
func Run(ctx context.Context, cmd *exec.Cmd) (out, errOut string, code int, err error) {
	var o, e bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &o
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &e
	}
	p, err := Start(cmd)
	if err != nil {
		return "", "", -1, err
	}
	p.CloseInput()
	stop := context.AfterFunc(ctx, func() { p.Signal(syscall.SIGKILL) })
	err = p.Wait()
	var exit *exec.ExitError
	switch {
	case !stop():
		err = context.Cause(ctx)
	case errors.As(err, &exit):
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("subprocess: run %s: %w", strings.Join(cmd.Args, " "), err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode(), err
}

// run starts the child and waits for its end. The kernel kills a child when the thread that has
// started it ends. Therefore this goroutine keeps its thread.
func (p *Process) run(prepare func() error, started chan<- error, endOutput func()) {
	defer endOutput()
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	var err error
	if prepare != nil {
		err = prepare()
	}
	if err == nil {
		err = p.Cmd.Start()
	}
	started <- err
	if err != nil {
		p.CloseInput()
		return
	}
	p.err = p.Cmd.Wait()
	time.AfterFunc(closesWithin, p.discard)
}

// readLines sends the lines of the output to c, until the output and the process have ended. A last
// line may be without an end.
func (p *Process) readLines(r io.Reader, c chan<- string) {
	defer close(p.ended)
	defer close(c)
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			line = strings.TrimSuffix(line, "\n")
			select {
			case c <- line:
			default:
				select {
				case c <- line:
				case <-p.unwanted:
				}
			}
		}
		if err != nil {
			return
		}
	}
}

// WriteLine writes a line to the standard input of the process: words with blanks between them.
func (p *Process) WriteLine(words ...any) error {
	_, err := fmt.Fprintln(p.in, words...)
	return err
}

// Line returns the next line of the output. When there are no more lines, it returns what End
// returns, and the cause of ctx if ctx ends first.
func (p *Process) Line(ctx context.Context) (string, error) {
	select {
	case s, ok := <-p.Lines:
		if ok {
			return s, nil
		}
		return "", p.End()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Expect waits for the next line of the output, which must be want.
func (p *Process) Expect(ctx context.Context, want string) error {
	s, err := p.Line(ctx)
	if err == nil && s != want {
		err = fmt.Errorf("subprocess: the process says %q, not %q", s, want)
	}
	return err
}

// End waits until the process has ended. It returns ErrEnded, joined with what Wait returns.
func (p *Process) End() error {
	if err := p.Wait(); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return ErrEnded
}

// Ended returns a channel that is closed when the process has ended and its output is complete.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits until the process has ended, and returns what exec.Cmd.Wait has returned.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// CloseInput ends the standard input of the process. A second call does nothing.
func (p *Process) CloseInput() {
	if p.in != nil {
		p.in.Close()
	}
}

// Stop ends the input of the process, which should end the process, and waits for that. It kills a
// process that has not ended five seconds later. Lines that were not read may be lost.
func (p *Process) Stop() error {
	p.CloseInput()
	p.discard()
	defer time.AfterFunc(endsWithin, func() { p.Signal(syscall.SIGKILL) }).Stop()
	return p.Wait()
}

// Kill kills the process, and waits until it has ended. Lines that were not read may be lost.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	p.discard()
	<-p.ended
}

// Signal sends a signal to the process. It does nothing if the process has ended.
func (p *Process) Signal(s syscall.Signal) { _ = posix.Signal(p.Cmd.Process, s) }

// UntilEnd returns a context that ends with ctx or with the input in. A child that calls it with
// its standard input ends with Process.Stop.
func UntilEnd(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, cancel
}
