// SPDX-License-Identifier: Apache-2.0

//go:build rocldebug

package buffers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func caught(f func()) (s string) {
	defer func() { s = fmt.Sprint(recover()) }()
	f()
	return ""
}

func TestDebugNamesPlaces(t *testing.T) {
	p := New()
	b, _ := p.Get(64)
	b.Release()
	if s := caught(b.Release); !strings.Contains(s, "released twice") || strings.Count(s, "debug_test.go") < 2 {
		t.Errorf("double release: %s", s)
	}
	p = New()
	b, _ = p.Get(64)
	mem := b.Bytes()
	b.Release()
	try.Equal(t, mem[0], poison, "released memory is not poisoned")
	mem[3] = 1
	if s := caught(func() { // the free list is first in, last out: drain it
		for range 10_000 {
			_, _ = p.Get(64)
		}
	}); !strings.Contains(s, "byte 3 was written after the release") {
		t.Errorf("write after release: %s", s)
	}
	p = New()
	_, _ = p.Get(64)
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "debug_test.go") {
		t.Errorf("leak: %v", err)
	}
}
