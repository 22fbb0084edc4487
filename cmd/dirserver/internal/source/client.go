// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// A Client has a context of the node that is open only while it is used, and for a minute after.
// Its methods may be called concurrently.
type Client struct {
	open func(context.Context) (*rocl.Context, error)
	idle time.Duration // how long the context stays open after its last use

	life context.Context // ends with Close
	end  context.CancelFunc
	uses sync.WaitGroup // begun with mu held, before Close

	mu      sync.Mutex // held while the context is opened
	current *session   // the open context; nil while there is none
	close   *time.Timer
}

// A session is a context and those who use it. It is guarded by the mu of its Client.
type session struct {
	*rocl.Context
	users int
}

// NewClient returns a Client that opens its context by open.
func NewClient(open func(context.Context) (*rocl.Context, error)) *Client {
	c := &Client{open: open, idle: idle}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Use calls f with an open context, which it must not close, and returns what f returns. It fails
// with rocl.ErrClosed after Close, which ends the ctx of f, and if no context can be opened. After
// an error of f the next Use opens another context.
func (c *Client) Use(ctx context.Context, f func(context.Context, *rocl.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	s, err := c.take(ctx)
	if err != nil {
		return err
	}
	if err = f(ctx, s.Context); err != nil && c.life.Err() != nil {
		err = fmt.Errorf("%w: %w", rocl.ErrClosed, err)
	}
	c.give(s, err != nil)
	return err
}

// take returns the current session, or a new one.
func (c *Client) take(ctx context.Context) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil, rocl.ErrClosed
	}
	if c.current == nil {
		opened, err := c.open(ctx)
		if err != nil {
			return nil, err
		}
		c.current = &session{Context: opened}
	}
	if c.close != nil {
		c.close.Stop()
	}
	c.current.users++
	c.uses.Add(1)
	return c.current, nil
}

// give ends a use of s. The last use of a session that is not current closes it.
func (c *Client) give(s *session, hasFailed bool) {
	defer c.uses.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.users--
	if s == c.current && (hasFailed || c.life.Err() != nil) {
		c.current = nil
	}
	switch {
	case s.users > 0:
	case s != c.current:
		s.Close() // nothing is sent that could be lost
	default:
		c.close = time.AfterFunc(c.idle, func() { c.rest(s) })
	}
}

// rest closes s if nobody uses it.
func (c *Client) rest(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s == c.current && s.users == 0 {
		c.current = nil
		s.Close()
	}
}

// Close ends what uses the context, waits for that, and closes the context.
func (c *Client) Close() {
	c.mu.Lock()
	c.end()
	c.mu.Unlock()
	c.uses.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.close != nil {
		c.close.Stop()
	}
	if c.current != nil {
		c.current.Close()
		c.current = nil
	}
}
