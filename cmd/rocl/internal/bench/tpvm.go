// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/subprocess"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

const (
	tpvmTaskMost    = 1.3                     // times rocl's own round trip between processes
	tpvmSpawnMost   = 10 * time.Millisecond   // for 100 threads
	tpvmProgramMost = 1000 * time.Millisecond // for 16 processes
	tpvmBarrierMost = 500 * time.Microsecond
	tpvmThreads     = 100
	tpvmPrograms    = 16
	tpvmMeeting     = 64 // threads that meet in the barrier
	tpvmTasks       = 4  // their processes, including this one
	tpvmBarriers    = 200
	tpvmLarge       = 1 << 20
	tpvmLarges      = 512 // messages of a round
)

// The tags of the messages between the two tasks.
const (
	tpvmDo = iota + 1
	tpvmPing
	tpvmPong
)

// tpvmPacked is the note of round trips.
const tpvmPacked = "the values are packed once; each Send copies them into memory of the library"

// tpvmCases measure package tpvm. The other task is in the peer.
var tpvmCases = []comparison{
	{bench: "tpvm", name: "tpvm tasks", set: overShared("always"), what: "a rocl message there and back", unit: "µs", goal: tpvmTaskMost, bare: messages("echo"), ours: tpvmTrips, finish: note(tpvmPacked)},
	{bench: "tpvm", name: "tpvm tasks", set: overShared("never"), what: "a rocl message there and back", unit: "µs", goal: tpvmTaskMost, bare: messages("echo"), ours: tpvmTrips, finish: note(tpvmPacked)},
	{bench: "tpvm", name: "tpvm bw", set: tpvmBand, what: "rocl messages", unit: "GB/s", goal: 1 / tpvmTaskMost, bare: clearAndPour, ours: tpvmPour},
	{bench: "tpvm", name: "tpvm threads", set: withinProcess, what: "a Go channel there and back", unit: "µs", goal: 2.2, bare: bareTrips("echo-channel"), ours: threadTrips, also: []side{messages("echo")}, finish: func(_ *pair, r *Result, t []*times) []*Result {
		r.Transport = ""
		r.Extra = fmt.Sprintf("%s; messages of rocl between contexts of one process: %.2f µs, %.2f times a channel", tpvmPacked, t[2].mid(), t[2].mid()/r.Raw)
		return nil
	}},
	{bench: "tpvm", set: overShared("adaptive"), unit: "µs", goal: 1, run: tpvmSpawns},
}

func overShared(poll string) func(*options) {
	return func(o *options) { o.transport, o.poll = "shm", poll }
}

func tpvmBand(o *options) {
	o.transport, o.poll, o.size, o.count = "shm", "adaptive", tpvmLarge, tpvmLarges
}

func withinProcess(o *options) { o.transport, o.poll, o.count = "inproc", "adaptive", 5*o.count }

// tpvmBench measures the cases of tpvm, and compares them with PVM.
func tpvmBench(ctx context.Context, o *options) ([]*Result, error) {
	all, err := compare("")(ctx, o)
	if err != nil {
		return nil, err
	}
	pvm, err := besidePVM(ctx, o, all)
	return append(all, pvm...), err
}

// enrolled returns the task of this process.
func enrolled(ctx context.Context, done *cleanup, opts ...tpvm.Option) (*tpvm.Task, error) {
	t, err := tpvm.Enrol(ctx, append(opts, tpvm.WithVM("bench"))...)
	if err == nil {
		done.add(func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // the other side may have ended
			defer cancel()
			_ = t.Exit(end)
		})
	}
	return t, err
}

// enrol makes the peer a task, and returns the task's identifier.
func (a *answerer) enrol() (id string, err error) {
	if a.task, err = enrolled(a.ctx, &a.cleanup, tpvm.WithContext(a.c)); err != nil {
		return "", err
	}
	return a.task.ID().String(), nil
}

// enrol makes this process and the peer tasks, once.
func (p *pair) enrol() (err error) {
	if p.task != nil {
		return nil
	}
	if p.task, err = enrolled(p.ctx, &p.cleanup, tpvm.WithContext(p.c), tpvm.WithExport("barrier", barriers)); err != nil {
		return err
	}
	id, err := p.ask(p.peer, "tpvm", 0)
	if err == nil {
		p.child, err = rocl.ParseGID(id)
	}
	return err
}

