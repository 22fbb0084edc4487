// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

var identifier = regexp.MustCompile(`[0-9a-f]+-[0-9a-f]+-[0-9a-f]+`)

// namedTwice returns an identifier, or a part between colons, that stands twice in the text of an
// error.
func namedTwice(err error) string {
	seen := map[string]bool{}
	text := err.Error()
	for _, word := range append(identifier.FindAllString(text, -1), strings.Split(text, ": ")...) {
		if seen[word] && word != "rocl" && word != "rpc" && word != "bulk" {
			return word
		}
		seen[word] = true
	}
	return ""
}

// The common errors of the library name what was done to what, and each of it once.
//
// Promise (Commands): An error names what was done to what, each once. See also
// TestErrorNamesProviderOnce.
func TestErrorsNameOnce(t *testing.T) {
	bg := t.Context()
	for name, opts := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		t.Run(name, func(t *testing.T) {
			cl := rocltest.Cluster(t, 1)
			open := func(more ...rocl.Option) *rocl.Context { return cl.Open(0, append(opts, more...)...) }
			c, other := open(), open()
			me, you, own, deleted := reg(t, c), reg(t, other), reg(t, c), reg(t, c)
			if err := deleted.Delete(bg); err != nil {
				t.Fatal(err)
			}
			unread, mute, full := reg(t, other), reg(t, other), reg(t, other)
			go mute.Handle(bg, func(*rocl.Message) {}) // replies to nothing
			ended := open(rocl.WithLinger(0))
			late := reg(t, ended)
			if err := me.SendBytes(bg, late.ID(), 0, nil); err != nil {
				t.Fatal(err)
			}
			endedClient := try.Get(rpc.NewClient(bg, ended))(t)
			if err := ended.Close(); err != nil {
				t.Log(err)
			}
			client := try.Get(rpc.NewClient(bg, c))(t)
			defer client.Close()
			server := try.Get(rpc.NewServer(bg, other, rocl.Attrs{"is": "server"}))(t)
			defer server.Close(context.Background())
			if err := rpc.Register(server, "fails", func(context.Context, struct{}) (int, error) { return 0, errors.New("by intent") }); err != nil {
				t.Fatal(err)
			}
			ep := try.Get(bulk.Open(bg, c))(t)
			defer ep.Close(context.Background())
			past, cancel := context.WithCancel(bg)
			cancel()
			short := func() context.Context {
				ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
				t.Cleanup(cancel)
				return ctx
			}
			nobody := rocl.GID{}
			unknown := other.ID().WithSerial(12345)
			b := try.Get(c.Buffer(1))(t)
			defer b.Release()
			holding := func(send func() error) error { // send takes over a reference unless it fails
				b.Retain()
				err := send()
				if err != nil {
					b.Release()
				}
				return err
			}
			call := func(ctx context.Context, r *rocl.Resource, to rocl.GID) error {
				m, err := r.CallBytes(ctx, to, 0, nil)
				if err == nil {
					m.Release()
				}
				return err
			}
			// A message to a resource that has ended may be accepted before that is known.
			untilRefused := func(send func() error) error {
				for {
					if err := send(); err != nil && !errors.Is(err, rocl.ErrFull) {
						return err
					}
				}
			}
			second := func(_ any, err error) error { return err }
			for what, do := range map[string]func() error{
				"send to a deleted resource":   func() error { return untilRefused(func() error { return me.SendBytes(bg, deleted.ID(), 0, nil) }) },
				"send to an unknown resource":  func() error { return untilRefused(func() error { return me.SendBytes(bg, unknown, 0, nil) }) },
				"send to an ended context":     func() error { return untilRefused(func() error { return me.SendBytes(bg, late.ID(), 0, nil) }) },
				"send to nobody":               func() error { return me.SendBytes(bg, nobody, 0, nil) },
				"send to a context":            func() error { return me.SendBytes(bg, other.ID(), 0, nil) },
				"send from a deleted resource": func() error { return deleted.SendBytes(bg, you.ID(), 0, nil) },
				"send from a closed context":   func() error { return late.SendBytes(bg, you.ID(), 0, nil) },
				"send to a full mailbox": func() error {
					ctx := short()
					return untilRefused(func() error { return me.SendBytes(ctx, full.ID(), 0, make([]byte, 1<<20)) })
				},
				"forget": func() error { return untilRefused(func() error { return me.SendAndForget(bg, unknown, 0, nil) }) },
				"try to send": func() error {
					return untilRefused(func() error { return holding(func() error { return me.TrySend(unknown, 0, b) }) })
				},
				"send to all": func() error {
					return untilRefused(func() error {
						return holding(func() error { return me.SendAll(bg, []rocl.GID{unknown, nobody}, 0, b) })
					})
				},
				"send a value":                   func() error { return untilRefused(func() error { return rocl.SendValue(bg, me, unknown, 0, 1) }) },
				"a value that cannot be encoded": func() error { return rocl.SendValue(bg, me, you.ID(), 0, make(chan int)) },
				"call a deleted resource":        func() error { return call(bg, me, deleted.ID()) },
				"call an unknown resource":       func() error { return call(bg, me, unknown) },
				"call an ended context":          func() error { return call(bg, me, late.ID()) },
				"call nobody":                    func() error { return call(bg, me, nobody) },
				"call the mute":                  func() error { return call(bg, me, mute.ID()) },
				"call without an answer":         func() error { return call(short(), me, unread.ID()) },
				"call that is over":              func() error { return call(past, me, unread.ID()) },
				"call from a deleted resource":   func() error { return call(bg, deleted, you.ID()) },
				"flush a deleted resource":       func() error { return deleted.Flush(bg) },
				"flush":                          func() error { me.SendBytes(bg, unknown.Context().WithSerial(777), 0, nil); return me.Flush(bg) },
				"receive at a deleted resource":  func() error { return second(deleted.Recv(bg)) },
				"receive from an ended resource": func() error { return second(me.Recv(bg, rocl.From(late.ID()))) },
				"receive in vain":                func() error { return second(own.Recv(short())) },
				"monitor":                        func() error { return second(me.Monitor(bg, nobody, 0)) },
				"look up":                        func() error { return second(c.Lookup(bg, unknown)) },
				"find":                           func() error { return second(c.Find(bg, rocl.Match{"no": "such"})) },
				"await":                          func() error { return second(c.Await(short(), rocl.Match{"no": "such"}, 1)) },
				"update a deleted resource":      func() error { return deleted.Update(bg, nil) },
				"set at a deleted resource":      func() error { return deleted.Set(bg, "a", "b") },
				"compare and set":                func() error { return second(own.CompareAndSet(bg, 99, nil)) },
				"delete a deleted resource":      func() error { return deleted.Delete(bg) },
				"register a reserved name":       func() error { return second(c.Register(bg, rocl.Attrs{"rocl.x": "y"})) },
				"register in a closed context":   func() error { return second(ended.Register(bg, nil)) },
				"register another unique": func() error {
					second(c.Register(bg, rocl.Attrs{"u": "1"}, rocl.Unique("u")))
					return second(c.Register(bg, rocl.Attrs{"u": "1"}, rocl.Unique("u")))
				},
				"open without a directory":        func() error { return second(rocl.Open(bg, rocl.JoinOnly(), rocl.WithSocket("/nowhere/d.sock"))) },
				"call by name, an error":          func() error { return second(rpc.Call[struct{}, int](bg, client, server.ID(), "fails", struct{}{})) },
				"call by name, none":              func() error { return second(rpc.Call[struct{}, int](bg, client, server.ID(), "none", struct{}{})) },
				"call by name, nobody":            func() error { return second(rpc.Call[struct{}, int](bg, client, nobody, "x", struct{}{})) },
				"call by name, unknown":           func() error { return second(rpc.Call[struct{}, int](bg, client, unknown, "x", struct{}{})) },
				"call by name, an ended context":  func() error { return second(rpc.Call[struct{}, int](bg, client, late.ID(), "x", struct{}{})) },
				"call by name, silent":            func() error { return second(rpc.Call[struct{}, int](short(), client, unread.ID(), "x", struct{}{})) },
				"call by name, from a closed one": func() error { return second(rpc.Call[struct{}, int](bg, endedClient, server.ID(), "x", struct{}{})) },
				"expose nothing":                  func() error { return second(ep.Expose(bulk.ReadOnly)) },
				"expose without rights":           func() error { return second(ep.Expose(0, bulk.Bytes(nil))) },
			} {
				err := do()
				if err == nil {
					t.Errorf("%s: no error", what)
					continue
				}
				if word := namedTwice(err); word != "" {
					t.Errorf("%s: %q stands twice in %q", what, word, err)
				}
				if testing.Verbose() {
					t.Logf("%s: %v", what, err)
				}
			}
		})
	}
}
