// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// The tags of requests say what the peer "replier" does with a request.
const (
	replies    = iota // replies with the payload
	keeps             // receives the request, and does nothing
	diesBefore        // is killed when it has received the request
	diesAfter         // is killed when its reply has been accepted
	diesWithin        // is killed during a large reply
)

const largeReply = 64 << 20

// replier replies to requests, each in a goroutine of its own.
func replier(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	r, err := c.Register(ctx, who)
	if err != nil {
		return err
	}
	fmt.Println("registered")
	die := func() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) }
	for m, err := range r.Messages(ctx) {
		if err != nil {
			return err
		}
		go func() {
			switch m.Tag() {
			case keeps:
				return
			case diesBefore:
				die()
			case diesWithin:
				time.AfterFunc(3*time.Millisecond, die) // the part that has gone by then is left to chance
				_ = r.ReplyBytes(ctx, m, make([]byte, largeReply))
				return
			}
			if err := r.Reply(ctx, m, m.Buffer()); err != nil {
				fmt.Println("replying:", err)
			}
			if m.Tag() == diesAfter {
				die()
			}
			m.Release()
		}()
	}
	return nil
}

// A server is killed, at any point of a call. Each call to it returns its whole reply, or ErrGone,
// and nothing is reported as undelivered.
func TestCallKilledServer(t *testing.T) {
	for _, poll := range []string{"", "adaptive", "never"} { // TCP, and shared memory
		t.Run("shm "+poll, func(t *testing.T) {
			t.Setenv("ROCL_TEST_SHM", poll)
			opts := []lib.Option{lib.WithUndelivered(func(u lib.Undelivered) { t.Errorf("reported: %+v", u) })}
			if poll == "" {
				opts = append(opts, lib.WithTransports(tcp.New()))
			}
			sock := socket(t)
			c := open(t, sock, opts...)
			r := register(t, c, nil)
			for _, how := range []uint64{keeps, diesBefore, diesAfter, diesWithin} {
				name := fmt.Sprint("server", how)
				s := peer(t, "replier", sock, name)
				to, err := c.Find(eventually.Context(t), lib.Match{"peer": name})
				if err != nil {
					t.Fatal(err)
				}
				ctx := eventually.Context(t)
				reply := func(tag uint64, size int) error {
					p := bytes.Repeat([]byte{byte(size)}, size)
					m, err := r.CallBytes(ctx, to.ID, tag, p)
					if err != nil {
						return err
					}
					defer m.Release()
					if tag != diesWithin && !bytes.Equal(m.Bytes(), p) || tag == diesWithin && m.Len() != largeReply {
						t.Errorf("another reply to %d", tag)
					}
					return nil
				}
				if err := reply(replies, 100); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for i := range 100 { // in flight when the server dies
					wg.Go(func() {
						if err := reply(keeps, i*100); !errors.Is(err, lib.ErrGone) {
							t.Errorf("how %d: %v", how, err)
						}
					})
				}
				for i := range 10 {
					wg.Go(func() {
						for {
							if err := reply(replies, i*10_000); err != nil {
								if !errors.Is(err, lib.ErrGone) {
									t.Errorf("how %d: %v", how, err)
								}
								return
							}
						}
					})
				}
				if how == keeps {
					s.kill(t)
				} else if err := reply(how, 1000); err != nil && !errors.Is(err, lib.ErrGone) {
					t.Errorf("how %d: %v", how, err)
				}
				wg.Wait()
			}
		})
	}
}
