// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// Tags of requests to the server of [BenchmarkInCall].
const (
	tagEcho uint64 = iota
	tagPull
	tagPush
	tagUsage
)

// A usage is what a process has used so far.
type usage struct {
	CPU      int64 // ns
	Threads  int64 // context switches that the kernel made
	Routines int64 // times that a goroutine began to run, an estimate
	Messages int64 // sent
	Wakeups  int64 // of waiting goroutines
	Mallocs  int64
}

func usageOf(c *rocl.Context) (u usage) {
	cpu, sleeps, preemptions, _ := posix.Usage()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	s := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(s)
	for _, n := range s[0].Value.Float64Histogram().Counts {
		u.Routines += 8 * int64(n) // the runtime counts one of eight
	}
	st := c.Stats()
	for _, n := range st.Sent {
		u.Messages += int64(n)
	}
	u.CPU, u.Threads, u.Wakeups, u.Mallocs = cpu.Nanoseconds(), sleeps+preemptions, int64(st.Wakeups), int64(ms.Mallocs)
	return u
}

// report reports what both sides have used since two earlier usages, for each of n operations.
func report(b *testing.B, before, after [2]usage) {
	per := func(f func(*usage) int64) float64 {
		var sum int64
		for i := range before {
			sum += f(&after[i]) - f(&before[i])
		}
		return float64(sum) / float64(b.N)
	}
	b.ReportMetric(per(func(u *usage) int64 { return u.CPU })/1e3, "cpu-µs/op")
	b.ReportMetric(per(func(u *usage) int64 { return u.Threads }), "switches/op")
	b.ReportMetric(per(func(u *usage) int64 { return u.Routines }), "goroutines/op")
	b.ReportMetric(per(func(u *usage) int64 { return u.Messages }), "messages/op")
	b.ReportMetric(per(func(u *usage) int64 { return u.Wakeups }), "wakeups/op")
	b.ReportMetric(per(func(u *usage) int64 { return u.Mallocs }), "mallocs/op")
}

// policies are the ways of waiting that the benchmark compares. With "never" the processor time
// has no polling in it, and so is that of the work.
var policies = map[string]rocl.PollPolicy{"adaptive": rocl.PollAdaptive, "always": rocl.PollAlways, "never": rocl.PollNever}

func inCallContext(ctx context.Context, sock, transport, poll string) (*rocl.Context, error) {
	tr := rocl.WithTransports(tcp.New())
	if transport == "shm" {
		tr = rocl.WithTransports(shm.New())
	}
	return rocl.Open(ctx, rocl.WithSocket(sock), tr, rocl.WithPoll(policies[poll]))
}

// inCallServer is the process of the server.
func inCallServer(sock, transport, poll string) {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	c, err := inCallContext(ctx, sock, transport, poll)
	must(err)
	ep, err := bulk.Open(ctx, c)
	must(err)
	me, err := c.Register(ctx, rocl.Attrs{"name": "incall"})
	must(err)
	memory := counting(16 << 20)
	fmt.Println("ready")
	must(me.Handle(ctx, func(m *rocl.Message) {
		switch m.Tag() {
		case tagPull, tagPush:
			var h bulk.Handle
			must(codec.Decode(m.Bytes(), &h))
			if m.Tag() == tagPull {
				_, err = ep.Pull(ctx, h, 0, memory[:h.Len()])
			} else {
				_, err = ep.Push(ctx, h, 0, memory[:h.Len()])
			}
			must(err)
			must(me.ReplyBytes(ctx, m, nil))
		case tagEcho:
			must(me.ReplyBytes(ctx, m, m.Bytes()))
		case tagUsage:
			u := usageOf(c)
			p, _ := binary.Append(nil, binary.LittleEndian, &u)
			must(me.ReplyBytes(ctx, m, p))
		}
	}))
}

// A program calls a server in another process. The server pulls from the program's memory, or
// pushes to it, and then replies. The processor time, the messages and the allocations are those of
// both processes together, and need no quiet machine.
func BenchmarkInCall(b *testing.B) {
	for _, transport := range []string{"tcp", "shm"} {
		for poll := range policies {
			b.Run(transport+"/"+poll, func(b *testing.B) { inCall(b, transport, poll) })
		}
	}
}

func inCall(b *testing.B, transport, poll string) {
	ctx := b.Context()
	sock := freeaddr.Socket(b)
	c := try.Get(inCallContext(ctx, sock, transport, poll))(b)
	b.Cleanup(func() { c.Close() })
	client := endpoint(b, c)
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), "ROCL_IN_CALL="+sock+" "+transport+" "+poll)
	server := try.Get(subprocess.Start(cmd))(b)
	b.Cleanup(server.Kill)
	try.OK(b, server.Expect(ctx, "ready"))
	f := try.Get(client.c.Find(ctx, rocl.Match{"name": "incall"}))(b)
	me := try.Get(client.c.Register(ctx, nil))(b)
	call := func(tag uint64, p []byte) (reply []byte) {
		m, err := me.CallBytes(ctx, f.ID, tag, p)
		if err != nil {
			b.Fatal(err)
		}
		defer m.Release()
		return append(reply, m.Bytes()...)
	}
	usages := func() (u [2]usage) {
		u[0] = usageOf(client.c)
		_, _ = binary.Decode(call(tagUsage, nil), binary.LittleEndian, &u[1])
		return u
	}
	run := func(name string, tag uint64, p []byte) {
		b.Run(name, func(b *testing.B) {
			for range 50 {
				call(tag, p)
			}
			before := usages()
			b.ResetTimer()
			for b.Loop() {
				call(tag, p)
			}
			d := b.Elapsed()
			report(b, before, usages())
			b.ReportMetric(float64(d)/float64(time.Microsecond)/float64(b.N), "µs/op")
			b.ReportMetric(0, "ns/op")
		})
	}
	run("echo/64", tagEcho, make([]byte, 64))
	mem := counting(16 << 20)
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		r := expose(b, client, bulk.ReadWrite, bulk.Bytes(mem[:n]))
		h := r.Handle()
		p, err := codec.Append(nil, &h)
		try.OK(b, err)
		run(fmt.Sprintf("pull/%d", n>>10), tagPull, p)
		run(fmt.Sprintf("push/%d", n>>10), tagPush, p)
		try.OK(b, r.Close())
	}
}
