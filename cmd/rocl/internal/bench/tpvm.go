// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The targets of the rows of tpvm.
const (
	tpvmTaskMost    = 1.3                     // times rocl's own round trip between processes
	tpvmThreadMost  = 2.2                     // times the round trip over a Go channel, between threads of a process
	tpvmSpawnMost   = 10 * time.Millisecond   // for 100 threads
	tpvmProgramMost = 1000 * time.Millisecond // for 16 processes
	tpvmThreads     = 100
	tpvmPrograms    = 16
	tpvmLarge       = 1 << 20
)

// The tags of the messages between the two tasks.
const (
	tpvmHello = iota // from the child: the identifier of its bare resource
	tpvmDo           // from the parent: a task, and how often to do it
	tpvmPing
	tpvmPong
)

// The tasks of the child.
const (
	tpvmEcho int32 = iota // reply to tasks' messages
	tpvmBare              // reply to messages of rocl
	tpvmSink              // receive large messages of tasks, and acknowledge the last
	tpvmSinkBare
	tpvmEnd
)

// tpvmBench measures package tpvm, row by row.
func tpvmBench(ctx context.Context, o *options) (*Result, error) {
	rows := []func(context.Context, *options) ([]*Result, error){tpvmTasks, tpvmThreadTrip, tpvmSpawns, tpvmBarrier}
	var all []*Result
	for _, row := range rows {
		rs, err := row(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, rs...)
	}
	pvm, err := besidePVM(ctx, o, all)
	if err != nil {
		return nil, err
	}
	all = append(all, pvm...)
	for i := range all[1:] {
		all[i].Also = all[i+1]
	}
	return all[0], nil
}

// A tpvmPair is two tasks in two processes.
type tpvmPair struct {
	t     *tpvm.Task
	child tpvm.TID
	me    *rocl.Resource // a resource for the bare round trips,
	bare  rocl.GID       // and that of the child
}

// tpvmOptions returns the options of the contexts of both tasks.
func tpvmOptions(sock string, policy rocl.PollPolicy) []rocl.Option {
	return []rocl.Option{rocl.WithSocket(sock), rocl.WithPoll(policy), rocl.WithTransports(inproc.New(), shm.New()), mailbox(tpvmLarge)}
}

// openTPVM enrols this process, and starts the other task.
func openTPVM(ctx context.Context, poll string) (p *tpvmPair, closeAll func(), err error) {
	policy, err := (&options{poll: poll}).policy()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "rocl-bench-")
	if err != nil {
		return nil, nil, err
	}
	p = new(tpvmPair)
	closeAll = func() {
		if p.t != nil {
			if !p.child.IsZero() {
				_ = p.do(context.Background(), tpvmEnd, 0)
			}
			end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = p.t.Exit(end)
		}
		_ = os.RemoveAll(dir)
	}
	if err := p.open(ctx, filepath.Join(dir, "directory.sock"), poll, policy); err != nil {
		closeAll()
		return nil, nil, err
	}
	return p, closeAll, nil
}

func (p *tpvmPair) open(ctx context.Context, sock, poll string, policy rocl.PollPolicy) (err error) {
	if p.t, err = tpvm.Enrol(ctx, tpvm.WithVM("bench"), tpvm.WithRocl(tpvmOptions(sock, policy)...)); err != nil {
		return err
	}
	if p.me, err = p.t.Rocl().Register(ctx, rocl.Attrs{"bench": "parent"}); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ids, err := p.t.Spawn(ctx, exe, 1, tpvm.Programs(), tpvm.EndWithParent(), tpvm.Args("bench-task", sock, poll, p.me.ID().String()))
	if err != nil {
		return err
	}
	p.child = ids[0]
	m, err := p.t.Recv(ctx, p.child, tpvmHello)
	if err != nil {
		return err
	}
	defer m.Release()
	id, err := m.UnpackString()
	if err == nil {
		p.bare, err = rocl.ParseGID(id)
	}
	return err
}

// do starts the child on a task.
func (p *tpvmPair) do(ctx context.Context, what int32, n int) error {
	b := p.t.Buffer(pack.Raw)
	if err := pack.Pack(b, []int32{what, int32(n)}, 1); err != nil {
		return err
	}
	return p.t.Send(ctx, p.child, tpvmDo, b)
}

