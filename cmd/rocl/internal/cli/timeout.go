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
	"github.com/rocl-go/rocl/cmd/internal/fabric"
	"github.com/rocl-go/rocl/directory/cluster"
)

// silentError is returned when the directory does not answer within --timeout.
type silentError struct {
	path  string
	after time.Duration
}

func (e *silentError) Error() string {
	// Cause: the serving process is stopped or overloaded. Remedy: let it continue, or raise
	// `--timeout`.
	return fmt.Sprintf("the directory at %s did not answer within %v", e.path, e.after)
}

// incompleteError is returned when the directory has named some resources, and not all within
// --timeout, because it waits for another node.
type incompleteError struct{ after time.Duration }

func (e *incompleteError) Error() string {
	return fmt.Sprintf("the answer is not complete: a node did not answer within %v", e.after)
}

// A timeoutContext is a context that ends when the directory has not answered for as long as
// --timeout allows.
type timeoutContext struct {
	context.Context
	limit  time.Duration
	parent context.Context // without the limit
	end    time.Time       // when the limit is over, unless answers has renewed it
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// withTimeout starts to wait for the directory. The caller must call stop.
func (g Globals) withTimeout(ctx context.Context) *timeoutContext {
	p := &timeoutContext{limit: cmp.Or(g.Timeout, defaultTimeout), parent: ctx}
	p.end = time.Now().Add(p.limit)
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

// gather calls f with each resource that seq yields, until p ends: all answers share one limit. The
// caller prints what has come before it returns the error.
func gather(p *timeoutContext, seq iter.Seq2[rocl.Found, error], f func(rocl.Found)) error {
	n := 0
	for v, err := range seq {
		if err = p.err(err); err != nil {
			var silent *silentError
			if n > 0 && errors.As(err, &silent) {
				return &incompleteError{p.limit}
			}
			return err
		}
		n++
		f(v)
	}
	return nil
}

// forReply returns a context for a question to the resource or context id, which ends with p.
func (p *timeoutContext) forReply(id rocl.GID) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(p.parent, p.end, &lateError{id, p.limit})
}

// Open opens a context with the settings of the global flags. It fails if the directory does not
// answer within --timeout.
func (g Globals) Open(ctx context.Context, opts ...rocl.Option) (*rocl.Context, error) {
	p := g.withTimeout(ctx)
	defer p.stop()
	return g.openWithin(p, opts...)
}

// openWithin is Open within the limit of p, which goes on.
func (g Globals) openWithin(p *timeoutContext, opts ...rocl.Option) (*rocl.Context, error) {
	mine := append(fabric.Options(), rocl.WithSocket(g.Socket), rocl.WithLogger(g.logger()), rocl.WithMember(cluster.Environment()))
	c, err := rocl.Open(p, append(mine, opts...)...)
	return c, p.err(err)
}

// askLinger is how long the context of a command that sends no messages waits when it closes.
const askLinger = 100 * time.Millisecond

// askOnly makes a context that only asks the directory. It opens no port: that could fail, for
// example outside of the network namespace of the node.
func askOnly() rocl.Option { return rocl.WithTransports() }

// ask calls f with a context that never serves the directory. p is the limit of all that f asks.
func (g Globals) ask(ctx context.Context, f func(p *timeoutContext, c *rocl.Context) error, opts ...rocl.Option) error {
	p := g.withTimeout(ctx)
	defer p.stop()
	c, err := g.openWithin(p, append(opts, rocl.JoinOnly(), rocl.WithLinger(askLinger))...)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(p, c)
}
