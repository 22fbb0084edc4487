// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"slices"
	"syscall"
)

// A Program is a process of a program that Start has started. It may become a task, or not.
type Program struct {
	t     *Thread
	pod   TID
	id    TID
	name  string
	host  string
	index int
	pid   int
}

// ID returns the identifier of the program until it enrols. As a task it has another identifier.
func (p *Program) ID() TID { return p.id }

// Name returns the name that was given to Start.
func (p *Program) Name() string { return p.name }

// Host returns the name of the host on which the program was started.
func (p *Program) Host() string { return p.host }

// Index returns the number of the program among those of one Start, from 0 on.
func (p *Program) Index() int { return p.index }

// PID returns the process number of the program on its host.
func (p *Program) PID() int { return p.pid }

// String returns the name, the index, the process and the host.
func (p *Program) String() string {
	return fmt.Sprintf("%s.%d (process %d on %s)", p.name, p.index, p.pid, p.host)
}

// Wait waits until the program has ended, and returns how it ended.
func (p *Program) Wait(ctx context.Context) (_ Status, err error) {
	defer wrap(&err, "tpvm: wait for %v", p)
	return p.t.askWait(ctx, p.pod, p.id)
}

// Task waits until the program has enrolled, and returns the identifier of its task. It fails with
// ErrNotEnrolled if the program ends without enrolling.
func (p *Program) Task(ctx context.Context) (TID, error) {
	id, err := askPod(ctx, p.t.task, p.pod, podEnrolled, waitFor{p.id}, p.t.task.pod.awaitTask)
	if err != nil {
		return TID{}, fmt.Errorf("tpvm: find the task of %v: %w", p, err)
	}
	p.t.task.pod.launched.add(p.pod, id)
	return id, nil
}

// Signal sends a signal to the process, whether it has enrolled or not.
func (p *Program) Signal(ctx context.Context, s syscall.Signal) (err error) {
	defer wrap(&err, "tpvm: signal %v", p)
	_, err = askPod(ctx, p.t.task, p.pod, podSignal, signal{ID: p.id, Signal: int(s)}, func(_ context.Context, q signal) (done, error) {
		_, err := p.t.task.pod.signal(q) // the process is not this one, so that no function to call is returned
		return done{}, err
	})
	return err
}

// startedPrograms is the reply to podStart. It has, for each program, an identifier or the reason
// why it was not started.
type startedPrograms struct {
	Programs []startedProgram
	Host     string
}

// startedProgram is the result for one program: ID identifies its start.
type startedProgram struct {
	ID    TID
	PID   int
	Error string // if it was not started
}

// startOnly starts programs and does not wait until they have enrolled.
func (p *pod) startOnly(ctx context.Context, q spawnPrograms) (startedPrograms, error) {
	cs, errs := p.launchAll(ctx, q)
	a := startedPrograms{Host: p.t.host, Programs: make([]startedProgram, len(cs))}
	for i, c := range cs {
		if errs[i] != nil {
			a.Programs[i].Error = errs[i].Error()
		} else {
			a.Programs[i].ID, a.Programs[i].PID = c.tmp.ID(), c.cmd.Process.Pid
		}
	}
	return a, nil
}

// programs returns the request for a share of n programs.
func (t *Thread) programs(name string, n int, p share, number uint64, s *spawn, out output) spawnPrograms {
	return spawnPrograms{
		parentage: t.children(number, s), Name: name, Args: s.args, Env: s.env, Dir: s.dir, N: p.count,
		EndWithParent: s.endWithParent, Output: out, First: p.first, Count: n, OnHosts: p.count < n,
	}
}

// Start starts n processes of a program, as Spawn does, and returns when they run. It does not wait
// until they have enrolled, and they need not enrol. Options and errors are those of Spawn; the
// option Threads makes no sense. The result is in the order of the indexes. With EndWithParent, the
// task that started a program ends it if it does not enrol.
func (t *Thread) Start(ctx context.Context, name string, n int, opts ...SpawnOption) ([]*Program, error) {
	s, name, err := newSpawn(name, n, slices.Concat(opts, []SpawnOption{Programs()}))
	if err != nil {
		return nil, fmt.Errorf("tpvm: start %d of %q: %w", n, name, err)
	}
	places, _, err := t.task.hostEntries(ctx, name, s)
	if err != nil {
		return nil, fmt.Errorf("tpvm: start %q: %w", name, err)
	}
	own := t.task.pod
	shares := own.spread(places, n)
	number, record := own.beginSpawn()
	out, release := t.task.outputs(s)
	defer release()
	answers, errs := make([]startedPrograms, len(shares)), make([]error, len(shares))
	together(len(shares), func(i int) {
		q := t.programs(name, n, shares[i], number, s, out)
		answers[i], errs[i] = askPod(ctx, t.task, shares[i].pod, podStart, q, own.startOnly)
	})
	var ps []*Program
	e := &SpawnError{Name: name, Slots: make([]error, n), hosts: make([]string, n)}
	for i, share := range shares {
		a := answers[i]
		for k := range share.count {
			e.hosts[share.first+k] = share.name()
			var got startedProgram
			if k < len(a.Programs) {
				got = a.Programs[k]
			}
			if got.ID.IsZero() {
				e.Slots[share.first+k] = s.notStarted(share, errs[i], got.Error)
				continue
			}
			own.launched.add(share.pod, got.ID)
			ps = append(ps, &Program{t: t, pod: share.pod, id: got.ID, name: name, host: a.Host, index: share.first + k, pid: got.PID})
		}
	}
	if !t.task.work.goes(func() { // Siblings needs the tasks that the programs have become
		defer close(record.done)
		ids := make([]TID, len(ps))
		together(len(ps), func(i int) { ids[i], _ = ps[i].Task(t.task.ended) })
		record.ids = slices.DeleteFunc(ids, TID.IsZero)
	}) {
		close(record.done)
	}
	return ps, e.orNil()
}
