// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	_ "embed"
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
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

const (
	tpvmTaskMost = 1.3 // times rocl's own round trip between processes
	tpvmMeeting  = 64  // threads that meet in a barrier
	tpvmTasks    = 4   // their processes, including this one
	tpvmBarriers = 200
	tpvmLarge    = 1 << 20
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
	{bench: "tpvm", name: "tpvm tasks", set: over("shm", "always"), what: "a rocl message there and back", unit: "µs", limits: []Limit{atMost("ratio", tpvmTaskMost)}, bare: messages("echo"), ours: tpvmTrips, finish: note(tpvmPacked)},
	{bench: "tpvm", name: "tpvm tasks", set: over("shm", "never"), what: "a rocl message there and back", unit: "µs", limits: []Limit{atMost("ratio", tpvmTaskMost)}, bare: messages("echo"), ours: tpvmTrips, finish: note(tpvmPacked)},
	{bench: "tpvm", name: "tpvm bw", set: tpvmBand, what: "rocl messages", unit: "GB/s", limits: []Limit{atLeast("ratio", 1/tpvmTaskMost)}, bare: clearAndPour, ours: tpvmPour},
	{bench: "tpvm", name: "tpvm threads", set: withinProcess, what: "a Go channel there and back", unit: "µs", limits: []Limit{atMost("ratio", 2.5, 2)}, bare: bareTrips("echo-channel"), ours: threadTrips, also: []side{messages("echo")}, finish: func(_ *pair, r *Result, t []*times) []*Result {
		r.Transport = ""
		r.Extra = fmt.Sprintf("%s; messages of rocl between contexts of one process: %.2f µs, %.2f times a channel", tpvmPacked, t[2].mid(), t[2].mid()/r.Raw)
		return nil
	}},
	{bench: "tpvm", role: isAlone, set: over("shm", "adaptive"), unit: "µs", limits: []Limit{atMost("ratio", 1)}, run: tpvmSpawns},
}

func tpvmBand(o *options) {
	o.transport, o.poll, o.size, o.count = "shm", "adaptive", tpvmLarge, 512
}

func withinProcess(o *options) { o.transport, o.poll, o.count = "inproc", "adaptive", 5*o.count }

// tpvmBench measures the cases of tpvm, and compares them with PVM.
func tpvmBench(ctx context.Context, o *options) []*Result {
	all := compare("")(ctx, o)
	return append(all, besidePVM(ctx, o, all)...)
}

// enrolled makes a context a task of this process.
func enrolled(ctx context.Context, done *cleanup, c *rocl.Context, opts ...tpvm.Option) *tpvm.Task {
	t := must(tpvm.Enrol(ctx, append(opts, tpvm.WithVM("bench"), tpvm.WithContext(c), tpvm.WithExport("barrier", barriers))...))
	done.add(func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // the other side may have ended
		defer cancel()
		_ = t.Exit(end)
	})
	return t
}

// enrol makes this process a task, and the peer.
func (p *pair) enrol(opts ...tpvm.Option) {
	p.task = enrolled(p.ctx, &p.cleanup, p.c, opts...)
	p.child = must(rocl.ParseGID(p.ask(p.peer, "tpvm", 0)))
}

// tpvmReply replies to n messages with its own values, of the size of those of the first message.
func tpvmReply(ctx context.Context, t *tpvm.Thread, from tpvm.TID, n int) {
	b := t.Buffer(pack.Raw)
	for i := range n {
		m := must(t.Recv(ctx, from, tpvmPing))
		if from = m.From(); i == 0 {
			v := make([]float64, m.Len()/8)
			check(pack.Unpack(&m.Reader, v, 1))
			check(pack.Pack(b, v, 1))
		}
		m.Release()
		check(t.Send(ctx, from, tpvmPong, b))
	}
}

// tpvmSink receives n large messages, reads every byte in place, and answers once.
func (a *answerer) tpvmSink(n int) {
	from := tpvm.AnyTask
	for range n {
		m := must(a.task.Recv(a.ctx, from, tpvmPing))
		scan(must(pack.View[byte](&m.Reader, m.Remaining())))
		from = m.From()
		m.Release()
	}
	check(a.task.Send(a.ctx, from, tpvmPong, nil))
}

// pong receives the answer of a task.
func (p *pair) pong(ctx context.Context, from tpvm.TID) {
	must(p.task.Recv(ctx, from, tpvmPong)).Release()
}

// tpvmTrip returns a round trip with a thread that runs tpvmReply.
func (p *pair) tpvmTrip(to tpvm.TID) func() {
	b := p.task.Buffer(pack.Raw)
	check(pack.Pack(b, make([]float64, p.Size/8), 1))
	return func() {
		check(p.task.Send(p.msg, to, tpvmPing, b))
		p.pong(p.msg, to)
	}
}

// tpvmTrips is a loop of messages between the tasks of two processes.
func tpvmTrips(p *pair) loop {
	p.enrol()
	return p.trips("tpvm-echo", p.tpvmTrip(p.child))
}

