// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bg is the context of calls without a limit.
var bg = context.Background()

// A bare is the machinery of a context, joined as rocl.Open joins it.
type bare struct {
	life      *Lifetime
	dir       *Directory
	disp      *dispatch.Dispatcher
	ports     *Ports
	targets   *Targets
	questions *Questions
}

// newBare opens a bare at the server s, and closes both when the test ends.
func newBare(t *testing.T, s *directory.Server, opts ...func(*Config)) *bare {
	t.Helper()
	cfg := Defaults()
	cfg.Transports = []subsys.Transport{inproc.NewNetwork().Transport()}
	cfg.Dial = s.Dialer()
	for _, o := range opts {
		o(&cfg)
	}
	rules := try.Get(cfg.Check())(t)
	changed := make(chan struct{}, 1)
	client := try.Get(cfg.Join(bg, changed))(t)
	pool := buffers.New()
	b := &bare{life: NewLifetime()}
	b.dir = NewDirectory(client, b.life)
	b.ports = NewPorts(&cfg, client.Self(), client, changed)
	b.targets = NewTargets(b.dir, rules, b.ports.Usable)
	b.disp = dispatch.New(dispatch.Config{
		Self: client.Self(), Pool: pool, Resolve: b.targets.Resolve, Trust: b.ports.Trust, Ended: b.targets.Ended, Logger: cfg.Logger,
	})
	b.targets.UseFlows(b.disp)
	b.questions = try.Get(NewQuestions(b.dir, b.disp, cfg.Logger, nil))(t)
	try.OK(t, b.ports.Open(bg, b.disp))
	t.Cleanup(func() {
		b.life.End()
		try.Check(t, b.disp.Close(bg), client.Close(), s.Close())
		pool.Close()
	})
	return b
}

// remember puts urls into the cache as the addresses of the context peer.
func (b *bare) remember(peer resource.GID, urls ...string) {
	r := resource.Record{ID: peer, Owner: peer}
	for _, u := range urls {
		_ = r.Attrs.AddString(directory.AttrAddr, u)
	}
	b.targets.Remember(&r)
}