// tpvmReply replies to n messages with its own values, of the size of those of the first message.
func tpvmReply(ctx context.Context, t *tpvm.Thread, from tpvm.TID, n int) error {
	b := t.Buffer(pack.Raw)
	for i := range n {
		m, err := t.Recv(ctx, from, tpvmPing)
		if err != nil {
			return err
		}
		if from = m.From(); i == 0 {
			v := make([]float64, m.Len()/8)
			if err = pack.Unpack(&m.Reader, v, 1); err == nil {
				err = pack.Pack(b, v, 1)
			}
		}
		m.Release()
		if err != nil {
			return err
		}
		if err := t.Send(ctx, from, tpvmPong, b); err != nil {
			return err
		}
	}
	return nil
}

// tpvmSink receives n large messages, reads every byte in place, and answers once.
func (a *answerer) tpvmSink(n int) error {
	from := tpvm.AnyTask
	for range n {
		m, err := a.task.Recv(a.ctx, from, tpvmPing)
		if err != nil {
			return err
		}
		b, err := pack.View[byte](&m.Reader, m.Remaining())
		scan(b)
		from = m.From()
		m.Release()
		if err != nil {
			return err
		}
	}
	return a.task.Send(a.ctx, from, tpvmPong, nil)
}

// pong receives the answer of a task.
func (p *pair) pong(ctx context.Context, from tpvm.TID) error {
	m, err := p.task.Recv(ctx, from, tpvmPong)
	if err == nil {
		m.Release()
	}
	return err
}

// tpvmTrip returns a round trip with a thread that runs tpvmReply.
func (p *pair) tpvmTrip(to tpvm.TID) (func() error, error) {
	b := p.task.Buffer(pack.Raw)
	return func() error {
		if err := p.task.Send(p.msg, to, tpvmPing, b); err != nil {
			return err
		}
		return p.pong(p.msg, to)
	}, pack.Pack(b, make([]float64, p.Size/8), 1)
}

// tpvmTrips is a loop of messages between the tasks of two processes.
func tpvmTrips(p *pair) loop {
	return func(n int, t *times) error {
		if err := p.enrol(); err != nil {
			return err
		}
		trip, err := p.tpvmTrip(p.child)
		if err != nil {
			return err
		}
		return p.trips("tpvm-echo", trip)(n, t)
	}
}

// threadTrips is a loop of messages between two threads of this process.
func threadTrips(p *pair) loop {
	failed := make(chan error, 1)
	count := 0 // of the messages to which the thread replies
	return func(n int, t *times) (err error) {
		if count = n; p.task == nil {
			echo := func(_ context.Context, th *tpvm.Thread) error {
				failed <- tpvmReply(p.free, th, th.Parent(), count)
				return nil
			}
			if p.task, err = enrolled(p.ctx, &p.cleanup, tpvm.WithContext(p.c), tpvm.WithExport("echo", echo)); err != nil {
				return err
			}
		}
		ids, err := p.task.Spawn(p.ctx, "echo", 1)
		if err != nil {
			return err
		}
		trip, err := p.tpvmTrip(ids[0])
		if err != nil {
			return err
		}
		if err := t.batch(p.ctx, n, trip); err != nil {
			return err
		}
		return <-failed
	}
}

// clearAndPour is a loop of large messages of rocl. The sender writes all bytes.
func clearAndPour(p *pair) loop {
	return inGigabytes(p.pour("recv-scan", func(b []byte) { clear(b) }))
}

func inGigabytes(l loop) loop {
	return func(n int, t *times) error {
		err := l(n, t)
		t.each[len(t.each)-1] /= 1e9
		return err
	}
}

// tpvmPour is a loop of large messages that are packed InPlace from memory of the library.
func tpvmPour(p *pair) loop {
	return inGigabytes(func(n int, t *times) error {
		if err := p.enrol(); err != nil {
			return err
		}
		b := p.task.Buffer(pack.InPlace)
		send := func() error {
			m, err := p.c.BufferWait(p.ctx, p.Size)
			if err != nil {
				return err
			}
			clear(m.Bytes())
			err = b.PackBuffer(m)
			if err == nil {
				err = p.task.Send(p.ctx, p.child, tpvmPing, b)
			}
			b.Reset(pack.InPlace)
			m.Release()
			return err
		}
		return p.with("tpvm-sink", func(n int, t *times) error {
			return t.rate(float64(p.Size*n), func() error {
				if err := repeat(n, send); err != nil {
					return err
				}
				return p.pong(p.ctx, p.child)
			})
		})(n, t)
	})
}