// tpvmTask is the command of the other task.
func tpvmTask(ctx context.Context, args []string) error {
	policy, err := (&options{poll: args[1]}).policy()
	if err != nil {
		return err
	}
	t, err := tpvm.Enrol(ctx, exportBarrier(), tpvm.WithRocl(tpvmOptions(args[0], policy)...))
	if err != nil {
		return err
	}
	err = tpvmServe(ctx, t, args[2])
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // the parent, and with it the directory, may have ended
	defer cancel()
	return errors.Join(err, t.Exit(end))
}

func tpvmServe(ctx context.Context, t *tpvm.Task, peer string) error {
	if peer == "" { // started by the bench of spawning only
		_, err := t.Recv(ctx, t.Parent(), tpvmDo)
		return err
	}
	to, err := rocl.ParseGID(peer)
	if err != nil {
		return err
	}
	bare, err := t.Rocl().Register(ctx, rocl.Attrs{"bench": "child"})
	if err != nil {
		return err
	}
	b := t.Buffer(pack.Default)
	if err := b.PackString(bare.ID().String()); err != nil {
		return err
	}
	if err := t.Send(ctx, t.Parent(), tpvmHello, b); err != nil {
		return err
	}
	var do [2]int32
	for {
		m, err := t.Recv(ctx, t.Parent(), tpvmDo)
		if err != nil {
			return err
		}
		err = pack.Unpack(&m.Reader, do[:], 1)
		m.Release()
		if err != nil {
			return err
		}
		n := int(do[1])
		switch do[0] {
		case tpvmEnd:
			return nil
		case tpvmEcho:
			err = tpvmReply(ctx, t.Thread, t.Parent(), n)
		case tpvmBare:
			err = echo(ctx, t.Rocl(), bare, counted(n), nil)
		case tpvmSink:
			for range n {
				if m, err = t.Recv(ctx, t.Parent(), tpvmPing); err != nil {
					break
				}
				err = readBytes(&m.Reader)
				m.Release()
				if err != nil {
					break
				}
			}
			if err == nil {
				err = t.Send(ctx, t.Parent(), tpvmPong, nil)
			}
		case tpvmSinkBare:
			for range n {
				m, err := bare.Recv(ctx)
				if err != nil {
					return err
				}
				bytes.IndexByte(m.Bytes(), 1)
				m.Release()
			}
			err = bare.SendBytes(ctx, to, 0, nil)
		}
		if err != nil {
			return err
		}
	}
}

// readBytes reads all bytes of a message in place.
func readBytes(r *pack.Reader) error {
	p, err := pack.View[byte](r, r.Remaining())
	bytes.IndexByte(p, 1)
	return err
}

// tpvmPacked is the note of round trips.
const tpvmPacked = "the values are packed once; each Send copies them into memory of the library"

// tpvmReply replies to n messages with its own values, of the size of those of the first message.
func tpvmReply(ctx context.Context, t *tpvm.Thread, to tpvm.TID, n int) error {
	b := t.Buffer(pack.Raw)
	for i := range n {
		m, err := t.Recv(ctx, to, tpvmPing)
		if err != nil {
			return err
		}
		if i == 0 {
			v := make([]float64, m.Len()/8)
			if err = pack.Unpack(&m.Reader, v, 1); err == nil {
				err = pack.Pack(b, v, 1)
			}
		}
		m.Release()
		if err != nil {
			return err
		}
		if err := t.Send(ctx, to, tpvmPong, b); err != nil {
			return err
		}
	}
	return nil
}

// tpvmTrip returns a function that sends size bytes to a thread that runs tpvmReply, and receives
// as many.
func tpvmTrip(ctx context.Context, t *tpvm.Thread, to tpvm.TID, size int) (func() error, error) {
	b := t.Buffer(pack.Raw)
	return func() error {
		if err := t.Send(ctx, to, tpvmPing, b); err != nil {
			return err
		}
		m, err := t.Recv(ctx, to, tpvmPong)
		if err != nil {
			return err
		}
		m.Release()
		return nil
	}, pack.Pack(b, make([]float64, size/8), 1)
}

// tpvmTasks measures messages between two processes.
func tpvmTasks(ctx context.Context, o *options) (rs []*Result, err error) {
	for _, poll := range []string{"always", "never", "adaptive"} {
		p, closeAll, err := openTPVM(ctx, poll)
		if err != nil {
			return nil, err
		}
		var r *Result
		if poll == "adaptive" {
			r, err = p.bandwidth(ctx, o, poll)
		} else {
			r, err = p.trips(ctx, o, poll)
		}
		closeAll()
		if err != nil {
			return nil, err
		}
		rs = append(rs, r)
	}
	return rs, nil
}

