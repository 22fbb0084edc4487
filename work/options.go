// SPDX-License-Identifier: Apache-2.0

package work

import (
	"cmp"
	"fmt"
	"time"

	"github.com/rocl-go/rocl"
)

// The defaults of the options.
const (
	DefaultPerWorker = 1024
	DefaultBacklog   = 4096
	DefaultAttempts  = 3
	DefaultSilence   = 30 * time.Second
	DefaultGrace     = 30 * time.Second
)

// An Option changes a default of Open or of Serve.
type Option func(*config)

// config has what options say. Zero stands for the default.
type config struct {
	perWorker, backlog, attempts int
	silence                      time.Duration
	ordered                      bool

	handlers int
	grace    *time.Duration

	codecs []any
}

// PerWorker is an option of Open: at most n tasks of the queue are at each worker, those that wait
// there included. The default is DefaultPerWorker. A worker gets no more than keep it busy for 100
// ms at the pace of its last results, but one more than it has handlers. Tasks that a worker has
// not begun go to another one that has nothing to do, so n does not limit how evenly tasks are
// shared.
func PerWorker(n int) Option { return func(c *config) { c.perWorker = n } }

// Backlog is an option of Open: at most n tasks are in the queue, from Put until a loop over
// Results takes the result. Put waits meanwhile. The default is DefaultBacklog. A loop takes up to
// 64 results at once.
func Backlog(n int) Option { return func(c *config) { c.backlog = n } }

// Attempts is an option of Open: a task is begun at most n times. The default is DefaultAttempts.
// With one attempt no handler gets a task a second time.
func Attempts(n int) Option { return func(c *config) { c.attempts = n } }

// Ordered is an option of Open: Results yields in the order of Put.
func Ordered() Option { return func(c *config) { c.ordered = true } }

// Silence is an option of Open: a worker that has tasks and sends nothing for d, not even the
// answer to the queue's question whether it lives, is given up as if it had ended. Handlers may
// take any time: the answer does not wait for them. d must be longer than the largest task and the
// largest result need to travel. The default is DefaultSilence.
func Silence(d time.Duration) Option { return func(c *config) { c.silence = d } }

// Handlers is an option of Serve: up to n handlers run at the same time, each in a goroutine of its
// own. The default is one.
func Handlers(n int) Option { return func(c *config) { c.handlers = n } }

// Grace is an option of Serve: after the end of its context, Serve waits for running handlers for
// d, and then ends their contexts with the cause ErrGrace. Zero does not wait. The default is
// DefaultGrace.
func Grace(d time.Duration) Option { return func(c *config) { c.grace = &d } }

// Codec is an option of Open and Serve: values of type T, which are tasks or results, are encoded
// by c, as rocl.SendValue does with a codec. The queue and its workers must have the same codec.
func Codec[T any](c rocl.Codec[T]) Option {
	return func(o *config) {
		if c != nil {
			o.codecs = append(o.codecs, c)
		}
	}
}

// codecFor returns the codec for values of type T, or nil.
func codecFor[T any](o *config) rocl.Codec[T] {
	for _, c := range o.codecs {
		if c, ok := c.(rocl.Codec[T]); ok {
			return c
		}
	}
	return nil
}

// newConfig returns what the options of a queue, or of a worker, say.
func newConfig(opts []Option, isQueue bool) (*config, error) {
	c := &config{}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	isQueues := c.perWorker != 0 || c.backlog != 0 || c.attempts != 0 || c.silence != 0 || c.ordered
	isWorkers := c.handlers != 0 || c.grace != nil
	switch {
	case isQueue && isWorkers:
		return nil, fmt.Errorf("%w: Handlers and Grace are options of Serve", ErrOption)
	case !isQueue && isQueues:
		return nil, fmt.Errorf("%w: an option of Open", ErrOption)
	case c.perWorker < 0 || c.perWorker > mostSlots || c.backlog < 0 || c.attempts < 0 || c.silence < 0:
		return nil, fmt.Errorf("%w: PerWorker is 1 to %d, Backlog, Attempts and Silence are positive", ErrOption, mostSlots)
	case c.handlers < 0 || c.handlers > mostSlots || c.grace != nil && *c.grace < 0:
		return nil, fmt.Errorf("%w: Handlers is 1 to %d, Grace is not negative", ErrOption, mostSlots)
	}
	c.perWorker = cmp.Or(c.perWorker, DefaultPerWorker)
	c.backlog = cmp.Or(c.backlog, DefaultBacklog)
	c.attempts = cmp.Or(c.attempts, DefaultAttempts)
	c.silence = cmp.Or(c.silence, DefaultSilence)
	c.handlers = cmp.Or(c.handlers, 1)
	if c.grace == nil {
		d := DefaultGrace
		c.grace = &d
	}
	return c, nil
}
