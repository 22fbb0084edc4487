// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

var kills = flag.Int("monitor.kills", 3, "processes that TestCrashMonitored kills over each transport")

// A process is killed while it sends. All of its messages that arrive come before the message of
// the monitor, and none after it.
func TestCrashMonitored(t *testing.T) {
	overBoth(t, func(t *testing.T, opts ...lib.Option) {
		sock := socket(t)
		c := open(t, sock, opts...)
		r := register(t, c, lib.Attrs{"sink": "yes"})
		const ended = 1 << 63
		for round := range *kills {
			ctx := eventually.Context(t)
			name := fmt.Sprint("chatter", round)
			p := peer(t, "chatter", sock, name)
			from := try.Get(c.Find(ctx, lib.Match{"peer": name}))(t)
			try.Get(r.Monitor(ctx, from.ID, ended))(t)
			next := uint64(0)
			for isGone := false; !isGone; next++ {
				m := try.Get(r.Recv(ctx, lib.From(from.ID)))(t)
				switch isGone = m.IsGone(); {
				case isGone && (m.Tag() != ended || m.From() != from.ID):
					t.Errorf("the end of %v with tag %d", m.From(), m.Tag())
				case !isGone && (m.Tag() != next || binary.LittleEndian.Uint64(m.Bytes()) != next):
					t.Fatalf("message %d stands where %d is expected", m.Tag(), next)
				}
				m.Release()
				if next == uint64(20+37*round%100) {
					go p.Kill()
				}
			}
			p.Kill()
			eventually.True(t, "the link to the dead process is gone", func() bool { return c.Stats().Links == 0 })
			if m, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
				t.Fatalf("behind the end: tag %d from %v, %v", m.Tag(), m.From(), err)
			}
			t.Logf("round %d: %d messages", round, next-1)
		}
	})
}

// The end of an idle process that is killed is reported although nothing is sent to it, also to a
// receiver that sleeps on a futex, which no dead process wakes. Nothing is kept for the process.
func TestCrashMonitoredIdle(t *testing.T) {
	overBoth(t, crashMonitoredIdle)
	t.Run("sleeper", func(t *testing.T) {
		t.Setenv("ROCL_TEST_SHM", "never")
		crashMonitoredIdle(t)
	})
}

func crashMonitoredIdle(t *testing.T, opts ...lib.Option) {
	sock := socket(t)
	c := open(t, sock, opts...)
	r := register(t, c, lib.Attrs{"sink": "yes"})
	for round := range *kills {
		ctx := eventually.Context(t)
		p := peer(t, "hello", sock, fmt.Sprint("hello", round))
		m := try.Get(r.Recv(ctx))(t)
		from := m.From()
		m.Release()
		try.Get(r.Monitor(ctx, from, 1))(t)
		calls := func() uint64 { s := c.Stats(); return s.Reads + s.Writes }
		last, same := calls(), 0
		eventually.True(t, "nothing travels", func() bool {
			if now := calls(); now != last {
				last, same = now, 0
			}
			same++
			return same == 50
		})
		isEnd := func(tag uint64) {
			m := try.Get(r.Recv(ctx))(t)
			defer m.Release()
			if !m.IsGone() || m.From() != from || m.Tag() != tag {
				t.Errorf("a message from %v with tag %d, gone: %v", m.From(), m.Tag(), m.IsGone())
			}
		}
		p.Kill()
		isEnd(1)
		try.Get(r.Monitor(ctx, from, 2))(t) // of what has ended
		isEnd(2)
	}
	eventually.True(t, "the links to the dead are gone", func() bool { return c.Stats().Links == 0 })
}
