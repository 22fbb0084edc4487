// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

var kills = flag.Int("monitor.kills", 3, "processes that TestCrashMonitored kills over each transport")

// chatter sends messages of all sizes to {sink=yes} without end. The tag of each message is its
// number, and its payload begins with that.
func chatter(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	r, err := c.Register(ctx, who)
	if err != nil {
		return err
	}
	sink, err := c.Find(ctx, lib.Match{"sink": "yes"})
	if err != nil {
		return err
	}
	fmt.Println("registered")
	sizes := []int{8, 100, 3000, 8, 70_000, 8, 8, 600_000}
	for i := uint64(0); ; i++ {
		p := make([]byte, sizes[int(i)%len(sizes)])
		binary.LittleEndian.PutUint64(p, i)
		if err := r.SendBytes(ctx, sink.ID, i, p); err != nil {
			return err
		}
	}
}

// A process is killed while it sends. All of its messages that arrive come before the message of
// the monitor, and none after it.
func TestCrashMonitored(t *testing.T) {
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) {
			if transport == "shm" {
				t.Setenv("ROCL_TEST_SHM", "adaptive")
			} else if isApart() {
				t.Skip("there is no network between the processes")
			}
			sock := socket(t)
			c := open(t, sock)
			r := register(t, c, lib.Attrs{"sink": "yes"})
			const ended = 1 << 63
			var took []time.Duration
			for round := range *kills {
				ctx := eventually.Context(t)
				name := fmt.Sprint("chatter", round)
				p := peer(t, "chatter", sock, name)
				from, err := c.Find(ctx, lib.Match{"peer": name})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.Monitor(ctx, from.ID, ended); err != nil {
					t.Fatal(err)
				}
				next := uint64(0)
				killed := make(chan time.Time, 1)
				for {
					m, err := r.Recv(ctx, lib.From(from.ID))
					if err != nil {
						t.Fatal(err)
					}
					if m.IsGone() {
						if m.Tag() != ended || m.From() != from.ID {
							t.Errorf("the end of %v with tag %d", m.From(), m.Tag())
						}
						m.Release()
						break
					}
					if m.Tag() != next || binary.LittleEndian.Uint64(m.Bytes()) != next {
						t.Fatalf("message %d stands where %d is expected", m.Tag(), next)
					}
					m.Release()
					if next++; next == uint64(20+37*round%100) {
						go func() {
							_ = p.cmd.Process.Kill()
							killed <- time.Now()
						}()
					}
				}
				took = append(took, time.Since(<-killed))
				_ = p.Wait()
				eventually.True(t, "the link to the dead process is gone", func() bool { return c.Stats().Links == 0 })
				if m, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
					t.Fatalf("behind the end: tag %d from %v, %v", m.Tag(), m.From(), err)
				}
				t.Logf("round %d: %d messages", round, next)
			}
			report(t, took)
		})
	}
}

// report logs how long after a kill the message of the monitor was received.
func report(t *testing.T, took []time.Duration) {
	slices.Sort(took)
	t.Logf("the end came after %v (median), %v (at most), of %d", took[len(took)/2], took[len(took)-1], len(took))
}

// The end of an idle process that is killed is reported although nothing is sent to it.
func TestCrashMonitoredIdle(t *testing.T) {
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) {
			if transport == "shm" {
				t.Setenv("ROCL_TEST_SHM", "adaptive")
			} else if isApart() {
				t.Skip("there is no network between the processes")
			}
			sock := socket(t)
			c := open(t, sock)
			r := register(t, c, lib.Attrs{"sink": "yes"})
			var took []time.Duration
			for round := range *kills {
				name := fmt.Sprint("hello", round)
				p := peer(t, "hello", sock, name)
				m, err := r.Recv(eventually.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				from := m.From()
				m.Release()
				if _, err := r.Monitor(context.Background(), from, 1); err != nil {
					t.Fatal(err)
				}
				calls := func() uint64 { s := c.Stats(); return s.Reads + s.Writes }
				last, same := calls(), 0
				eventually.True(t, "nothing travels", func() bool {
					if now := calls(); now != last {
						last, same = now, 0
					}
					same++
					return same == 50
				})
				if err := p.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				killed := time.Now()
				m, err = r.Recv(eventually.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(killed))
				if !m.IsGone() || m.From() != from {
					t.Errorf("a message from %v, gone: %v", m.From(), m.IsGone())
				}
				m.Release()
				_ = p.Wait()
				if _, err := r.Monitor(context.Background(), from, 2); err != nil {
					t.Fatal(err)
				}
				if m, err = r.Recv(eventually.Context(t), lib.Tag(2)); err != nil || !m.IsGone() {
					t.Fatal("the end of what is gone:", err)
				}
				m.Release()
			}
			report(t, took)
		})
	}
}
