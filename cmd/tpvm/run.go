// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/tpvm"
)

// grace is how long programs have between SIGTERM and SIGKILL when the command is interrupted.
const grace = 5 * time.Second

type runFlags struct {
	n             int
	host, arch    string
	where, env    []string
	dir           string
	endWithParent bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] PROGRAM [argument...]",
		Short: "Run a program several times, and wait until all have ended",
		Long: "Run a program -n times, spread over the hosts that have tasks, and print what each prints with its name in front.\n" +
			"The programs need not use tpvm. Those that do have no parent, as where a user starts them. They have no input.\n" +
			"When tpvm is interrupted, it ends the programs: by SIGTERM, and after " + grace.String() + " by SIGKILL.\n" +
			"The exit code is that of the first program that fails. Where a signal ended that one, it is 128 plus the signal's number.",
		Args: atLeast(1, "a program"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := f.options()
			if err != nil {
				return err
			}
			return f.run(cmd, args[0], append(opts, tpvm.Args(args[1:]...)))
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.IntVarP(&f.n, "count", "n", 1, "how many to run")
	fl.StringVar(&f.host, "host", "", "run on the host of this `name` or node number; . is this host")
	fl.StringVar(&f.arch, "arch", "", "run on hosts of this architecture, such as linux/amd64")
	fl.StringArrayVar(&f.where, "where", nil, "run on hosts whose node has this `name=value`; may be repeated")
	fl.StringArrayVar(&f.env, "env", nil, "add `name=value` to the environment; may be repeated")
	fl.StringVar(&f.dir, "dir", "", "`directory` in which the programs start")
	fl.BoolVar(&f.endWithParent, "end-with-parent", true, "end the programs when tpvm ends, even if it is killed")
	return cmd
}

// options returns the options of a spawn.
func (f *runFlags) options() ([]tpvm.SpawnOption, error) {
	if f.n < 1 {
		return nil, usage.Errorf("-n %d is not more than zero", f.n)
	}
	opts := []tpvm.SpawnOption{tpvm.NoParent(), tpvm.OnHost(f.host), tpvm.OnArch(f.arch), tpvm.Env(f.env...), tpvm.Dir(f.dir)}
	if len(f.where) > 0 {
		m := rocl.Match{}
		for _, w := range f.where {
			k, v, ok := strings.Cut(w, "=")
			if !ok {
				return nil, usage.Errorf("--where %s is not name=value", usage.Quote(w))
			}
			m[k] = v
		}
		opts = append(opts, tpvm.Where(m))
	}
	for _, e := range f.env {
		if !strings.Contains(e, "=") {
			return nil, usage.Errorf("--env %s is not name=value", usage.Quote(e))
		}
	}
	if f.endWithParent {
		opts = append(opts, tpvm.EndWithParent())
	}
	return opts, nil
}

// explain returns an error in place of ErrNoHost that says why nothing is started on the host that
// a user has named. It returns any other error as it is, and one of a look-up that is not certain.
func explain(ctx context.Context, t *tpvm.Task, program, host string, err error) error {
	if !errors.Is(err, tpvm.ErrNoHost) || errors.Is(err, rocl.ErrPartial) || host == "" || host == "." {
		return err
	}
	hs, hostsErr := t.Hosts(ctx)
	if hostsErr != nil {
		return err
	}
	switch i := findHost(hs, host); {
	case i < 0:
		return fmt.Errorf("start %s: there is no host %s; 'tpvm hosts' lists them", usage.Quote(program), usage.Quote(host))
	case hs[i].Launcher == "":
		return fmt.Errorf("start %s on host %s: nothing starts programs there. Run 'tpvm add %s', or 'tpvm pod' on it",
			usage.Quote(program), usage.Quote(host), display.Quote(hs[i].Name))
	}
	return err
}

// run runs a program n times, and returns its exit code as an error.
func (f *runFlags) run(cmd *cobra.Command, name string, opts []tpvm.SpawnOption) (err error) {
	ctx, errOut := cmd.Context(), cmd.ErrOrStderr()
	t, err := enrol(cmd, tpvm.WithName("tpvm run"), tpvm.WithoutLaunch())
	if err != nil {
		return err
	}
	defer func() { // Exit waits for the output
		exitCtx := ctx
		if ctx.Err() != nil {
			var cancel context.CancelFunc
			exitCtx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
		}
		if exitErr := t.Exit(exitCtx); err == nil && ctx.Err() == nil {
			err = exitErr
		}
	}()
	if err := t.CatchSplit(cmd.OutOrStdout(), errOut); err != nil {
		return err
	}
	ps, err := t.Start(ctx, name, f.n, opts...)
	if err != nil {
		end(ctx, ps, errOut)
		return explain(ctx, t, name, f.host, err)
	}
	code := wait(ctx, ps, errOut)
	if ctx.Err() != nil {
		if f.endWithParent {
			report(errOut, "interrupted: ending what runs")
			end(ctx, ps, errOut)
		}
		return exitError(exitInterrupted)
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// wait waits until all programs have ended, or until ctx has. It returns the exit code of the first
// that failed.
func wait(ctx context.Context, ps []*tpvm.Program, errOut io.Writer) (code int) {
	type end struct {
		p   *tpvm.Program
		s   tpvm.Status
		err error
	}
	ends := make(chan end, len(ps))
	for _, q := range ps {
		go func() {
			s, err := q.Wait(ctx)
			ends <- end{q, s, err}
		}()
	}
	for range ps {
		e := <-ends
		if ctx.Err() != nil {
			continue
		}
		was := e.s.ExitCode()
		switch {
		case e.err != nil:
			was = exitFailed
			report(errOut, "%s", text(e.err))
		case was != 0:
			report(errOut, "%v: %v", e.p, e.s)
		}
		if code == 0 {
			code = was
		}
	}
	return code
}

// end ends programs: by SIGTERM, and by SIGKILL after grace.
func end(ctx context.Context, ps []*tpvm.Program, errOut io.Writer) {
	ctx = context.WithoutCancel(ctx)
	var all sync.WaitGroup
	for _, q := range ps {
		all.Go(func() {
			err := endBy(ctx, q, syscall.SIGTERM)
			if errors.Is(err, context.DeadlineExceeded) {
				report(errOut, "%v: does not end by SIGTERM, and is killed", q)
				err = endBy(ctx, q, syscall.SIGKILL)
			}
			if err != nil {
				report(errOut, "%s", text(err))
			}
		})
	}
	all.Wait()
}

// endBy sends a signal to a program and waits until it has ended.
func endBy(ctx context.Context, q *tpvm.Program, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := q.Signal(ctx, s); errors.Is(err, tpvm.ErrNoTask) { // it has ended already
		return nil
	} else if err != nil {
		return err
	}
	_, err := q.Wait(ctx)
	return err
}

// report prints a line of tpvm itself.
func report(w io.Writer, format string, args ...any) { fmt.Fprintf(w, "tpvm: "+format+"\n", args...) }