// threadTrips is a loop of messages between two threads of this process.
func threadTrips(p *pair) loop {
	failed := make(chan error, 1)
	count := 0 // of the messages to which the thread replies
	p.enrol(tpvm.WithExport("echo", func(_ context.Context, th *tpvm.Thread) error {
		failed <- attempt(func() { tpvmReply(p.free, th, th.Parent(), count) })
		return nil
	}))
	return func(n int, t *times) {
		count = n
		t.batch(p.ctx, n, p.tpvmTrip(must(p.task.Spawn(p.ctx, "echo", 1))[0]))
		check(<-failed)
	}
}

// clearAndPour is a loop of large messages of rocl. The sender writes all bytes.
func clearAndPour(p *pair) loop {
	return inGigabytes(p.pour("recv-scan", func(b []byte) { clear(b) }))
}

func inGigabytes(l loop) loop {
	return func(n int, t *times) {
		l(n, t)
		t.each[len(t.each)-1] /= 1e9
	}
}

// tpvmPour is a loop of large messages that are packed InPlace from memory of the library.
func tpvmPour(p *pair) loop {
	p.enrol()
	b := p.task.Buffer(pack.InPlace)
	return inGigabytes(p.with("tpvm-sink", func(n int, t *times) {
		t.rate(p.Size*n, func() {
			for range n {
				m := must(p.c.BufferWait(p.ctx, p.Size))
				clear(m.Bytes())
				check(b.PackBuffer(m))
				check(p.task.Send(p.ctx, p.child, tpvmPing, b))
				b.Reset(pack.InPlace)
				m.Release()
			}
			p.pong(p.ctx, p.child)
		})
	}))
}

// obey is what a task does that tpvmSpawns has spawned. It ends when its parent says so.
func (a *answerer) obey() {
	a.open()
	t := enrolled(a.ctx, &a.cleanup, a.c)
	must(t.Recv(a.ctx, t.Parent(), tpvmDo))
}

// barriers waits in as many barriers of a group as its second argument says. It sends the duration
// of each to its parent, in nanoseconds: the time between two barriers that let this thread pass.
func barriers(ctx context.Context, th *tpvm.Thread) error {
	return attempt(func() {
		g := must(th.Join(ctx, th.Args()[0]))
		took := make([]int64, must(strconv.Atoi(th.Args()[1])))
		check(g.Barrier(ctx, tpvmMeeting)) // waits until all threads have joined
		last := time.Now()
		for i := range took {
			check(g.Barrier(ctx, tpvmMeeting))
			now := time.Now()
			took[i], last = int64(now.Sub(last)), now
		}
		check(tpvm.SendValues(ctx, th, th.Parent(), tpvmPong, took))
		check(g.Leave(ctx))
	})
}

// tpvmSpawns measures the start of threads and of programs, and a barrier of threads of several
// processes.
func tpvmSpawns(p *pair, c *comparison) (rows []*Result) {
	p.task = enrolled(p.ctx, &p.cleanup, p.c, tpvm.WithExport("thread", func(ctx context.Context, th *tpvm.Thread) error {
		_, err := th.Recv(ctx, th.Parent(), tpvmDo)
		return err
	}))
	exe, own := must(os.Executable()), p.config
	own.Role = isTask
	program := []tpvm.SpawnOption{tpvm.Programs(), tpvm.EndWithParent(), tpvm.Args(own.args()...)}
	add := func(name string, t *times, most time.Duration, count int, extra string) *Result {
		r := p.result(c, t, limit(float64(most.Microseconds())))
		r.Bench, r.Transport, r.Poll, r.Size, r.Count, r.What, r.Extra = name, "", "", 0, count, "the allowed "+most.String(), extra
		rows = append(rows, r)
		return r
	}
	const threads, programs, rest = 100, 16, tpvmTasks - 1
	add("tpvm spawn threads", p.spawns(threads, "thread"), 10*time.Millisecond, threads, fmt.Sprint(threads, " at once"))
	add("tpvm spawn programs", p.spawns(programs, exe, program...), time.Second, programs, fmt.Sprint(programs, " at once"))
	tasks := must(p.task.Spawn(p.ctx, exe, rest, program...))
	r := add("tpvm barrier", p.meetings(), 500*time.Microsecond, p.o.rounds*tpvmBarriers, fmt.Sprintf("%d threads in %d processes", tpvmMeeting, tpvmTasks))
	r.Transport, r.Poll = p.Transport, p.Poll
	p.dismiss(tasks)
	return rows
}

// spawns measures the start of n threads or programs at once.
func (p *pair) spawns(n int, name string, opts ...tpvm.SpawnOption) *times {
	took := newTimes()
	for range p.o.rounds {
		var ids []tpvm.TID
		took.round(1, func() { ids = must(p.task.Spawn(p.ctx, name, n, opts...)) })
		p.dismiss(ids)
	}
	return took
}

