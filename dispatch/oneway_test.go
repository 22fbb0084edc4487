// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the processor time of the calling thread.
func threadTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// The processor time of a message of 64 bytes, apart for the sender and the receiver. One goroutine
// is both, on one thread: it sends a burst, and then receives it. So load of the machine changes
// the figures little.
func BenchmarkOneWay(b *testing.B) {
	const burst = 400
	for name, open := range map[string]func(b *testing.B) (*Flow, *Mailbox){
		"shm": func(b *testing.B) (*Flow, *Mailbox) { return oneWay(b, "shm", false) },
		"tcp": func(b *testing.B) (*Flow, *Mailbox) { return oneWay(b, "tcp", false) },
		"own": func(b *testing.B) (*Flow, *Mailbox) { return oneWay(b, "shm", true) },
	} {
		b.Run(name, func(b *testing.B) {
			f, m := open(b)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ctx := context.Background()
			var p [64]byte
			var send, recv time.Duration
			for b.Loop() {
				t0 := threadTime(b)
				for range burst {
					if err := f.SendBytes(ctx, 1, 7, p[:]); err != nil {
						b.Fatal(err)
					}
				}
				f.dispatcher().flushAll(false)
				t1 := threadTime(b)
				for range burst {
					msg, err := m.Recv(ctx)
					if err != nil {
						b.Fatal(err)
					}
					msg.Release()
				}
				send, recv = send+t1-t0, recv+threadTime(b)-t1
			}
			b.ReportMetric(float64(send)/float64(b.N*burst), "send-ns/msg")
			b.ReportMetric(float64(recv)/float64(b.N*burst), "recv-ns/msg")
		})
	}
}

// oneWay returns a flow to a mailbox of another context, or of the same one.
func oneWay(b *testing.B, transport string, isOwn bool) (*Flow, *Mailbox) {
	w := newWorld()
	t := transports()[transport]
	x, y := w.node(b, 1, t), w.node(b, 2, t)
	if isOwn {
		x = y
	}
	m := box(b, y, 1, 1<<30)
	return flow(b, x, m), m
}
