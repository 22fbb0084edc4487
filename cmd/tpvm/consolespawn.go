// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl/tpvm"
)

// envDebugger names the variable for the command under which spawn -? starts programs.
const envDebugger = "TPVM_DEBUGGER"

const aboutSpawn = `-COUNT      how many, such as -4
-HOST       on a host; . is this one. --host=HOST is the same, for one that is a number
-GOOS/ARCH  on hosts of an architecture, such as -linux/arm64
-:DIR       in a directory, also behind a host or an architecture: -node2:/tmp
-?          below the debugger that ` + envDebugger + ` names, such as 'xterm -e gdb --args'
->          print what the program prints; without it, that is discarded
->FILE      write it to a file; ->>FILE appends it. A line may also end with -> FILE or ->> FILE
--          the options end`

// job is one spawn of the console.
type job struct {
	number  int
	name    string
	ps      []*program
	prints  bool
	w       io.Writer     // where the output is written
	file    *os.File      // the file of the output, or nil
	err     error         // of writing the output
	isShown chan struct{} // closed when the console has printed the job; the output waits for that
	outputs chan struct{} // one for each program whose output has ended
	ended   chan struct{} // closed when the console has printed that the job has ended, or when the console ends
}

// program is one of the programs of a job.
type program struct {
	*tpvm.Program
	ended   chan struct{} // closed when the program has ended
	failure string        // how the program failed, or ""; valid after ended
}

// await waits until the program has ended.
func (p *program) await(ctx context.Context) {
	defer close(p.ended)
	if s, err := p.Wait(ctx); err != nil {
		p.failure = text(err)
	} else if !s.Success() {
		p.failure = s.String()
	}
}

// take writes a line of the output of a job. It waits until the job has been printed.
func (j *job) take(o *tpvm.Output) {
	<-j.isShown
	more := ""
	if o.IsContinued {
		more = "+"
	}
	switch o.Kind {
	case tpvm.OutputLine:
		_, err := fmt.Fprintf(j.w, "[%s%s] %s\n", o.Label, more, o.Text)
		if j.err == nil {
			j.err = err
		}
	case tpvm.OutputEnd:
		j.outputs <- struct{}{}
	}
}

// outputTime is how long the report of a job's end waits for output by other processes that have
// inherited the programs' pipes.
const outputTime = time.Second

// awaitOutput waits until the output of the programs has ended, or until outputTime is over.
func (j *job) awaitOutput() {
	late := time.After(outputTime)
	for range j.ps {
		select {
		case <-j.outputs:
		case <-late:
			return
		}
	}
}

// follow prints that a job has ended, after its output.
func (c *console) follow(ctx context.Context, j *job) {
	defer close(j.ended)
	var failed []*program
	for _, p := range j.ps {
		if <-p.ended; p.failure != "" {
			failed = append(failed, p)
		}
	}
	if <-j.isShown; j.prints {
		j.awaitOutput()
	}
	if ctx.Err() == nil {
		fmt.Fprintf(c.out, "[%d] finished: %s\n", j.number, j.outcome(failed))
	}
}

// outcome describes how a job has ended.
func (j *job) outcome(failed []*program) string {
	switch {
	case len(failed) == 0:
		return j.name
	case len(j.ps) == 1:
		return j.name + ": " + failed[0].failure
	}
	return fmt.Sprintf("%s: %d of %d failed, the first %v: %s", j.name, len(failed), len(j.ps), failed[0], failed[0].failure)
}

// running returns the programs of a job that have not ended.
func (j *job) running() (ps []*program) {
	for _, p := range j.ps {
		select {
		case <-p.ended:
		default:
			ps = append(ps, p)
		}
	}
	return ps
}

// listJobs prints the jobs that run.
func (c *console) listJobs(_ context.Context, args []string) error {
	isLong, err := flag(args, "-l")
	if err != nil {
		return err
	}
	for _, j := range c.jobs {
		ps := j.running()
		if len(ps) == 0 {
			continue
		}
		if err := printTo(c.out, "[%d] %d %s\n", j.number, len(ps), j.name); err != nil {
			return err
		}
		for _, p := range ps {
			if !isLong {
				break
			}
			if err := printTo(c.out, "    %v\n", p); err != nil {
				return err
			}
		}
	}
	return nil
}

// request holds the arguments of a spawn.
type request struct {
	n               int
	host, arch, dir string
	debugs          bool
	args            []string // the program and its arguments
	prints          bool
	file            string
	appendsToFile   bool
}