// dismiss ends threads or programs, and waits until they have left.
func (p *pair) dismiss(ids []tpvm.TID) {
	must(p.task.Notify(p.ctx, tpvmPong, ids...))
	check(p.task.Mcast(p.ctx, ids, tpvmDo, nil))
	for range ids {
		p.pong(p.ctx, tpvm.AnyTask)
	}
}

// meetings measures the barriers of threads that all tasks share evenly.
func (p *pair) meetings() *times {
	took := newTimes()
	for round := range p.o.rounds {
		of := map[tpvm.TID]int{} // number of threads by task
		each := make([]int64, tpvmBarriers)
		// All threads pass together: the figures are those of the last.
		for _, id := range must(p.task.Spawn(p.ctx, "barrier", tpvmMeeting, tpvm.Args(fmt.Sprint("bench", round), strconv.Itoa(tpvmBarriers)))) {
			of[id.Context()]++
			if _, _, err := tpvm.RecvValues(p.ctx, p.task.Thread, id, tpvmPong, each); err != nil || of[id.Context()] > tpvmMeeting/tpvmTasks {
				check(fmt.Errorf("threads of a barrier, %d in one of %d tasks: %w", of[id.Context()], tpvmTasks, err))
			}
		}
		took.timed(len(each), 1, func() (d time.Duration) {
			d, each = time.Duration(each[0]), each[1:]
			return d
		})
	}
	return took
}

//go:embed pvm/pingpong.c
var pvmProgram []byte

// pvmHeader is a file of PVM 3.4 in Debian.
const pvmHeader = "/usr/include/pvm3.h"

// measurePVM runs a separate PVM daemon, and measures messages between two tasks: the time of a
// round trip in microseconds, and the rate of large messages in bytes a second.
func measurePVM(ctx context.Context, size, count int) (trip, band float64) {
	dir := must(os.MkdirTemp("", "rocl-bench-"))
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	source, program := filepath.Join(dir, "pingpong.c"), filepath.Join(dir, "pingpong")
	check(os.WriteFile(source, pvmProgram, 0o600))
	if out, err := exec.CommandContext(ctx, "gcc", "-O2", "-o", program, source, "-lpvm3").CombinedOutput(); err != nil {
		check(fmt.Errorf("compiling the program of PVM: %w: %s", err, out))
	}
	cmd, p := exec.CommandContext(ctx, "pvmd"), exec.Command(program, program, strconv.Itoa(size), strconv.Itoa(count), strconv.Itoa(tpvmLarge), "256")
	cmd.Env = append(os.Environ(), "PVM_ROOT=/usr/lib/pvm3", "PVM_TMP="+dir, "PVM_ALLOW_ROOT=1", "PVM_ARCH=LINUX64", "HOME="+dir)
	cmd.Dir, cmd.Stderr, p.Env, p.Dir, p.Stderr = dir, io.Discard, cmd.Env, dir, os.Stderr
	d := must(subprocess.Start(cmd))
	defer d.Kill() // in case the program has not halted the daemon
	var addr []byte
	for len(addr) == 0 { // until the daemon has written its address
		sleep(ctx, 10*time.Millisecond)
		m, _ := filepath.Glob(filepath.Join(dir, "pvmd.*"))
		addr, _ = os.ReadFile(strings.Join(m, ""))
	}
	out, _, _, ended := subprocess.Run(ctx, p) // in a process group of its own: the halt of PVM ends the program too
	if _, err := fmt.Sscan(out, &trip, &band); err != nil {
		check(fmt.Errorf("the program of PVM says %q: %w", out, errors.Join(ended, err)))
	}
	return trip, band
}

// besidePVM compares the measured results with PVM.
func besidePVM(ctx context.Context, o *options, rs []*Result) (all []*Result) {
	_, err := exec.LookPath("gcc")
	_, err2 := exec.LookPath("pvmd")
	_, err3 := os.Stat(pvmHeader)
	if errors.Join(err, err2, err3) != nil {
		rs[len(rs)-1].Extra += "; PVM 3.4 is not installed (Debian: pvm, pvm-dev and gcc)"
		return nil
	}
	trip, band := measurePVM(ctx, o.size, min(o.count, 5000))
	for _, r := range rs {
		c := *r
		c.Bench, c.What, c.RawP99 = strings.Replace(r.Bench, "tpvm", "tpvm beside PVM:", 1), "PVM 3.4, direct route", 0
		switch {
		case r.Bench == "tpvm tasks" && r.Poll == "always":
			c.Raw, c.Ratio, c.Limits = trip, c.P50/trip, []Limit{atMost("ratio", 0.1)}
		case r.Bench == "tpvm tasks":
			c.Raw, c.Ratio, c.Limits = trip, c.P50/trip, []Limit{atMost("ratio", 1)}
		case r.Bench == "tpvm bw":
			c.Raw, c.Ratio, c.Limits = band/1e9, c.Rate/(band/1e9), []Limit{atLeast("ratio", 3)}
		default:
			continue
		}
		all = append(all, &c)
	}
	return all
}
