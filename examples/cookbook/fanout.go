// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"errors"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
)

// Subscribe registers a receiver of the prices of one symbol. Its mailbox holds 100 messages.
func Subscribe(ctx context.Context, c *rocl.Context, symbol string) (*rocl.Resource, error) {
	return c.Register(ctx, rocl.Attrs{"wants": "prices", "symbol": symbol}, rocl.MailboxMessages(100))
}

// Publish sends a price to all receivers of the symbol and returns how many accepted it. It writes
// the price once, for all receivers. It waits for receivers whose mailbox is full.
func Publish(ctx context.Context, me *rocl.Resource, symbol string, price string) (int, error) {
	b, err := me.Context().BufferWait(ctx, len(price))
	if err != nil {
		return 0, err
	}
	copy(b.Bytes(), price)
	n, err := me.SendToAll(ctx, rocl.Match{"wants": "prices", "symbol": symbol}, 0, b)
	if err != nil {
		b.Release() // SendToAll takes the buffer over only if it succeeds
	}
	return n, err
}

// PublishNow sends a price without waiting to the receivers in s, which follows those of a symbol.
// It passes over each receiver whose mailbox is full, and returns how many accepted the price. It
// also passes over a receiver that is new to the sender's context, until the library has asked for
// its address and for room in its mailbox.
func PublishNow(ctx context.Context, me *rocl.Resource, s *live.Set, price string) (int, error) {
	b, err := me.Context().BufferWait(ctx, len(price))
	if err != nil {
		return 0, err
	}
	defer b.Release()
	copy(b.Bytes(), price)
	accepted := 0
	for f := range s.All() {
		err := me.TrySend(f.ID, 0, b.Retain()) // one reference for this receiver
		if err == nil {
			accepted++
			continue
		}
		b.Release() // TrySend has not taken the reference over
		s.Ended(f.ID, err)
		if !errors.Is(err, rocl.ErrFull) && !rocl.IsEnd(err) {
			return accepted, err
		}
	}
	return accepted, s.Err()
}
