// SPDX-License-Identifier: Apache-2.0

package bare_test

import (
	"context"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/ofi/bare"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Messages go there and back, and more one way than may be in progress. Waits end with the context.
func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var e [2]*bare.End
	for i := range e {
		var err error
		if e[i], err = bare.Open(ctx, "tcp;ofi_rxm", 100); errors.Is(err, fabric.ErrUnavailable) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		defer e[i].Close()
	}
	for i := range e {
		if err := e[i].Connect(e[1-i].Name()); err != nil {
			t.Fatal(err)
		}
	}
	const n = 200
	echoed := make(chan error, 1)
	go func() {
		for range n {
			if err := e[1].Recv(); err != nil {
				echoed <- err
				return
			}
		}
		echoed <- errors.Join(e[1].Send(), e[1].Flush())
	}()
	for range n {
		if err := e[0].Send(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(e[0].Recv(), <-echoed); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := e[0].Recv(); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait whose context has ended: %v", err)
	}
}
