// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package futex

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The kernel finds a word by its file: a goroutine that sleeps on one mapping is woken through
// another.
func TestShared(t *testing.T) {
	const size = 4096
	fd, mem, err := memfd.CreateShared("test", size)
	if err != nil {
		t.Skip(err)
	}
	defer memfd.Close(fd)
	defer memfd.Unmap(mem)
	other := try.Get(memfd.OpenShared(fd, size))(t)
	defer memfd.Unmap(other)
	w, o := (*atomic.Uint32)(unsafe.Pointer(&mem[0])), (*atomic.Uint32)(unsafe.Pointer(&other[0]))

	done := make(chan struct{})
	go func() {
		for w.Load() == 0 {
			Wait(w, 0, 0)
		}
		close(done)
	}()
	o.Add(1)
	Wake(o)
	<-done
	Wait(w, 0, 0)                // returns at once: the word has changed
	Wait(w, 1, time.Millisecond) // returns though no goroutine wakes it
}