// tpvmTask is the main function of a task that tpvmSpawns has spawned. It ends when its parent says
// so.
func tpvmTask(ctx context.Context, c config) (err error) {
	var done cleanup
	defer done.end()
	rc, err := c.open(ctx)
	if err != nil {
		return err
	}
	done.add(func() { rc.Close() })
	t, err := enrolled(ctx, &done, tpvm.WithContext(rc), tpvm.WithExport("barrier", barriers))
	if err == nil {
		_, err = t.Recv(ctx, t.Parent(), tpvmDo)
	}
	return err
}

// barriers waits in as many barriers of a group as its second argument says. It sends the duration
// of each to its parent, in nanoseconds: the time between two barriers that let this thread pass.
func barriers(ctx context.Context, th *tpvm.Thread) error {
	count, err := strconv.Atoi(th.Args()[1])
	if err != nil {
		return err
	}
	g, err := th.Join(ctx, th.Args()[0])
	if err != nil {
		return err
	}
	took := make([]int64, count)
	last := time.Time{}
	for i := range count + 1 { // before the first, the threads join
		if err := g.Barrier(ctx, tpvmMeeting); err != nil {
			return err
		}
		now := time.Now()
		if i > 0 {
			took[i-1] = int64(now.Sub(last))
		}
		last = now
	}
	if err := tpvm.SendValues(ctx, th, th.Parent(), tpvmPong, took); err != nil {
		return err
	}
	return g.Leave(ctx)
}

