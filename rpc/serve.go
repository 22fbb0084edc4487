// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
)

const (
	drainMost    = 10 * time.Second       // how long Serve waits for handlers unless DrainWithin says otherwise
	announceMost = time.Second            // how long Drain waits for the directory
	publishEvery = 100 * time.Millisecond // the least time between two updates of a load

	attrState = "state"
	draining  = "draining" // the value of attrState and attrServer when a server drains
)

// Serve runs a server until ctx ends: it does what [NewServer] does, waits, and then drains and
// closes the server. The calls are options:
//
//	err := rpc.Serve(ctx, c, rocl.Attrs{"type": "calculator"},
//		rpc.WithCall("add", add), rpc.WithCall("sub", sub), rpc.PublishLoad("load"))
//
// When ctx ends, running handlers go on for as long as [DrainWithin] says, with their own contexts.
// Serve returns nil if all of them have returned. Otherwise it returns the first cause: the error
// of NewServer, the error for which the server cannot receive any more (rocl.ErrClosed if its
// context was closed), or that handlers still ran, whose contexts have then ended with ErrClosed.
func Serve(ctx context.Context, c *rocl.Context, a rocl.Attributes, opts ...ServerOption) error {
	s, err := NewServer(ctx, c, a, opts...)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-s.stopped:
		err = fmt.Errorf("rpc: serve as %v: %w", s.ID(), s.failure)
	}
	rest, end := context.WithTimeoutCause(context.WithoutCancel(ctx), s.drainMost, fmt.Errorf("they go on after %v: %w", s.drainMost, context.DeadlineExceeded))
	defer end()
	drained := s.Drain(rest)
	closed := s.Close(rest)
	return cmp.Or(err, drained, closed)
}

// DrainWithin sets how long [Serve] waits for running handlers after its context has ended. The
// default is 10 s.
func DrainWithin(d time.Duration) ServerOption { return func(s *Server) { s.drainMost = d } }

// WithCall is [WithCalls] with a [Register] of one call.
func WithCall[In, Out any](name string, f func(ctx context.Context, in In) (Out, error), opts ...Option) ServerOption {
	return WithCalls(func(s *Server) error { return Register(s, name, f, opts...) })
}

// WithRegister adds options to the registration of the server's resource, such as rocl.Unique. Each
// request is a message in the mailbox of that resource until the server receives it.
func WithRegister(opts ...rocl.RegisterOption) ServerOption {
	return func(s *Server) { s.registration = append(s.registration, opts...) }
}

// Drain lets the server end its work. It gives the resource the attributes state=draining and
// rpc=draining in place of rpc=1, so that [CallAny], [CallAll] and any pattern with rpc=1 no longer
// find the server. It then refuses requests with ErrClosed, for which [MayRetry] reports true, and
// waits until the running handlers and streams have ended and their replies are sent. Calls that
// handlers make to their own server are refused too.
//
// When ctx ends, Drain returns its cause; the handlers go on. Drain returns the error of the
// directory if the attributes could not be changed within a second; the server drains nevertheless.
// A server that has drained does not serve again. The program closes it.
func (s *Server) Drain(ctx context.Context) error {
	if s.r == nil { // in the function of WithCalls
		return fmt.Errorf("rpc: drain a server that does not serve yet: %w", errors.ErrUnsupported)
	}
	soon, end := context.WithTimeout(ctx, announceMost)
	err := s.r.Set(soon, attrServer, draining)
	if err == nil {
		err = s.r.Set(soon, attrState, draining)
	}
	end()
	if e := s.running.close(ctx); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("rpc: drain server %v: %w", s.ID(), err)
	}
	return nil
}

// A publishedLoad is an attribute with a load.
type publishedLoad struct {
	name  string
	of    func() int64 // nil: the requests in progress
	value string       // that the attribute has
}

// PublishLoad gives the server's resource an attribute with the number of requests in progress, for
// [rocl.Least] and for pickers: handlers that run or wait for a worker of their pool, and streams.
// The attribute is updated at once when the number changes, but at most ten times a second, and not
// while the number stays. It is "0" when the server is first found.
func PublishLoad(name string) ServerOption { return PublishLoadOf(name, nil) }

// PublishLoadOf is [PublishLoad] for a number of the program, which f returns. A goroutine of the
// server calls f ten times a second. f must not wait, and a panic of f ends the program. A nil f
// stands for the number of PublishLoad.
func PublishLoadOf(name string, f func() int64) ServerOption {
	return func(s *Server) { s.loads = append(s.loads, &publishedLoad{name: name, of: f}) }
}

// now returns the load of s.
func (l *publishedLoad) now(s *Server) string {
	if l.of == nil {
		return strconv.FormatInt(s.running.count(), 10)
	}
	return strconv.FormatInt(l.of(), 10)
}

// firstLoads adds the attributes of all loads to those of the server.
func (s *Server) firstLoads(attrs *rocl.List) error {
	for _, l := range s.loads {
		l.value = l.now(s)
		if err := attrs.Replace(l.name, []byte(l.value)); err != nil {
			return err
		}
	}
	return nil
}

// publishLoads updates the attributes of loads until the server is closed.
func (s *Server) publishLoads() {
	var poll <-chan time.Time // nil: all loads are the number of requests
	for _, l := range s.loads {
		if l.of != nil {
			t := time.NewTicker(publishEvery)
			defer t.Stop()
			poll = t.C
		}
	}
	for {
		select {
		case <-s.running.changed:
		case <-poll:
		case <-s.life.Done():
			return
		}
		for _, l := range s.loads {
			v := l.now(s)
			if v == l.value {
				continue
			}
			if err := s.r.Set(s.life, l.name, v); err == nil {
				l.value = v
			} else if s.life.Err() == nil {
				// Cause: the directory is away, or refuses the attribute: see `err`. Remedy: none if it
				// passes.
				s.log.Warn("rpc: a load is not published", "server", s.ID(), "attribute", l.name, "err", err)
			}
		}
		select {
		case <-time.After(publishEvery):
		case <-s.life.Done():
			return
		}
	}
}
