// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"iter"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/work"
)

// kitWorkCases measure a work queue whose workers are three other processes, beside a loop that
// sends each task as a message and keeps as many at each worker.
var kitWorkCases = []comparison{
	{bench: "kit", name: "kit work of 4 processes", when: inKit("work"), set: works, what: "a hand-written loop with credits", unit: "tasks/s",
		limits: []Limit{atLeast("ratio", 0.6, 0.9), atLeast("rate", 200_000, 500_000)}, bare: handTasks, ours: queueTasks},
}

const (
	workTask    = 64  // bytes of a task, and of a result
	workWorkers = 3   // processes, the peer among them
	workCredits = 256 // tasks at each worker in the hand-written loop
)

func works(o *options) { o.transport, o.size, o.count = "shm", workTask, 20*o.count }

// crew starts the workers, each of which serves both loops.
func (p *pair) crew() {
	if len(p.crewed) > 0 {
		return
	}
	own := p.config
	own.Role = isWorker
	p.crewed = append(p.crewed, p.peer)
	for len(p.crewed) < workWorkers {
		p.crewed = append(p.crewed, p.start(own))
	}
	for _, q := range p.crewed {
		p.ask(q, "work", 0)
	}
}

// work serves both loops until the process ends.
func (a *answerer) work() {
	a.run(func() error {
		return work.Serve(a.ctx, a.c, rocl.Attrs{"bench": "worker"}, func(_ context.Context, in []byte) ([]byte, error) { return in, nil }, work.Grace(0))
	})
	me := must(a.c.Register(a.ctx, rocl.Attrs{"bench": "hand"}))
	a.run(func() error {
		for m, err := range me.Messages(a.ctx) {
			if err != nil {
				return err
			}
			b := must(a.c.Buffer(m.Len()))
			copy(b.Bytes(), m.Bytes())
			to, tag := m.From(), m.Tag()
			m.Release()
			if err := me.Send(a.ctx, to, tag, b); err != nil {
				return err
			}
		}
		return nil
	})
}

// run runs f in a goroutine, which ends before the context closes.
func (a *answerer) run(f func() error) {
	done := make(chan error, 1)
	go func() { done <- attempt(func() { check(f()) }) }()
	a.add(func() { <-done })
}

// handTasks sends each worker a task whenever a result of it has come.
func handTasks(p *pair) loop {
	p.crew()
	var workers []rocl.GID
	for _, f := range must(p.c.Await(p.ctx, rocl.Match{"bench": "hand"}, workWorkers)) {
		workers = append(workers, f.ID)
	}
	payload := make([]byte, workTask)
	return func(n int, t *times) {
		sent := 0
		send := func(to rocl.GID) {
			if sent == n {
				return
			}
			sent++
			b := must(p.c.Buffer(workTask))
			copy(b.Bytes(), payload)
			check(p.me.Send(p.msg, to, uint64(sent), b))
		}
		t.rate(n, func() {
			for range workCredits {
				for _, id := range workers {
					send(id)
				}
			}
			for range n {
				m := must(p.me.Recv(p.msg))
				from := m.From()
				m.Release()
				send(from)
			}
		})
	}
}

// queueTasks gives the workers the same tasks by a queue.
func queueTasks(p *pair) loop {
	p.crew()
	must(p.c.Await(p.ctx, rocl.Match{"bench": "worker"}, workWorkers))
	payload := make([]byte, workTask)
	return func(n int, t *times) {
		q := must(work.Open[[]byte, []byte](p.ctx, p.c, rocl.Match{"bench": "worker"}))
		defer q.Close()
		for q.Stats().Workers < workWorkers {
			proceed(p.ctx)
		}
		got := 0
		t.rate(n, func() {
			for r, err := range q.Do(p.ctx, repeated(payload, n)) {
				check(err)
				check(r.Err)
				got++
			}
		})
		checkFlow(got, n)

	}
}

// repeated yields v n times.
func repeated[T any](v T, n int) iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := 0; i < n && yield(v); i++ {
		}
	}
}
