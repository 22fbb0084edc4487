// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Ends has the results of a call, a monitor and a receive. A result is "" while the operation goes
// on.
type Ends struct{ Call, Monitor, Recv string }

// Expect makes the agent's resource monitor another resource, call it, and receive from it.
func (a *Agent) Expect(id rocl.GID, _ *struct{}) error {
	const ended, never = 100, 101
	a.mu.Lock()
	a.ends = Ends{}
	me := a.me
	a.mu.Unlock()
	if _, err := me.Monitor(context.Background(), id, ended); err != nil {
		return err
	}
	end := func(field *string, how func() error) {
		go func() {
			text := "no error"
			switch err := how(); {
			case errors.Is(err, rocl.ErrGone):
				text = "gone"
			case err != nil:
				text = err.Error()
			}
			a.mu.Lock()
			*field = text
			a.mu.Unlock()
		}()
	}
	end(&a.ends.Call, func() error {
		_, err := me.CallBytes(context.Background(), id, 1, []byte("a request"))
		return err
	})
	end(&a.ends.Monitor, func() error {
		m, err := me.Recv(context.Background(), rocl.Tag(ended))
		if err == nil && m.IsGone() && m.From() == id {
			err = rocl.ErrGone
		}
		return err
	})
	end(&a.ends.Recv, func() error {
		_, err := me.Recv(context.Background(), rocl.From(id), rocl.Tag(never))
		return err
	})
	return nil
}

// Ended returns the results of Expect.
func (a *Agent) Ended(_ struct{}, out *Ends) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	*out = a.ends
	return nil
}

// Hold receives a request and does not reply. It returns the payload.
func (a *Agent) Hold(id rocl.GID, data *string) error {
	r, err := a.resource(id)
	if err != nil {
		return err
	}
	ctx, cancel := brief()
	defer cancel()
	m, err := r.Recv(ctx)
	if err == nil {
		*data = string(m.Bytes())
	}
	return err
}

// A call to a resource of another node, a monitor of it, and a receive from it end with ErrGone
// when gossip says that the node is dead. They do not end when its network is cut for a moment.
// When the node is back, they work as before.
func TestAwaitedNodeDies(t *testing.T) {
	parallel(t)
	l := up(t, 3)
	// With a shorter time a link could end before gossip tells the death, on a busy machine.
	from, to := l.nodes[0].agentWithGiveUp(time.Hour), l.nodes[1].agentWithGiveUp(time.Hour)
	from.register(rocl.Attrs{"who": "client"})
	id := to.register(rocl.Attrs{"who": "server"})
	ended := func() Ends { return do[struct{}, Ends](from, "Ended", struct{}{}) }
	for range 2 {
		from.say(to, id, "hello")
		do[rocl.GID, struct{}](from, "Expect", id)
		if got := do[rocl.GID, string](to, "Hold", id); got != "a request" { // the agent does not reply
			t.Fatalf("the server received %q", got)
		}
		before := l.deaths()
		l.cut(l.nodes[1:2], l.nodes)
		time.Sleep(300 * time.Millisecond) // the length of the cut, shorter than a death takes
		l.heal()
		from.say(to, id, "still there?")
		if e := ended(); e != (Ends{}) && l.deaths() == before { // on a busy machine the cut may be a long one
			t.Errorf("after a short cut: %+v", e)
		}
		l.cut(l.nodes[1:2], l.nodes)
		var e Ends
		if !eventually.Within(time.Minute, func() bool { e = ended(); return e.Call != "" && e.Monitor != "" && e.Recv != "" }) {
			t.Fatalf("after a long cut, not all have ended: %+v", e)
		}
		try.Equal(t, e, (Ends{"gone", "gone", "gone"}), "after a long cut")
		l.heal()
		l.together(l.nodes...)
	}
}
