// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// A Program is a program that Start has started. It may become a task, or not.
type Program struct {
	t     *Thread
	pod   TID
	id    TID
	name  string
	host  string
	index int
	pid   int
}

// ID identifies the program until it enrols; as a task it has another identifier.
func (p *Program) ID() TID { return p.id }

// Name returns the name that Start was given.
func (p *Program) Name() string { return p.name }

// Host returns the name of the host on which the program was started.
func (p *Program) Host() string { return p.host }

// Index returns which of the programs of one Start this is, from 0 on.
func (p *Program) Index() int { return p.index }

// PID returns the number of the process on its host.
func (p *Program) PID() int { return p.pid }

// String returns the name, the index, the process and the host.
func (p *Program) String() string {
	return fmt.Sprintf("%s.%d (process %d on %s)", p.name, p.index, p.pid, p.host)
}

// Wait waits until the program has ended, and returns how.
func (p *Program) Wait(ctx context.Context) (Status, error) {
	e, err := p.t.askWait(ctx, p.pod, p.id)
	if err == nil && !e.IsKnown {
		err = ErrNoStatus
	}
	if err != nil {
		return Status{}, fmt.Errorf("tpvm: wait for %v: %w", p, err)
	}
	return e.Status, nil
}

// Task waits until the program has enrolled, and returns the identifier of its task. It fails
// with ErrNotEnrolled where the program has ended without that.
func (p *Program) Task(ctx context.Context) (TID, error) {
	var e enrolled
	var err error
	if own := p.t.task.pod; p.pod == own.r.ID() {
		e = own.awaitTask(ctx, waitFor{p.id})
		if err = context.Cause(ctx); err != nil && e.Error == "" {
			err = nil
		}
	} else {
		e, err = ask[enrolled](ctx, p.t.task, p.pod, podEnrolled, waitFor{p.id})
	}
	if err == nil && e.Error != "" {
		err = remoteError(e.Error)
	}
	if err != nil {
		return TID{}, fmt.Errorf("tpvm: task of %v: %w", p, err)
	}
	p.t.task.pod.launched.add(p.pod, e.ID)
	return e.ID, nil
}

// Signal sends a signal to the process, whether it has enrolled or not.
func (p *Program) Signal(ctx context.Context, s syscall.Signal) error {
	q := signal{ID: p.id, Signal: int(s)}
	var d done
	var err error
	if own := p.t.task.pod; p.pod == own.r.ID() {
		d, _ = own.signal(ctx, q)
	} else {
		d, err = ask[done](ctx, p.t.task, p.pod, podSignal, q)
	}
	if err == nil && d.Error != "" {
		err = ErrNoTask
	}
	if err != nil {
		return fmt.Errorf("tpvm: signal %v: %w", p, err)
	}
	return nil
}

// startedPrograms is the reply to podStart: one for each, a program or why there is none.
type startedPrograms struct {
	Programs []startedProgram
	Host     string
}

type startedProgram struct {
	ID    TID
	PID   int
	Error string // where it was not started
}

// startOnly starts programs and does not wait until they have enrolled.
func (p *pod) startOnly(ctx context.Context, q spawnPrograms) startedPrograms {
	cs, errs := p.launchAll(ctx, q)
	a := startedPrograms{Host: p.t.host, Programs: make([]startedProgram, len(cs))}
	for i, c := range cs {
		if errs[i] != nil {
			a.Programs[i].Error = errs[i].Error()
		} else {
			a.Programs[i].ID, a.Programs[i].PID = c.tmp.ID(), c.cmd.Process.Pid
		}
	}
	return a
}

// programs returns a request for programs; the caller says which of the spawn.
func (t *Thread) programs(name string, n int, number uint64, s *spawn, out output) spawnPrograms {
	return spawnPrograms{
		Name: name, Args: s.args, Env: s.env, Dir: s.dir, Count: n, Parent: t.ID(), Spawn: number, Pod: t.task.pod.r.ID(),
		MsgContext: t.msgContext.Load(), EndWithParent: s.endWithParent, Output: out,
	}
}

func askPrograms(ctx context.Context, t *Thread, pod TID, q spawnPrograms) (started, error) {
	if pod == t.task.pod.r.ID() {
		return t.task.pod.startPrograms(ctx, q), nil
	}
	return ask[started](ctx, t.task, pod, podPrograms, q)
}

// Start starts n processes of a program, as Spawn does, and returns when they run: it does not
// wait until they have enrolled, and they need not. Options and errors are those of Spawn;
// Threads makes no sense. The programs are in the order of their indexes. Where EndWithParent
// is given and the program does not enrol, the task that started it ends it.
func (t *Thread) Start(ctx context.Context, name string, n int, opts ...SpawnOption) ([]*Program, error) {
	var s spawn
	for _, o := range opts {
		o(&s)
	}
	if name == "" || n < 1 || n > mostThreads || s.noPrograms {
		return nil, fmt.Errorf("tpvm: start %d of %q: %w", n, name, ErrBadParam)
	}
	s.noThreads = true
	places, _, err := t.task.places(ctx, name, &s)
	if err != nil {
		return nil, fmt.Errorf("tpvm: start %q: %w", name, err)
	}
	number, record := t.task.pod.beginSpawn()
	places, shares := t.task.pod.spread(places, n)
	firsts := firstsOf(shares)
	out, release := t.task.outputs(&s)
	defer release()
	answers, errs := make([]startedPrograms, len(places)), make([]error, len(places))
	together(len(places), func(i int) {
		q := t.programs(name, n, number, &s, out)
		q.First, q.N = firsts[i], shares[i]
		q.OnHosts = len(places) > 1
		if pod := places[i].pod; pod == q.Pod {
			answers[i] = t.task.pod.startOnly(ctx, q)
		} else {
			answers[i], errs[i] = ask[startedPrograms](ctx, t.task, pod, podStart, q)
		}
	})
	var ps []*Program
	e, failed := &SpawnError{Name: name, Slots: make([]error, n)}, false
	for i, a := range answers {
		first := firsts[i]
		for k := range shares[i] {
			err := errs[i]
			switch {
			case err != nil:
			case k >= len(a.Programs):
				err = errors.New("the task answered for too few")
			case a.Programs[k].Error != "":
				err = remoteError(a.Programs[k].Error)
			default:
				id := a.Programs[k].ID
				t.task.pod.launched.add(places[i].pod, id)
				ps = append(ps, &Program{t: t, pod: places[i].pod, id: id, name: name, host: a.Host, index: first + k, pid: a.Programs[k].PID})
			}
			e.Slots[first+k] = err
			failed = failed || err != nil
		}
	}
	t.task.work.Go(func() { // siblings ask for the tasks that the programs have become
		defer close(record.done)
		ids := make([]TID, len(ps))
		together(len(ps), func(i int) { ids[i], _ = ps[i].Task(t.task.ended) })
		record.ids = slices.DeleteFunc(ids, TID.IsZero)
	})
	if failed {
		return ps, e
	}
	return ps, nil
}
