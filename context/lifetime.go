// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rocl-go/rocl/dispatch"
)

// A Lifetime is the time from the opening of a context until its Close begins, and the goroutines
// that run in that time.
type Lifetime struct {
	ctx        context.Context // ends when Close begins
	cancel     context.CancelCauseFunc
	mu         sync.Mutex     // held while a goroutine is started, and while ctx is ended
	goroutines sync.WaitGroup // started by Go
}

// NewLifetime returns a lifetime that has begun.
func NewLifetime() *Lifetime {
	l := new(Lifetime)
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Context returns a context.Context that ends with the lifetime. Its cause is dispatch.ErrClosed.
func (l *Lifetime) Context() context.Context { return l.ctx }

// HasEnded reports whether End has been called.
func (l *Lifetime) HasEnded() bool { return l.ctx.Err() != nil }

// Go runs f in a new goroutine, and reports true, unless the lifetime has ended.
func (l *Lifetime) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.HasEnded() {
		return false
	}
	l.goroutines.Go(f)
	return true
}

// End ends the lifetime and waits for its goroutines. Of several calls only the first does, and
// reports true.
func (l *Lifetime) End() bool {
	l.mu.Lock()
	isFirst := !l.HasEnded()
	l.cancel(dispatch.ErrClosed)
	l.mu.Unlock()
	if isFirst {
		l.goroutines.Wait()
	}
	return isFirst
}

// WithdrawTime limits how long Close waits for the directory to withdraw the context's resources. A
// directory that does not answer must not use up the linger time.
const WithdrawTime = time.Second

// errTime is the cause of the end of a context.Context of Within whose time has passed. It does not
// match context.DeadlineExceeded: the caller has set no deadline.
var errTime = errors.New("no answer in time")

// Within returns a context.Context that ends after d.
func Within(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(parent, d, fmt.Errorf("%w: waited for %v", errTime, d))
}
