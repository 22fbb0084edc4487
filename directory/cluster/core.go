// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/mux"
)

// A core is what the roles of a member share: see Cluster. Its fields do not change after Open.
type core struct {
	cfg   Config
	log   *slog.Logger
	mux   *mux.Mux
	life  *lifetime
	born  time.Time // only its monotonic part is used: reading half the clock is half the price
	count counts
}

// newCore returns a core without a mux. It fills in the defaults of cfg.
func newCore(cfg Config) *core {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Spread <= 0 {
		cfg.Spread = 5 * time.Second
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 3 * time.Second
	}
	if cfg.lookup <= 0 {
		cfg.lookup = joinTime
	}
	if cfg.resolve == nil {
		cfg.resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if cfg.service == nil {
		cfg.service = func(ctx context.Context, name string) ([]*net.SRV, error) {
			_, all, err := net.DefaultResolver.LookupSRV(ctx, "", "", name)
			return all, err
		}
	}
	c := &core{cfg: cfg, log: cfg.Logger, life: newLifetime(), born: time.Now()}
	c.count.init()
	return c
}

// A lifetime is the context of a membership, from Open to the beginning of its end, and has the
// goroutines that end with it.
type lifetime struct {
	context.Context // its cause is the error of questions that the end of the membership ends
	cancel          context.CancelCauseFunc
	mu              sync.Mutex // held while a goroutine begins: none begins after end
	busy            sync.WaitGroup
}

func newLifetime() *lifetime {
	l := &lifetime{}
	l.Context, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// begin runs f in a goroutine. It does nothing and reports false if the lifetime has ended.
func (l *lifetime) begin(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.busy.Go(f)
	return true
}

// end ends the lifetime for a reason. It does not wait for the goroutines: see wait.
func (l *lifetime) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel(why)
}

// wait waits for the goroutines of a lifetime that has ended.
func (l *lifetime) wait() { l.busy.Wait() }
