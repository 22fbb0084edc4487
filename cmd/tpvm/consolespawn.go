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

// envDebugger is the command under which spawn -? starts programs.
const envDebugger = "TPVM_DEBUGGER"

const aboutSpawn = `-COUNT      how many, such as -4
-HOST       on a host; . is this one. --host=HOST is the same, for one that is a number
-GOOS/ARCH  on hosts of an architecture, such as -linux/arm64
-:DIR       in a directory, also behind a host or an architecture: -node2:/tmp
-?          below the debugger that ` + envDebugger + ` names, such as 'xterm -e gdb --args'
->          print what the program prints; without it, that is discarded
->FILE      write it to a file; ->>FILE appends it. A line may also end with -> FILE or ->> FILE
--          the options end`

// job is one spawn.
type job struct {
	number int
	name   string
	ps     []*program
	file   *os.File // of the output
	isTold bool     // that it has ended
}

// program is one of the programs of a job.
type program struct {
	*tpvm.Program
	ended chan struct{} // closed when it has
}

// running returns the programs of a job that run.
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

// tellEnded prints the jobs that have ended since the last call.
func (c *console) tellEnded() {
	for _, j := range c.jobs {
		if !j.isTold && len(j.running()) == 0 {
			j.isTold = true
			fmt.Fprintf(c.out, "[%d] finished %s\n", j.number, j.name)
		}
	}
}

// request is what a spawn asks for.
type request struct {
	n               int
	host, arch, dir string
	debugs          bool
	args            []string // the program first
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

// output returns where the output of a spawn goes; nil: nowhere.
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
	w, file, err := r.output(c.out)
	if err != nil {
		return err
	}
	ps, err := c.start(r, w)
	if len(ps) == 0 {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return err
	}
	j := &job{number: len(c.jobs) + 1, name: name, file: file}
	c.jobs = append(c.jobs, j)
	for _, q := range ps {
		p := &program{q, make(chan struct{})}
		j.ps = append(j.ps, p)
		go func() {
			_, _ = p.Wait(ctx)
			close(p.ended)
		}()
	}
	return errors.Join(err, c.printStarted(ctx, j))
}

// start starts the programs of a request, whose output goes to w.
func (c *console) start(r request, w io.Writer) ([]*tpvm.Program, error) {
	opts := []tpvm.SpawnOption{
		tpvm.OnHost(r.host), tpvm.OnArch(r.arch), tpvm.Dir(r.dir), tpvm.Args(r.args[1:]...), tpvm.Env(c.environment()...),
	}
	if w == nil {
		opts = append(opts, tpvm.NoOutput())
	} else if err := c.t.Catchout(w); err != nil {
		return nil, err
	}
	ctx, cancel := c.brief()
	defer cancel()
	ps, err := c.t.Start(ctx, r.args[0], r.n, opts...)
	return ps, errors.Join(err, c.t.Catchout(nil))
}

// enrolTime is how long spawn waits for tasks to print their identifiers.
const enrolTime = time.Second

// printStarted prints a job, and its identifiers: those of tasks where they have enrolled.
func (c *console) printStarted(ctx context.Context, j *job) error {
	if err := printTo(c.out, "[%d] %d started\n", j.number, len(j.ps)); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, enrolTime)
	defer stop()
	for _, p := range j.ps {
		id, err := p.Task(ctx)
		if err != nil { // it is no task, or not yet
			id = p.ID()
		}
		if err := printTo(c.out, "%v\n", id); err != nil {
			return err
		}
	}
	return nil
}
