// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"flag"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"go.uber.org/goleak"
)

var kills = flag.Int("shm.kills", 50, "how many processes to kill")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Processes are killed at any moment while both ends send as fast as they can. Payloads from them
// are whole and can be read as long as they are held. Memory lent to them comes back. No descriptor
// and no mapping is left.
//
// Promise (Shared memory): Either process may be killed at any moment. What came from it stays
// whole, what was lent comes back, and no descriptor, mapping or file is left. See also
// TestCrashOverShm.
func TestKilledAtAnyMoment(t *testing.T) {
	n := start(t)
	total, held := 0, 0
	rounds(t, n, *kills, func(i int) {
		c := spawnPart(t, "peer", n.Port.Addr())
		s := n.accepted(t)
		s.keep(3)
		var sending sync.WaitGroup
		sending.Go(func() { _ = n.load(s, -1, uint64(i)) })
		shortly()
		c.end(t, true)
		s.wantDownAs(t, subsys.ErrPeerClosed)
		s.fell(nil)
		sending.Wait()
		got := try.Get(s.frames())(t, "kill %d", i)
		total += got
		k := try.Get(s.release())(t, "kill %d", i)
		held += k
		wantBack(t, n)
	})
	t.Logf("%d kills, %d frames, %d held while their senders died", *kills, total, held)
	if total == 0 || held == 0 {
		t.Error("nothing was put to the test")
	}
	if left, _ := filepath.Glob("/dev/shm/rocl*"); len(left) > 0 {
		t.Errorf("%s are left", left)
	}
}

// A process that is stopped fills its ring and affects no other process. When it continues, all
// frames arrive. When it is killed, all memory lent to it comes back.
//
// Promise (Shared memory): A stopped process with a full ring delays only itself.
func TestStoppedPeer(t *testing.T) {
	n, other := start(t), start(t)
	for _, end := range []syscall.Signal{syscall.SIGCONT, syscall.SIGKILL} {
		c := spawnPart(t, "peer", n.Port.Addr())
		s := n.accepted(t)
		eventually.True(t, "the peer sends", func() bool { got, _ := s.frames(); return got > 10 })
		c.Signal(syscall.SIGSTOP)
		seq := uint32(0)
		eventually.True(t, "the ring of a stopped process is full", func() bool {
			b := n.signed(t, 4096, uint64(seq))
			defer b.Release()
			k := try.Get(s.conn.Send([]subsys.Frame{frameOf(seq, b, b.Bytes())}))(t)
			seq += uint32(k)
			return k == 0
		})
		near, far := pair(t, n, other)
		try.OK(t, n.load(near, 200, 9))
		far.wantFrames(t, 200)
		near.conn.Close()
		_ = far.wantDown(t)
		c.Signal(end)
		if end == syscall.SIGCONT {
			eventually.Value(t, "Writable of a peer that goes on", s.writable)
		}
		c.end(t, end == syscall.SIGKILL)
		s.wantDownAs(t, subsys.ErrPeerClosed)
		eventually.True(t, "all that was lent is back", func() bool { return n.Pool.Stats().InUse == 0 })
	}
}
