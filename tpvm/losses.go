// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rocl-go/rocl"
)

// losses records the messages that the context of a task reports as undelivered, for Exit. A
// message may be reported after a Flush that found it delivered: its receiver had it in the
// mailbox, and ended without receiving it.
type losses struct {
	mu        sync.Mutex
	reports   int    // number of reports, of any message
	lost      []loss // one for each receiver
	uncounted int    // messages to receivers for which lost has no room
}

// A loss counts the messages to one receiver that were not delivered.
type loss struct {
	to  TID
	n   int
	err error // of the first message
}

// mostLosses is how many receivers the error of Exit names.
const mostLosses = 8

// record records the report of a message. A message of the library itself, or to a receiver that
// has ended, is no loss.
func (l *losses) record(u rocl.Undelivered, isLibrary bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports++
	if isLibrary || delivered(u.Err) == nil {
		return
	}
	for i := range l.lost {
		if l.lost[i].to == u.To {
			l.lost[i].n++
			return
		}
	}
	if len(l.lost) == mostLosses {
		l.uncounted++
		return
	}
	l.lost = append(l.lost, loss{u.To, 1, u.Err})
}

// err returns the error of Exit. ctx is the context of Exit; flushed and closed are the errors of
// flushing and closing the rocl context. They decide alone if record was never called.
func (l *losses) err(ctx context.Context, flushed, closed error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reports == 0 {
		return errors.Join(delivered(flushed), delivered(closed))
	}
	var errs []error
	if flushed != nil && ctx.Err() != nil {
		errs = append(errs, context.Cause(ctx))
	}
	for _, x := range l.lost {
		errs = append(errs, fmt.Errorf("%s: %w", undelivered(x.n, x.to.String()), x.err))
	}
	if l.uncounted > 0 {
		errs = append(errs, errors.New(undelivered(l.uncounted, "other receivers")))
	}
	return errors.Join(errs...)
}

func undelivered(n int, to string) string {
	if n == 1 {
		return "1 message to " + to + " was not delivered"
	}
	return fmt.Sprintf("%d messages to %s were not delivered", n, to)
}

// delivered returns err, the result of a flush. It returns nil if err says only that receivers have
// ended: a killed worker is no error of the task that exits.
func delivered(err error) error {
	if errors.Is(err, rocl.ErrGone) && !errors.Is(err, rocl.ErrUnreachable) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
