// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// providers are those that need no hardware.
var providers = []string{"tcp;ofi_rxm", "shm", "sockets", "udp;ofi_rxd"}

// needs skips the test if the machine has no such provider.
func needs(t *testing.T, provider string) {
	t.Helper()
	pool := buffers.New()
	defer pool.Close()
	p, err := ofi.New(provider).Listen("", subsys.Config{Pool: pool, Logger: slog.New(slog.DiscardHandler), Progress: new(sync.Mutex)})
	if errors.Is(err, subsys.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestConformance(t *testing.T) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			needs(t, provider)
			subsystest.Test(t, subsystest.Options{New: func() subsys.Transport { return ofi.New(provider) }})
		})
	}
}
