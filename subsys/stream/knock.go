// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package stream

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

const (
	knockEvery = time.Second // the least time between two knocks
	knockMost  = time.Second // the time after which a knock is unanswered
)

// levelKnock is the lock level of knock.mu.
type levelKnock struct{}

func (levelKnock) Depth() (int, string) { return 160, "knock" }

// A knock asks the kernel of the peer's machine for an answer, where this machine's kernel does not
// tell whether data was acknowledged. It dials the other end's address. Usually nothing listens at
// that of an accepted connection, but a refusal is an answer too. A firewall may swallow the
// question. So only a connection that was dialled, or over which a knock was answered, is ever
// reported as silent.
type knock struct {
	dial  func(ctx context.Context, host string) (*net.TCPConn, error) // the function dial, except in tests
	reads atomic.Uint64                                                // that have brought bytes

	mu       lock.Mutex[levelKnock] // guards the following fields
	seen     uint64                 // value of reads when unanswered was called last
	asked    time.Time              // when the last knock began
	isAsking bool                   // it is under way
	isOwed   bool                   // nothing has come since it began
	works    bool                   // the address has answered before
	heard    time.Time              // when something came last
	cancel   context.CancelFunc     // ends a knock; nil before the first
}

// begin prepares the connection for unanswered. The first knock of an accepted connection shows
// whether there are answers.
func (k *knock) begin(c *Conn, isDialled bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dial == nil {
		k.dial = dial
	}
	k.works, k.heard = isDialled, time.Now()
	if !isDialled && !c.sock.isLocal {
		k.askLocked(c)
	}
}

// came notes that bytes have come.
func (k *knock) came() { k.reads.Add(1) }

// unanswered implements the method of [subsys.Prober].
func (c *Conn) unanswered() (owes bool, heard time.Duration) {
	if c.sock.isLocal {
		return false, 0
	}
	k := &c.knock
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := k.reads.Load(); n != k.seen {
		k.seen, k.heard, k.isOwed = n, time.Now(), false
	}
	if !k.isAsking && time.Since(k.asked) >= knockEvery && time.Since(k.heard) >= knockEvery/4 { // busy connections need no knock
		k.askLocked(c)
	}
	return k.isOwed && k.works, time.Since(k.heard)
}

// askLocked knocks, in a goroutine of its own. mu must be held.
func (k *knock) askLocked(c *Conn) {
	host, err := c.port.proto.host(c.remote)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), knockMost)
	k.asked, k.isAsking, k.isOwed, k.cancel = time.Now(), true, true, cancel
	if c.closed.Load() || !c.port.Go(func() { k.hear(k.dial(ctx, host)) }) {
		cancel()
	}
}

// hear takes the result of a knock.
func (k *knock) hear(nc *net.TCPConn, err error) {
	if nc != nil {
		_ = nc.SetLinger(0) // leaves nothing behind
		nc.Close()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cancel()
	k.isAsking = false
	switch {
	case err == nil || errors.Is(err, subsys.ErrNoPeer):
		k.isOwed, k.works, k.heard = false, true, time.Now()
	case isFull(err): // this machine could not ask
		k.isOwed = false
	}
}

// end ends a knock that is under way.
func (k *knock) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cancel != nil {
		k.cancel()
	}
}
