// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/rocl-go/rocl/subsys/inproc"
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

// Messages within the process, from some goroutines to one, beside a channel.
func BenchmarkLocalRate(b *testing.B) {
	for _, senders := range []int{1, 4} {
		b.Run(fmt.Sprintf("channel/%d", senders), func(b *testing.B) {
			c := make(chan [64]byte, 1024)
			var p [64]byte
			for s := range senders {
				go func() {
					for range (b.N + s) / senders {
						c <- p
					}
				}()
			}
			for range b.N {
				<-c
			}
		})
		b.Run(fmt.Sprintf("rocl/%d", senders), func(b *testing.B) {
			d := newWorld().node(b, 1, inproc.NewNetwork().Transport())
			m := box(b, d, 1, 0)
			f := flow(b, d, m)
			ctx := context.Background()
			var p [64]byte
			b.ResetTimer()
			for s := range senders {
				go func() {
					for range (b.N + s) / senders {
						if err := f.SendBytes(ctx, 1, 7, p[:]); err != nil {
							b.Error(err)
						}
					}
				}()
			}
			for range b.N {
				msg, err := m.Recv(ctx)
				if err != nil {
					b.Fatal(err)
				}
				msg.Release()
			}
		})
	}
}

// A round trip between two goroutines, beside two channels.
func BenchmarkLocalRoundTrip(b *testing.B) {
	b.Run("channel", func(b *testing.B) {
		there, back := make(chan [64]byte), make(chan [64]byte)
		go func() {
			for p := range there {
				back <- p
			}
		}()
		for b.Loop() {
			there <- [64]byte{}
			<-back
		}
		close(there)
	})
	b.Run("rocl", func(b *testing.B) {
		d := newWorld().node(b, 1, inproc.NewNetwork().Transport())
		m, o := box(b, d, 1, 0), box(b, d, 2, 0)
		to, from := flow(b, d, m), flow(b, d, o)
		ctx := context.Background()
		var p [64]byte
		go func() {
			for {
				msg, err := m.Recv(ctx)
				if err != nil {
					return
				}
				msg.Release()
				if err := from.SendBytes(ctx, 1, 7, p[:]); err != nil {
					return
				}
			}
		}()
		for b.Loop() {
			if err := to.SendBytes(ctx, 1, 7, p[:]); err != nil {
				b.Fatal(err)
			}
			msg, err := o.Recv(ctx)
			if err != nil {
				b.Fatal(err)
			}
			msg.Release()
		}
	})
}
