// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
)

// silentError is returned when the directory does not answer within --timeout.
type silentError struct {
	path  string
	after time.Duration
}

func (e *silentError) Error() string {
	return fmt.Sprintf("the directory at %s did not answer within %v", e.path, e.after)
}

// A timeoutContext is a context that ends when the directory has not answered for as long as
// --timeout allows.
type timeoutContext struct {
	context.Context
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// withTimeout starts to wait for the directory. The caller must call stop.
func (g Globals) withTimeout(ctx context.Context) *timeoutContext {
	p := &timeoutContext{limit: cmp.Or(g.Timeout, defaultTimeout)}
	p.Context, p.cancel = context.WithCancelCause(ctx)
	p.timer = time.AfterFunc(p.limit, func() { p.cancel(&silentError{g.path(), p.limit}) })
	return p
}

// stop ends the wait and the context.
func (p *timeoutContext) stop() {
	p.timer.Stop()
	p.cancel(nil)
}

// err returns err, or the silentError that has caused it.
func (p *timeoutContext) err(err error) error {
	var silent *silentError
	if err != nil && errors.As(context.Cause(p.Context), &silent) {
		return silent
	}
	return err
}

// answers yields what seq yields. The time in which the caller handles an answer, or waits for a
// slow reader of its output, does not count as silence of the directory.
func answers[T any](p *timeoutContext, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for v, err := range seq {
			p.timer.Stop()
			if !yield(v, p.err(err)) {
				return
			}
			p.timer.Reset(p.limit)
		}
	}
}

// Open opens a context with the settings of the global flags. It fails if the directory does not
// answer within --timeout.
func (g Globals) Open(ctx context.Context, opts ...rocl.Option) (*rocl.Context, error) {
	p := g.withTimeout(ctx)
	defer p.stop()
	c, err := rocl.Open(p, append([]rocl.Option{
		rocl.WithSocket(g.Socket), rocl.WithLogger(g.logger()), rocl.WithMember(cluster.Environment()),
	}, opts...)...)
	return c, p.err(err)
}

// askLinger is how long the context of a command that sends no messages waits when it closes.
const askLinger = 100 * time.Millisecond

// join opens a context that only asks the directory, and never serves it.
func (g Globals) join(ctx context.Context) (*rocl.Context, error) {
	return g.Open(ctx, rocl.JoinOnly(), rocl.WithLinger(askLinger))
}
