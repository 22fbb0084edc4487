// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

func TestIsOwed(t *testing.T) {
	for _, c := range []struct {
		what                           string
		probes                         uint8
		unacked, ackBefore, sentBefore uint32
		owed                           bool
	}{
		{"idle", 0, 0, 5000, 5000, false},
		{"sent, and not answered", 0, 3, 400, 200, true},
		{"sent just now, and answered before", 0, 3, 900, 0, true},
		{"asked for room, and not answered", 1, 0, 1252, 1468, true},
		{"asked for room, and answered", 0, 0, 748, 2276, false},
		{"sent what there was no room for, and told so at once", 0, 1, 3480, 3480, false},
		{"sent what there was no room for, and told so later", 0, 1, 3292, 4312, false},
	} {
		i := unix.TCPInfo{Probes: c.probes, Unacked: c.unacked, Last_ack_recv: c.ackBefore, Last_data_sent: c.sentBefore}
		try.Equal(t, isOwed(&i), c.owed, "%s: owed", c.what)
	}
}

// A peer that reads nothing is not silent: its machine answers. That is also so if the kernel does
// not bound the time between its attempts.
func TestFullPeerAnswers(t *testing.T) {
	for _, room := range []int{2 << 10, 4 << 10, 8 << 10, 0} {
		t.Run(fmt.Sprint("room ", room), func(t *testing.T) {
			t.Parallel()
			s, peer := pair(t)
			_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, 120_000) // a kernel that refuses the option has no bound in any case
			if room > 0 {
				try.OK(t, peer.SetReadBuffer(room))
			}
			for full := false; !full; {
				switch _, err := s.write(make([]byte, 3000)); err {
				case nil:
				case unix.EAGAIN:
					full = true
				default:
					t.Fatal(err)
				}
			}
			// The test takes real time, because it tests the kernel's timers.
			var silence subsys.Silence
			var silent time.Duration
			if eventually.Within(4*time.Second, func() bool {
				owes, heard := s.unanswered()
				silent = silence.Observe(time.Now(), owes, heard)
				return silent > time.Second
			}) {
				t.Fatalf("silent for %v", silent)
			}
		})
	}
}

// The kernel continues to probe a peer that has had no room for long.
func TestResendsAreBounded(t *testing.T) {
	s, _ := pair(t)
	most, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS)
	if err != nil {
		t.Skip("the kernel is older than 6.15:", err)
	}
	try.Equal(t, most, resendMost, "milliseconds between attempts, at most")
}