func (p *tpvmPair) trips(ctx context.Context, o *options, poll string) (*Result, error) {
	trip, err := tpvmTrip(ctx, p.t.Thread, p.child, o.size)
	if err != nil {
		return nil, err
	}
	bare := func() error { return pingPong(ctx, p.t.Rocl(), p.me, p.bare, o.size) }
	var a, b *times
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		n := o.count
		if round < 0 {
			n = min(n, 500) // warm up
		}
		if round <= 0 {
			a, b = newTimes(), newTimes()
		}
		if err := p.do(ctx, tpvmBare, n); err != nil {
			return nil, err
		}
		if err := a.round(n, bare); err != nil {
			return nil, err
		}
		if err := p.do(ctx, tpvmEcho, n); err != nil {
			return nil, err
		}
		before := mallocs()
		if err := b.round(n, trip); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
	}
	r := &Result{Bench: "tpvm tasks", Transport: "shm", Size: o.size, Poll: poll, Count: o.count * o.rounds, Unit: "µs",
		What: "a rocl message there and back", P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: tpvmTaskMost, Allocs: allocs, Extra: tpvmPacked}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// bandwidth measures large messages in one direction, which are packed InPlace from memory of the
// library. The sender writes all bytes, and the receiver reads them.
func (p *tpvmPair) bandwidth(ctx context.Context, o *options, poll string) (*Result, error) {
	const n = 512
	b := p.t.Buffer(pack.InPlace)
	trip := func() error {
		m, err := p.t.Rocl().BufferWait(ctx, tpvmLarge)
		if err != nil {
			return err
		}
		clear(m.Bytes())
		err = b.PackBuffer(m)
		if err == nil {
			err = p.t.Send(ctx, p.child, tpvmPing, b)
		}
		b.Reset(pack.InPlace)
		m.Release()
		return err
	}
	bare := func() error {
		m, err := p.t.Rocl().BufferWait(ctx, tpvmLarge)
		if err != nil {
			return err
		}
		clear(m.Bytes())
		if err := p.me.Send(ctx, p.bare, 0, m); err != nil {
			m.Release()
			return err
		}
		return nil
	}
	rate := func(what int32, f func() error, last func() error) (float64, error) {
		if err := p.do(ctx, what, n); err != nil {
			return 0, err
		}
		start := time.Now()
		for range n {
			if err := f(); err != nil {
				return 0, err
			}
		}
		err := last()
		return n * tpvmLarge / time.Since(start).Seconds() / 1e9, err
	}
	var raw, ours []float64
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		r, err := rate(tpvmSinkBare, bare, func() error {
			m, err := p.me.Recv(ctx)
			if err == nil {
				m.Release()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		before := mallocs()
		q, err := rate(tpvmSink, trip, func() error {
			m, err := p.t.Recv(ctx, p.child, tpvmPong)
			if err == nil {
				m.Release()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if round >= 0 {
			allocs = (mallocs() - before) / n
			raw, ours = append(raw, r), append(ours, q)
		}
	}
	r := &Result{Bench: "tpvm bw", Transport: "shm", Size: tpvmLarge, Poll: poll, Count: n * o.rounds, Unit: "GB/s", What: "rocl messages",
		Rate: median(ours), Raw: median(raw), Target: 1 / tpvmTaskMost, AtLeast: true, Allocs: allocs}
	r.Ratio = r.Rate / r.Raw
	return r, nil
}

// tpvmThreadTrip measures messages between two threads of a process, beside a Go channel.
func tpvmThreadTrip(ctx context.Context, o *options) ([]*Result, error) {
	dir, err := os.MkdirTemp("", "rocl-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	t, err := tpvm.Enrol(ctx, tpvm.WithVM("bench"), tpvm.WithRocl(rocl.WithSocket(filepath.Join(dir, "directory.sock")), rocl.WithTransports(inproc.New())))
	if err != nil {
		return nil, err
	}
	defer t.Exit(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	n := 0 // number of messages to which the thread replies
	if _, err := t.Export(ctx, "echo", func(ctx context.Context, th *tpvm.Thread) error {
		failed <- tpvmReply(context.Background(), th, th.Parent(), n)
		return nil
	}); err != nil {
		return nil, err
	}
	free := context.Background() // as in rtt, a message is not cancelled
	count := o.count * 5
	var a, b *times
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		n = count
		if round < 0 {
			n = min(count, 500) // warm up
		}
		if round <= 0 {
			a, b = newTimes(), newTimes()
		}
		if err := channelTrips(ctx, a, n); err != nil {
			return nil, err
		}
		ids, err := t.Spawn(ctx, "echo", 1)
		if err != nil {
			return nil, err
		}
		trip, err := tpvmTrip(free, t.Thread, ids[0], o.size)
		if err != nil {
			return nil, err
		}
		before := mallocs()
		if err := b.batch(ctx, n, trip); err != nil {
			return nil, err
		}
		if err := <-failed; err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
	}
	r := &Result{Bench: "tpvm threads", Size: o.size, Poll: "adaptive", Count: count * o.rounds, Unit: "µs", What: "a Go channel there and back",
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: tpvmThreadMost, Allocs: allocs}
	own, err := rttInproc(ctx, &options{transport: "inproc", size: o.size, poll: "adaptive", count: count, rounds: 1})
	if err != nil {
		return nil, err
	}
	r.Extra = fmt.Sprintf("%s; messages of rocl between contexts of one process: %.2f µs, %.2f times a channel", tpvmPacked, own.P50, own.Ratio)
	r.Ratio = r.P50 / r.Raw
	return []*Result{r}, nil
}

// channelTrips measures a pointer that goes there and back over channels.
func channelTrips(ctx context.Context, t *times, n int) error {
	var msg [64]byte
	to, fro := make(chan *[64]byte), make(chan *[64]byte)
	var wg sync.WaitGroup
	wg.Go(func() {
		for m := range to {
			fro <- m
		}
	})
	err := t.batch(ctx, n, func() error { to <- &msg; <-fro; return nil })
	close(to)
	wg.Wait()
	return err
}

// tpvmSpawns measures the start of threads and of programs.
func tpvmSpawns(ctx context.Context, o *options) (rs []*Result, err error) {
	dir, err := os.MkdirTemp("", "rocl-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "directory.sock")
	t, err := tpvm.Enrol(ctx, tpvm.WithVM("bench"), tpvm.WithRocl(tpvmOptions(sock, rocl.PollAdaptive)...))
	if err != nil {
		return nil, err
	}
	defer t.Exit(context.WithoutCancel(ctx))
	if _, err := t.Export(ctx, "thread", func(ctx context.Context, th *tpvm.Thread) error {
		_, err := th.Recv(ctx, th.Parent(), tpvmDo)
		return err
	}); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, row := range []struct {
		what, name string
		n          int
		most       time.Duration
		opts       []tpvm.SpawnOption
	}{
		{"tpvm spawn threads", "thread", tpvmThreads, tpvmSpawnMost, nil},
		{"tpvm spawn programs", exe, tpvmPrograms, tpvmProgramMost, []tpvm.SpawnOption{tpvm.Programs(), tpvm.EndWithParent(), tpvm.Args("bench-task", sock, "adaptive", "")}},
	} {
		took := newTimes()
		for range o.rounds {
			start := time.Now()
			ids, err := t.Spawn(ctx, row.name, row.n, row.opts...)
			d := time.Since(start)
			if err != nil {
				return nil, err
			}
			if err := took.timed(1, func() (time.Duration, error) { return d, nil }); err != nil {
				return nil, err
			}
			if _, err := t.Notify(ctx, tpvmPong, ids...); err != nil {
				return nil, err
			}
			if err := t.Mcast(ctx, ids, tpvmDo, nil); err != nil {
				return nil, err
			}
			for range ids { // waits until they have ended, before the next round
				m, err := t.Recv(ctx, tpvm.AnyTask, tpvmPong)
				if err != nil {
					return nil, err
				}
				m.Release()
			}
		}
		most := float64(row.most.Microseconds())
		rs = append(rs, &Result{Bench: row.what, Count: row.n, Unit: "µs", What: "the allowed " + row.most.String(),
			P50: took.p50(), P99: took.p99(), Raw: most, Ratio: took.p50() / most, Target: 1, Extra: strconv.Itoa(row.n) + " at once"})
	}
	return rs, nil
}

// tpvmCommand is the hidden command of the other task.
func tpvmCommand() *cobra.Command {
	return &cobra.Command{
		Use: "bench-task SOCKET POLL RESOURCE", Hidden: true, Args: cobra.ExactArgs(3),
		Short: "The other task of bench tpvm; started by bench",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tpvmTask(cmd.Context(), args); err != nil {
				return fmt.Errorf("bench task: %w", err)
			}
			return nil
		},
	}
}
