// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// A peer that asks for answers without end, and acknowledges none, loses its connection before they
// take much memory. It loses each further connection too.
//
// Promise (Hostile peers): A peer that asks for answers and acknowledges none loses its connection.
func TestAnswersAreBounded(t *testing.T) {
	const atOnce = 64 // frames of one batch
	for what, ask := range map[string]subsys.Header{
		"messages to a missing resource": {Type: wire.TypeData, Dst: 99, Src: 5},
		"credit of a missing resource":   {Type: wire.TypeNeed, Dst: 99, Tag: 1},
		"pieces for a missing resource":  {Type: wire.TypeBegin, Dst: 99, Src: 5, Len: 4},
	} {
		t.Run(what, func(t *testing.T) {
			d := newWorld().node(t, 3, inproc.NewNetwork().Transport())
			c := &fakeConn{}
			l, ep := linked(t, d, c)
			flood := func() (err error) {
				for range 3 * mostAnswers / atOnce {
					fs := make([]subsys.Frame, atOnce)
					for i := range fs {
						fs[i].Header = ask
						fs[i].Seq = ep.link.Load().s.Expected() + uint32(i)
						fs[i].Data = []byte{0, 1, 0, 0}[:ask.Len]
					}
					if err = ep.comes(c, fs); err != nil {
						return err
					}
					if c.sent = c.sent[:0]; ask.Type == wire.TypeBegin { // each such frame ends the message before
						ask.Dst++
					}
				}
				return nil
			}
			err := flood()
			l.mu.Lock()
			n := l.s.Pending()
			l.mu.Unlock()
			if !errors.Is(err, ErrProtocol) || n > mostAnswers+2*atOnce {
				t.Errorf("%d frames wait to be acknowledged: %v", n, err)
			}
			try.Fails(flood())(t, ErrProtocol, "and afterwards")
		})
	}
}
