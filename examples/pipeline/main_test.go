// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An input has a line for each Read, and counts the lines that were read. err follows the last
// line.
type input struct {
	read  atomic.Int64
	lines int64
	err   error
}

func line(i int64) string { return fmt.Sprintln("line", i) }

func (in *input) Read(p []byte) (int, error) {
	if in.read.Load() == in.lines {
		return 0, in.err
	}
	return copy(p, line(in.read.Add(1)-1)), nil
}

// A gate is a writer that takes nothing until it is open.
type gate struct {
	open chan struct{}
	bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(p)
}

// pipeline runs the example in this process, with a worker for each pause. The channel gets the
// result of run.
func pipeline(t *testing.T, in *input, out io.Writer, pauses ...time.Duration) chan error {
	node := rocltest.Cluster(t, 1)
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	for _, pause := range pauses {
		c := node.Open(0)
		all.Go(func() {
			try.Check(t, work(t.Context(), c, pause))
		})
	}
	c, done := node.Open(0), make(chan error, 1)
	all.Go(func() { done <- run(t.Context(), c, len(pauses), in, out) })
	return done
}

// A sink that takes nothing stops the source, after a number of lines that the bounds of the
// mailboxes set. When the sink goes on, no line is lost, and all are in order.
func TestSlowSinkStopsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := &input{lines: 1000, err: io.EOF}, &gate{open: make(chan struct{})}
		pauses := []time.Duration{0, 3 * time.Millisecond, 50 * time.Millisecond}
		done := pipeline(t, in, out, pauses...)
		time.Sleep(time.Minute)
		stopped, n := in.read.Load(), int64(len(pauses))
		// The sink has one line and its mailbox n*(depth+2), each worker has one and its mailbox
		// depth, and the source has one.
		if most := 1 + n*(depth+2) + n*(1+depth) + 1; stopped > most || stopped < n*(depth+2) {
			t.Errorf("%d lines were read, %d have a place", stopped, most)
		}
		time.Sleep(time.Hour)
		try.Equal(t, in.read.Load(), stopped, "lines read an hour later")
		close(out.open)
		try.Check(t, <-done)
		var want strings.Builder
		for i := range in.lines {
			want.WriteString(strings.ToUpper(line(i)))
		}
		if out.String() != want.String() {
			t.Errorf("%d bytes are printed, and not these %d", out.Len(), want.Len())
		}
	})
}

// A worker that stops, for longer than a receive may be stuck, stops the source too, and does not
// end the run.
func TestSlowWorkerStopsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &input{lines: 1000, err: io.EOF}
		done := pipeline(t, in, io.Discard, 0, time.Hour, 0)
		time.Sleep(time.Minute)
		if n, most := in.read.Load(), int64(3*(depth+2)+1); n > most {
			t.Errorf("%d lines were read, %d have a place", n, most)
		}
		select {
		case err := <-done:
			t.Errorf("the run ended with %v", err)
		default:
		}
	})
}

// An input that cannot be read ends the run.
func TestInputFails(t *testing.T) {
	torn := errors.New("the input is torn")
	try.Fails(<-pipeline(t, &input{lines: 100, err: torn}, io.Discard, 0, 0))(t, torn, "the run ended with")
}
