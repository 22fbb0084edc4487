// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// Promise (Package work): A worker that does not answer for as long as Silence says has its tasks
// done by others. A handler may take any time.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 1)
		for _, isSilent := range []bool{true, false} {
			q := try.Get(Open[int, int](t.Context(), c.Open(0), rocl.Match{"job": "test"}, Silence(time.Minute)))(t)
			rc := c.Open(0)
			ctx, leave := context.WithCancel(t.Context())
			served := make(chan error, 1)
			if isSilent {
				go func() { served <- stopped(ctx, rc) }()
			} else {
				go func() {
					served <- Serve(ctx, rc, rocl.Attrs{"job": "test"}, func(_ context.Context, n int) (int, error) {
						time.Sleep(24 * time.Hour) // in a bubble: the work
						return n, nil
					})
				}()
			}
			try.OK(t, q.Put(t.Context(), 1))
			synctest.Wait()
			try.Equal(t, q.Stats().Working, 1)
			other := make(chan error, 1)
			go func() {
				other <- Serve(ctx, c.Open(0), rocl.Attrs{"job": "test"}, func(_ context.Context, n int) (int, error) { return -n, nil })
			}()
			began := time.Now()
			for r, err := range q.Results(t.Context()) {
				try.OK(t, err)
				try.OK(t, r.Err)
				if want := map[bool]int{true: -1, false: 1}[isSilent]; r.Out != want {
					t.Errorf("%+v after %v", r, time.Since(began))
				}
				break
			}
			leave()
			try.OK(t, <-other)
			try.OK(t, <-served)
			try.OK(t, q.Close())
		}
	})
}

// stopped is a worker that begins sessions, and otherwise does nothing.
func stopped(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, rocl.Attrs{"job": "test", attrVersion: version})
	if err != nil {
		return err
	}
	defer me.Close()
	for m, err := range me.Messages(ctx) {
		if err != nil {
			return err
		}
		if kind, _ := splitTag(m.Tag()); kind == kindHello {
			reply := binary.LittleEndian.AppendUint32([]byte{helloOK}, 1)
			if err := me.ReplyBytes(ctx, m, sample(reply, format[int]{})); err != nil {
				return err
			}
		}
		m.Release()
	}
	return nil
}

// Promise (Package work): A queue and a worker survive any messages.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 1)
		ctx, leave := context.WithCancel(t.Context())
		served := make(chan error, 1)
		rc := c.Open(0)
		go func() {
			served <- Serve(ctx, rc, rocl.Attrs{"job": "test"}, func(_ context.Context, n int) (int, error) { return n, nil })
		}()
		q := try.Get(Open[int, int](t.Context(), c.Open(0), rocl.Match{"job": "test"}))(t)
		synctest.Wait()
		worker := try.Get(c.Open(0).Find(t.Context(), rocl.Match{"job": "test"}))(t)
		stranger := try.Get(c.Open(0).Register(t.Context(), nil))(t)
		for kind := range byte(20) {
			for _, p := range [][]byte{nil, {1}, make([]byte, 13), {0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255}} {
				for _, to := range []rocl.GID{worker.ID, q.self.ID()} {
					try.OK(t, stranger.SendBytes(t.Context(), to, tagOf(kind, 1), p))
				}
			}
		}
		for _, p := range [][]byte{nil, {2}, {2, 255, 255, 255, 255}, make([]byte, 30)} {
			m := try.Get(stranger.CallBytes(t.Context(), worker.ID, tagOf(kindHello, 1), p))(t)
			try.Equal(t, m.Bytes()[0], helloTypes)
			m.Release()
		}
		m := try.Get(stranger.CallBytes(t.Context(), worker.ID, tagOf(kindHello, 1), sample(nil, format[int]{})))(t)
		try.Equal(t, m.Bytes()[0], helloOK)
		m.Release()
		try.OK(t, stranger.SendBytes(t.Context(), worker.ID, tagOf(kindTasks, 1), make([]byte, 11))) // ends the session
		bye := try.Get(stranger.Recv(t.Context()))(t)
		bye.Release()
		for i := range 10 {
			try.OK(t, q.Put(t.Context(), i))
		}
		q.Finish()
		n := 0
		for r, err := range q.Results(t.Context()) {
			try.OK(t, err)
			try.OK(t, r.Err)
			n++
		}
		try.Equal(t, n, 10)
		try.OK(t, q.Close())
		leave()
		try.OK(t, <-served)
	})
}
