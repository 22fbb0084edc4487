// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/subsys"
	"go.uber.org/goleak"
)

var kills = flag.Int("shm.kills", 50, "how many processes to kill")

func TestMain(m *testing.M) {
	if addr := os.Getenv("ROCL_SHM_TEST_PEER"); addr != "" {
		os.Exit(peer(addr))
	}
	goleak.VerifyTestMain(m)
}

// peer is the other process. It sends for ever, and receives, until it is killed or its input ends.
func peer(addr string) int {
	n, err := open("")
	if err != nil {
		println(err.Error())
		return 1
	}
	s, err := n.dial(addr)
	if err != nil {
		println(err.Error())
		return 1
	}
	s.keep(5)
	go func() {
		for range time.Tick(2 * time.Millisecond) {
			if _, err := s.release(); err != nil {
				println(err.Error())
				os.Exit(2)
			}
		}
	}()
	go func() { _ = n.load(s, -1, uint64(os.Getpid())) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// spawn starts this executable with a variable in its environment. The process is killed when the
// test ends.
func spawn(t testing.TB, env string) *subprocess.Process {
	t.Helper()
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), env)
	p, err := subprocess.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// Processes are killed at any moment while both ends send as fast as they can. Payloads from them
// are whole and can be read as long as they are held. Memory lent to them comes back. No descriptor
// and no mapping is left.
//
// Promise (Shared memory): Either process may be killed at any moment. What came from it stays
// whole, what was lent comes back, and no descriptor, mapping or file is left. See also
// TestCrashOverShm.
func TestKilledAtAnyMoment(t *testing.T) {
	n := start(t)
	var fds, maps int
	total, held := 0, 0
	for i := range *kills {
		if i == 1 {
			fds, maps = resources()
		}
		c := spawn(t, "ROCL_SHM_TEST_PEER="+n.Port.Addr())
		s := n.accepted(t)
		s.keep(3)
		var sending sync.WaitGroup
		sending.Go(func() { _ = n.load(s, -1, uint64(i)) })
		shortly()
		c.Kill()
		if err := s.wantDown(t); !errors.Is(err, subsys.ErrPeerClosed) {
			t.Fatalf("kill %d: the end is reported as %v", i, err)
		}
		s.fell(nil)
		sending.Wait()
		if code := c.Cmd.ProcessState.ExitCode(); code > 0 {
			t.Fatalf("kill %d: the peer ended by itself, with %d", i, code)
		}
		got, bad := s.frames()
		if bad != nil {
			t.Fatalf("kill %d: %v", i, bad)
		}
		total += got
		k, err := s.release()
		if err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		held += k
		eventually.True(t, "all that was lent is back", func() bool { return n.Pool.Stats().InUse == 0 })
	}
	t.Logf("%d kills, %d frames, %d held while their senders died", *kills, total, held)
	if total == 0 || held == 0 {
		t.Error("nothing was put to the test")
	}
	if *kills < 2 {
		return
	}
	arenas := n.Pool.Stats().Arenas
	eventually.True(t, "descriptors and mappings are as before", func() bool {
		f, m := resources()
		return f <= fds+arenas && m <= maps+arenas && conns(n) == 0
	})
	if left, _ := os.ReadDir("/dev/shm"); len(left) > 0 {
		for _, e := range left {
			if len(e.Name()) >= 4 && e.Name()[:4] == "rocl" {
				t.Errorf("%s is left", e.Name())
			}
		}
	}
}

// A process that is stopped fills its ring and affects no other process. When it continues, all
// frames arrive. When it is killed, all memory lent to it comes back.
//
// Promise (Shared memory): A stopped process with a full ring delays only itself.
func TestStoppedPeer(t *testing.T) {
	n, other := start(t), start(t)
	for _, end := range []syscall.Signal{syscall.SIGCONT, syscall.SIGKILL} {
		c := spawn(t, "ROCL_SHM_TEST_PEER="+n.Port.Addr())
		s := n.accepted(t)
		eventually.True(t, "the peer sends", func() bool { got, _ := s.frames(); return got > 10 })
		c.Signal(syscall.SIGSTOP)
		seq := uint32(0)
		eventually.True(t, "the ring of a stopped process is full", func() bool {
			b, err := n.Pool.Get(4096)
			if err != nil {
				t.Fatal(err)
			}
			f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: seq, Len: 4096}, Data: b.Bytes(), Buf: b}
			f.Tag = sign(b.Bytes(), rand.New(rand.NewPCG(uint64(seq), 3)))
			k, err := s.conn.Send([]subsys.Frame{f})
			b.Release()
			if err != nil {
				t.Fatal(err)
			}
			seq += uint32(k)
			return k == 0
		})
		near, far := pair(t, n, other)
		if err := n.load(near, 200, 9); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "others are served meanwhile", func() bool { got, _ := far.frames(); return got == 200 })
		near.conn.Close()
		_ = far.wantDown(t)
		c.Signal(end)
		if end == syscall.SIGCONT {
			eventually.Value(t, "Writable of a peer that goes on", s.writable)
			c.CloseInput()
		}
		if err := s.wantDown(t); !errors.Is(err, subsys.ErrPeerClosed) {
			t.Errorf("the end is reported as %v", err)
		}
		_ = c.Wait()
		if c.Cmd.ProcessState.ExitCode() == 2 {
			t.Error("the peer has read nonsense")
		}
		eventually.True(t, "all that was lent is back", func() bool { return n.Pool.Stats().InUse == 0 })
	}
}