// tpvmSpawns measures the start of threads and of programs, and a barrier of threads of several
// processes.
func tpvmSpawns(p *pair, c *comparison) (rows []*Result, err error) {
	if p.task, err = enrolled(p.ctx, &p.cleanup, tpvm.WithContext(p.c), tpvm.WithExport("barrier", barriers), tpvm.WithExport("thread", func(ctx context.Context, th *tpvm.Thread) error {
		_, err := th.Recv(ctx, th.Parent(), tpvmDo)
		return err
	})); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	config := p.config
	config.Role = isTask
	arg, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	program := []tpvm.SpawnOption{tpvm.Programs(), tpvm.EndWithParent(), tpvm.Args("bench-peer", string(arg))}
	threads, err := p.spawns(tpvmThreads, "thread")
	if err != nil {
		return nil, err
	}
	programs, err := p.spawns(tpvmPrograms, exe, program...)
	if err != nil {
		return nil, err
	}
	tasks, err := p.task.Spawn(p.ctx, exe, tpvmTasks-1, program...)
	if err != nil {
		return nil, err
	}
	meetings, err := p.meetings()
	if err != nil {
		return nil, err
	}
	if err := p.task.Mcast(p.ctx, tasks, tpvmDo, nil); err != nil { // ends the tasks
		return nil, err
	}
	for _, row := range []struct {
		name  string
		t     *times
		most  time.Duration
		count int
		extra string
	}{
		{"tpvm spawn threads", threads, tpvmSpawnMost, tpvmThreads, fmt.Sprint(tpvmThreads, " at once")},
		{"tpvm spawn programs", programs, tpvmProgramMost, tpvmPrograms, fmt.Sprint(tpvmPrograms, " at once")},
		{"tpvm barrier", meetings, tpvmBarrierMost, p.o.rounds * tpvmBarriers, fmt.Sprintf("%d threads in %d processes", tpvmMeeting, tpvmTasks)},
	} {
		r := p.result(c, row.t, limit(float64(row.most.Microseconds())))
		if r.Bench, r.Size, r.Count, r.What, r.Extra = row.name, 0, row.count, "the allowed "+row.most.String(), row.extra; row.t != meetings {
			r.Transport, r.Poll = "", ""
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// spawns measures the start of n threads or programs at once.
func (p *pair) spawns(n int, name string, opts ...tpvm.SpawnOption) (*times, error) {
	took := newTimes()
	for range p.o.rounds {
		var ids []tpvm.TID
		if err := took.round(1, func() (err error) {
			ids, err = p.task.Spawn(p.ctx, name, n, opts...)
			return err
		}); err != nil {
			return nil, err
		}
		if _, err := p.task.Notify(p.ctx, tpvmPong, ids...); err != nil {
			return nil, err
		}
		if err := p.task.Mcast(p.ctx, ids, tpvmDo, nil); err != nil {
			return nil, err
		}
		for range ids { // waits until they have ended, before the next round
			if err := p.pong(p.ctx, tpvm.AnyTask); err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}

// meetings measures the barriers of threads that all tasks share evenly.
func (p *pair) meetings() (*times, error) {
	took := newTimes()
	for round := range p.o.rounds {
		threads, err := p.task.Spawn(p.ctx, "barrier", tpvmMeeting, tpvm.Args(fmt.Sprint("bench", round), strconv.Itoa(tpvmBarriers)))
		if err != nil {
			return nil, err
		}
		of := map[tpvm.TID]int{} // number of threads by task
		each := make([]int64, tpvmBarriers)
		for _, id := range threads { // all threads pass together: the figures are those of the last
			if of[id.Context()]++; of[id.Context()] > tpvmMeeting/tpvmTasks {
				return nil, fmt.Errorf("more than a share of %d threads was started in one task of %d", len(threads), tpvmTasks)
			}
			if _, _, err := tpvm.RecvValues(p.ctx, p.task.Thread, id, tpvmPong, each); err != nil {
				return nil, err
			}
		}
		if err := took.timed(len(each), 1, func() (d time.Duration, _ error) {
			d, each = time.Duration(each[0]), each[1:]
			return d, nil
		}); err != nil {
			return nil, err
		}
	}
	return took, nil
}

//go:embed pvm/pingpong.c
var pvmProgram []byte

// The paths of PVM 3.4 in Debian.
const (
	pvmRoot   = "/usr/lib/pvm3"
	pvmHeader = "/usr/include/pvm3.h"
)

// errNoPVM is returned when PVM is not installed.
var errNoPVM = errors.New("PVM 3.4 is not installed (Debian: pvm, pvm-dev and gcc)")

// measurePVM runs a separate PVM daemon, and measures messages between two tasks: the time of a
// round trip in microseconds, and the rate of large messages in bytes a second.
func measurePVM(ctx context.Context, size, count int) (trip, band float64, err error) {
	gcc, err := exec.LookPath("gcc")
	daemon, err2 := exec.LookPath("pvmd")
	_, err3 := os.Stat(pvmHeader)
	if errors.Join(err, err2, err3) != nil {
		return 0, 0, errNoPVM
	}
	dir, err := os.MkdirTemp("", "rocl-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	source, program := filepath.Join(dir, "pingpong.c"), filepath.Join(dir, "pingpong")
	if err := os.WriteFile(source, pvmProgram, 0o600); err != nil {
		return 0, 0, err
	}
	if out, err := exec.CommandContext(ctx, gcc, "-O2", "-o", program, source, "-lpvm3").CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("compiling the program of PVM: %w: %s", err, out)
	}
	env := append(os.Environ(), "PVM_ROOT="+pvmRoot, "PVM_TMP="+dir, "PVM_ALLOW_ROOT=1", "PVM_ARCH=LINUX64", "HOME="+dir)
	cmd := exec.CommandContext(ctx, daemon)
	cmd.Env, cmd.Dir, cmd.Stderr = env, dir, io.Discard
	d, err := subprocess.Start(cmd)
	if err != nil {
		return 0, 0, fmt.Errorf("starting PVM's daemon: %w", err)
	}
	defer d.Kill() // in case the program has not halted the daemon
	for {
		if m, _ := filepath.Glob(filepath.Join(dir, "pvmd.*")); len(m) > 0 {
			break
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return 0, 0, fmt.Errorf("PVM's daemon: %w", err)
		}
	}
	p := exec.CommandContext(ctx, program, program, strconv.Itoa(size), strconv.Itoa(count), strconv.Itoa(tpvmLarge), "256")
	p.Env, p.Dir, p.Stderr = env, dir, os.Stderr
	out, ended := p.Output() // the halt of PVM ends the program too
	if _, err := fmt.Sscan(string(out), &trip, &band); err != nil {
		return 0, 0, fmt.Errorf("the program of PVM says %q: %w", out, errors.Join(ended, err))
	}
	return trip, band, nil
}

// besidePVM compares the measured results with PVM.
func besidePVM(ctx context.Context, o *options, rs []*Result) (all []*Result, err error) {
	trip, band, err := measurePVM(ctx, o.size, min(o.count, 5000))
	if errors.Is(err, errNoPVM) {
		last := rs[len(rs)-1]
		last.Extra = strings.TrimPrefix(last.Extra+"; "+errNoPVM.Error(), "; ")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range rs {
		c := *r
		c.Bench, c.What = strings.Replace(r.Bench, "tpvm", "tpvm beside PVM:", 1), "PVM 3.4, direct route"
		switch {
		case r.Bench == "tpvm tasks":
			c.Raw, c.RawP99, c.Target = trip, 0, 0.1
			if r.Poll == "never" {
				c.Target = 1
			}
			c.Ratio = c.P50 / c.Raw
		case r.Bench == "tpvm bw":
			c.Raw, c.Target = band/1e9, 3
			c.Ratio = c.Rate / c.Raw
		default:
			continue
		}
		all = append(all, &c)
	}
	return all, nil
}
