// SPDX-License-Identifier: Apache-2.0

package work_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/work"
	"go.uber.org/goleak"
)

// TestMain runs the tests, or a worker if a test has started this process for that.
func TestMain(m *testing.M) {
	if socket := os.Getenv("WORK_TEST_SOCKET"); socket != "" {
		if err := workerMain(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// workerMain works until SIGTERM.
func workerMain(socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := rocl.Open(ctx, rocl.WithSocket(socket), rocl.JoinOnly())
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("ready")
	return work.Serve(ctx, c, rocl.Attrs{"job": "test"}, func(_ context.Context, n int) (int, error) {
		return digest(n), nil
	}, work.Handlers(2))
}

// digest takes some microseconds.
func digest(n int) int {
	for i := range 2000 {
		n += i ^ n>>3
	}
	return n
}

// processes are workers on the node of a queue.
type processes struct {
	*testing.T
	socket string
	crew   []*subprocess.Process
	q      *work.Queue[int, int]
	kills  bool // workers are killed, with what was sent to them
}

// newProcesses starts n workers and opens a queue.
func newProcesses(t *testing.T, n int, o ...work.Option) *processes {
	p := &processes{T: t, socket: filepath.Join(t.TempDir(), "s")}
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(p.socket)))(t)
	t.Cleanup(func() {
		if err := c.Close(); !p.kills || !errors.Is(err, rocl.ErrGone) {
			try.Check(t, err)
		}
	})
	for range n {
		p.crew = append(p.crew, p.start())
	}
	p.q = try.Get(work.Open[int, int](t.Context(), c, rocl.Match{"job": "test"}, o...))(t)
	t.Cleanup(func() { try.Check(t, p.q.Close()) })
	return p
}

func (p *processes) start() *subprocess.Process {
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), "WORK_TEST_SOCKET="+p.socket)
	q := try.Get(subprocess.Start(cmd))(p.T)
	p.Cleanup(q.Kill)
	try.OK(p.T, q.Expect(p.Context(), "ready"))
	return q
}

// run does n tasks and calls fault every so many results.
func (p *processes) run(n, every int, fault func()) {
	p.Helper()
	seen, got := make([]bool, n), 0
	for r, err := range p.q.Do(p.Context(), numbers(n)) {
		try.OK(p.T, err)
		try.OK(p.T, r.Err)
		if seen[r.Task] || r.Out != digest(r.Task) {
			p.Fatalf("a task came twice or wrongly: %+v", r)
		}
		seen[r.Task] = true
		if got++; got%every == 0 {
			fault()
		}
	}
	try.Equal(p.T, got, n)
}

// Promise (Package work): When worker processes are killed and stopped at random, the result of
// each task comes exactly once.
func TestKills(t *testing.T) {
	p := newProcesses(t, 3, work.Attempts(1000), work.Silence(time.Second))
	p.kills = true
	killed := 0
	p.run(20_000, 2000, func() {
		k := rand.IntN(len(p.crew))
		q := p.crew[k]
		if killed++; killed%3 > 0 {
			q.Signal(syscall.SIGKILL)
			p.crew[k] = p.start()
			return
		}
		q.Signal(posix.SIGSTOP)
		time.AfterFunc(rand.N(2*time.Second), func() { q.Signal(posix.SIGCONT) })
	})
	t.Logf("%+v", p.q.Stats()) // on a busy machine a victim may have nothing in hand; TestSimulated holds that some have
}

// Promise (Package work): Worker processes that get SIGTERM, one after another, lose no task and do
// none twice.
func TestTerminations(t *testing.T) {
	p := newProcesses(t, 2)
	p.run(10_000, 2000, func() {
		q := p.crew[0]
		q.Signal(syscall.SIGTERM)
		p.crew = append(p.crew[1:], p.start())
		try.OK(t, q.Wait())
	})
	s := p.q.Stats() // that tasks are given back is held by TestLeave: a worker may have none left when the signal comes
	t.Logf("%+v", s)
	try.Equal(t, s.Lost, 0)
}
