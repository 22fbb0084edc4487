// SPDX-License-Identifier: Apache-2.0

package inproc_test

import (
	"testing"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	subsystest.Test(t, subsystest.Options{New: func() subsys.Transport { return inproc.NewNetwork().Transport() }})
}
