// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm_test

import (
	"testing"

	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/subsystest"
)

func TestConformance(t *testing.T) {
	subsystest.Test(t, subsystest.Options{New: shm.New, Lends: true, Allocs: allocs})
}
