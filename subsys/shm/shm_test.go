package shm_test

import (
	"testing"

	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	subsystest.Test(t, subsystest.Options{New: shm.New, Lends: true})
}
