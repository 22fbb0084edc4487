// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// spawnPrograms asks a pod for tasks that run a program.
type spawnPrograms struct {
	Name          string
	Args, Env     []string
	Dir           string
	N             int
	Parent        TID
	Spawn         uint64
	Pod           TID // of the spawner
	MsgContext    uint32
	EndWithParent bool
	Output        TID // of the task that gathers the output; zero: none does
}

// mostPrograms is how many programs one request may start.
const mostPrograms = 1 << 12

// enrolment is what a started program tells its launcher.
type enrolment struct{ ID TID }

// start is what a started program learns from the resource of its start.
type start struct {
	Parent        TID
	Spawn         uint64
	Pod           TID // of the spawner
	MsgContext    uint32
	EndWithParent bool
	Output        TID
}

// A child is a program that a pod has started.
type child struct {
	cmd      *exec.Cmd
	tmp      *rocl.Resource
	enrolled chan TID      // gets the identifier when the program enrols
	exited   chan struct{} // closed when the process has ended and its output was passed on
	err      error         // of the process; after exited
}

func askPrograms(ctx context.Context, t *Thread, pod TID, name string, n int, number uint64, s *spawn) (started, error) {
	q := spawnPrograms{
		Name: name, Args: s.args, Env: s.env, Dir: s.dir, N: n, Parent: t.ID(), Spawn: number, Pod: t.task.pod.r.ID(),
		MsgContext: t.msgContext.Load(), EndWithParent: s.endWithParent, Output: t.task.collector(),
	}
	if pod == t.task.pod.r.ID() {
		return t.task.pod.startPrograms(ctx, q), nil
	}
	return ask[started](ctx, t.task, pod, podPrograms, q)
}

// startPrograms starts programs and waits until they have enrolled.
func (p *pod) startPrograms(ctx context.Context, q spawnPrograms) (a started) {
	if q.N < 1 || q.N > mostPrograms {
		a.Errors = []string{ErrBadParam.Error()}
		return a
	}
	path, err := lookPath(q.Name, q.Dir)
	if err != nil {
		a.Errors = []string{fmt.Sprintf("%v: %q on %s: %v", ErrNoProgram, q.Name, p.t.host, err)}
		return a
	}
	ids, errs := make([]TID, q.N), make([]error, q.N)
	together(q.N, func(i int) { ids[i], errs[i] = p.startProgram(ctx, path, q) })
	for i, err := range errs {
		if err != nil {
			a.Errors = append(a.Errors, err.Error())
		} else {
			a.IDs = append(a.IDs, ids[i])
		}
	}
	return a
}

// lookPath finds a program: by its path, beside the program of this task, or in PATH.
func lookPath(name, dir string) (string, error) {
	if filepath.Base(name) == name {
		if own, err := os.Executable(); err == nil {
			if path, err := exec.LookPath(filepath.Join(filepath.Dir(own), name)); err == nil {
				return path, nil
			}
		}
	} else if !filepath.IsAbs(name) && dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// startProgram starts one program and waits until it has enrolled or ended.
func (p *pod) startProgram(ctx context.Context, path string, q spawnPrograms) (TID, error) {
	c, err := p.launch(ctx, path, q)
	if err != nil {
		return TID{}, fmt.Errorf("start %s on %s: %w", path, p.t.host, err)
	}
	defer func() { _ = c.tmp.Close() }()
	select {
	case id := <-c.enrolled:
		return id, nil
	case <-c.exited:
		select {
		case id := <-c.enrolled: // and has ended since
			return id, nil
		default:
		}
		return TID{}, fmt.Errorf("%w: %s on %s: %s", ErrNotEnrolled, path, p.t.host, exitText(c.err))
	case <-ctx.Done():
		return TID{}, fmt.Errorf("%s on %s has not enrolled: %w", path, p.t.host, context.Cause(ctx))
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// launch starts a program, with a resource by which it finds its parent.
func (p *pod) launch(ctx context.Context, path string, q spawnPrograms) (*child, error) {
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	if draining {
		return nil, ErrExited
	}
	token := rand.Text()
	c := &child{enrolled: make(chan TID, 1), exited: make(chan struct{})}
	st, err := codec.Append(nil, &start{
		Parent: q.Parent, Spawn: q.Spawn, Pod: q.Pod, MsgContext: q.MsgContext, EndWithParent: q.EndWithParent, Output: q.Output,
	})
	if err != nil {
		return nil, err
	}
	a := p.t.attrs(typeStart, rocl.Attrs{attrToken: token, attrParentOf: q.Parent.String(), attrName: q.Name, attrStart: string(st)})
	if c.tmp, err = p.t.c.Register(ctx, a); err != nil {
		return nil, err
	}
	p.t.work.Go(func() {
		_ = c.tmp.Handle(p.t.ended, func(m *rocl.Message) {
			var id TID
			answer(p, c.tmp, m, func(_ context.Context, e enrolment) done {
				id = e.ID
				return done{}
			})
			select {
			case c.enrolled <- id: // behind the reply, since the resource is closed next
			default: // a second one of the same process
			}
		})
	})
	c.cmd = exec.Command(path, q.Args...)
	c.cmd.Dir = q.Dir
	c.cmd.Env = append(append(os.Environ(), q.Env...), EnvToken+"="+token, EnvVM+"="+p.t.vm)
	finish, err := p.t.connectOutput(c.cmd, q)
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		_ = c.tmp.Close()
		if finish != nil {
			finish(false)
		}
		return nil, err
	}
	_ = c.tmp.Set(ctx, attrPID, strconv.Itoa(c.cmd.Process.Pid)) // for ps
	p.mu.Lock()
	p.children[c] = struct{}{}
	p.mu.Unlock()
	go func() { // outlives the task where the program does
		if finish != nil {
			finish(true)
		}
		c.err = c.cmd.Wait()
		p.mu.Lock()
		delete(p.children, c)
		p.mu.Unlock()
		close(c.exited)
	}()
	return c, nil
}

// foundStart is the start of this program by a launcher.
type foundStart struct {
	tmp TID
	start
}

// findStart finds the launcher that has started this process, or nil.
func (t *Task) findStart(ctx context.Context) (*foundStart, error) {
	token := os.Getenv(EnvToken)
	if token == "" {
		return nil, nil
	}
	_ = os.Unsetenv(EnvToken) // programs that this one starts are not that child
	f, err := t.c.Find(ctx, t.match(typeStart, rocl.Match{attrToken: token}))
	if errors.Is(err, rocl.ErrNotFound) {
		return nil, nil // its launcher has ended, or has given up
	}
	if err != nil {
		return nil, err
	}
	s := &foundStart{tmp: f.ID}
	if err := codec.Decode([]byte(attr(f, attrStart)), &s.start); err != nil {
		return nil, fmt.Errorf("start by the launcher %v: %w", f.ID, err)
	}
	return s, nil
}

// tellStart tells the launcher that the program has enrolled.
func (t *Task) tellStart(ctx context.Context, s *foundStart) error {
	if _, err := ask[done](ctx, t, s.tmp, 0, enrolment{ID: t.ID()}); err != nil {
		return fmt.Errorf("telling the launcher %v: %w", s.tmp, err)
	}
	return nil
}

// drain waits for the programs whose output the task passes on, until ctx ends.
func (p *pod) drain(ctx context.Context) error { return nil }

// collector returns the task that gathers the output of programs that this one starts.
func (t *Task) collector() TID { return TID{} }

// connectOutput says where the output of a program goes.
func (t *Task) connectOutput(cmd *exec.Cmd, q spawnPrograms) (finish func(started bool), err error) {
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return nil, nil
}

var _ io.Writer
