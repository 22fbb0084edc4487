// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package stream

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// A knocked is a connection to an address that answers knocks or swallows them.
type knocked struct {
	Conn
	isSilent atomic.Bool
	knocks   atomic.Int32
	silence  subsys.Silence
}

func newKnocked(isDialled, isSilent bool) *knocked {
	c := new(knocked)
	c.port, c.remote = &Port{proto: Protocol{Scheme: "tcp"}}, "tcp://192.0.2.1:7"
	c.sock.refs.Store(1)
	c.isSilent.Store(isSilent)
	c.knock.dial = func(ctx context.Context, _ string) (*net.TCPConn, error) {
		c.knocks.Add(1)
		if c.isSilent.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, subsys.ErrNoPeer
	}
	c.knock.begin(&c.Conn, isDialled)
	return c
}

// silentFor observes the connection for a while, as a link does, and returns the longest silence.
func (c *knocked) silentFor(d time.Duration) (most time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		owes, heard := c.Unanswered()
		most = max(most, c.silence.Observe(time.Now(), owes, heard))
		time.Sleep(250 * time.Millisecond) // of virtual time
	}
	return most
}

// Where the kernel does not tell, a connection is silent if its address, which has answered before,
// does not answer any more and no bytes come.
func TestKnock(t *testing.T) {
	for name, isDialled := range map[string]bool{"dialled": true, "accepted": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newKnocked(isDialled, false)
				if s := c.silentFor(time.Minute); s > 0 {
					t.Errorf("silent for %v though it answers", s)
				}
				if n := c.knocks.Load(); n < 30 || n > 61 {
					t.Errorf("%d knocks in a minute", n)
				}
				c.isSilent.Store(true)
				if s := c.silentFor(2500 * time.Millisecond); s < time.Second {
					t.Errorf("silent for %v only", s)
				}
				c.knock.came()
				if s := c.silentFor(time.Second); s >= time.Second {
					t.Errorf("silent for %v though bytes have come", s)
				}
				c.isSilent.Store(false)
				c.silentFor(2 * time.Second)
				try.Equal(t, c.silentFor(time.Minute), 0, "silence after it answered again")
				c.knock.end()
			})
		})
	}
}

// An accepted connection whose address never answers is not silent: a firewall may be the reason.
func TestKnockSwallowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newKnocked(false, true)
		try.Equal(t, c.silentFor(time.Minute), 0)
		c.knock.end()
		synctest.Wait()
	})
}

// Closing a port does not wait for the answer to a knock.
func TestKnockEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newKnocked(true, true)
		c.silentFor(knockEvery / 2)
		synctest.Wait()
		try.Equal(t, c.knocks.Load(), 1)
		began := time.Now()
		c.knock.end()
		c.port.running.Wait()
		try.Equal(t, time.Since(began), 0)
	})
}