// parseSpawn reads the arguments of spawn.
func parseSpawn(args []string) (r request, err error) {
	r.n = 1
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		a := args[0]
		args = args[1:]
		if a == "--" {
			break
		}
		if err := r.parseOption(a); err != nil {
			return r, err
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

// parseOption reads one option of spawn.
func (r *request) parseOption(a string) error {
	if to, ok := strings.CutPrefix(a, "->"); ok {
		r.file, r.appendsToFile = strings.CutPrefix(to, ">")
		if r.prints = true; r.appendsToFile && r.file == "" {
			return errors.New("->> needs a file, with no space between")
		}
		return nil
	}
	where, dir, hasDir := strings.Cut(a[1:], ":")
	if hasDir {
		r.dir = dir
	}
	n, err := strconv.Atoi(where)
	host, isHost := strings.CutPrefix(where, "-host=")
	switch {
	case isHost:
		r.host = host
	case strings.HasPrefix(where, "-"), where == "" && !hasDir:
		return fmt.Errorf("%s is no option", a)
	case where == "":
	case where == "?":
		r.debugs = true
	case err == nil && n < 1:
		return fmt.Errorf("the count %s is not more than zero", where)
	case err == nil:
		r.n = n
	case strings.Contains(where, "/"):
		r.arch = where
	default:
		r.host = where
	}
	return nil
}

// debugger puts the debugger in front of the program.
func (r *request) debugger() error {
	debugger, err := split(os.Getenv(envDebugger))
	if err != nil {
		return fmt.Errorf("%s: %w", envDebugger, err)
	}
	if len(debugger) == 0 {
		return fmt.Errorf("-? needs a debugger: setenv %s 'xterm -e gdb --args'", envDebugger)
	}
	r.args = slices.Concat(debugger, r.args)
	return nil
}

// output returns the writer for the output of a spawn, and the file to close. A nil writer means
// that the output is discarded.
func (r *request) output(console io.Writer) (w io.Writer, file *os.File, err error) {
	switch {
	case !r.prints:
		return nil, nil, nil
	case r.file == "":
		return console, nil, nil
	}
	how := os.O_TRUNC
	if r.appendsToFile {
		how = os.O_APPEND
	}
	file, err = os.OpenFile(r.file, os.O_WRONLY|os.O_CREATE|how, 0o666)
	return file, file, err
}

// environment returns the exported variables.
func (c *console) environment() (env []string) {
	for _, name := range c.exports {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// spawn starts the programs of a job, and follows them.
func (c *console) spawn(ctx context.Context, args []string) error {
	r, err := parseSpawn(args)
	if err != nil {
		return err
	}
	name := r.args[0]
	if r.debugs {
		if err := r.debugger(); err != nil {
			return err
		}
	}
	j := &job{
		number: len(c.jobs) + 1, name: name, prints: r.prints,
		isShown: make(chan struct{}), outputs: make(chan struct{}, r.n), ended: make(chan struct{}),
	}
	defer close(j.isShown)
	if j.w, j.file, err = r.output(c.out); err != nil {
		return err
	}
	ps, err := c.start(ctx, r, j)
	if len(ps) == 0 {
		if j.file != nil {
			err = errors.Join(err, j.file.Close())
		}
		return err
	}
	c.jobs = append(c.jobs, j)
	for _, q := range ps {
		p := &program{Program: q, ended: make(chan struct{})}
		j.ps = append(j.ps, p)
		go p.await(c.ctx)
	}
	go c.follow(c.ctx, j)
	return errors.Join(err, c.printStarted(c.ctx, j))
}

// start starts the programs of a request.
func (c *console) start(ctx context.Context, r request, j *job) ([]*tpvm.Program, error) {
	opts := []tpvm.SpawnOption{
		tpvm.NoParent(), tpvm.OnHost(r.host), tpvm.OnArch(r.arch), tpvm.Dir(r.dir), tpvm.Args(r.args[1:]...), tpvm.Env(c.environment()...),
	}
	if !r.prints {
		opts = append(opts, tpvm.NoOutput())
	} else if err := c.t.CatchLines(j.take, false); err != nil {
		return nil, err
	}
	ps, err := c.t.Start(ctx, r.args[0], r.n, opts...)
	return ps, errors.Join(explain(ctx, c.t, r.args[0], r.host, err), c.t.Catchout(nil))
}

// enrolTime is how long spawn waits for tasks before it prints their identifiers.
const enrolTime = time.Second

// printStarted prints a job and its identifiers: of the task if the program has enrolled, else of
// its start. Output of other jobs does not come between.
func (c *console) printStarted(ctx context.Context, j *job) error {
	ctx, stop := context.WithTimeout(ctx, enrolTime)
	defer stop()
	var b strings.Builder
	fmt.Fprintf(&b, "[%d] %d started\n", j.number, len(j.ps))
	for _, p := range j.ps {
		id, err := p.Task(ctx)
		if err != nil { // the program is no task, or has not enrolled yet
			id = p.ID()
		}
		fmt.Fprintln(&b, id)
	}
	return printTo(c.out, "%s", &b)
}
