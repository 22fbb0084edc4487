// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// Every argument that exceeds a limit gives the error ErrTooLarge, whose text names the limit.
func TestTooLarge(t *testing.T) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 1).Open(0)
	r := reg(t, c)
	p, err := c.Buffer(10)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	value := rocl.Attrs{"x": strings.Repeat("v", resource.MaxValue+1)}
	many := rocl.Attrs{}
	for i := range resource.MaxAttrs + 1 {
		many[fmt.Sprint("n", i)] = ""
	}
	for name, do := range map[string]func() error{
		"a large buffer":              func() error { _, err := c.Buffer(min(1<<40, math.MaxInt)); return err },
		"a buffer above the limit":    func() error { _, err := c.Buffer(rocl.MaxMessage + 1); return err },
		"a buffer of less than 0":     func() error { _, err := c.Buffer(-1); return err },
		"resized beyond its memory":   func() error { return p.Resize(p.Cap() + 1) },
		"resized to less than 0":      func() error { return p.Resize(-1) },
		"Register of a large value":   func() error { _, err := c.Register(ctx, value); return err },
		"Register of many attributes": func() error { _, err := c.Register(ctx, many); return err },
		"Register of a long name": func() error {
			_, err := c.Register(ctx, rocl.Attrs{strings.Repeat("n", resource.MaxName+1): ""})
			return err
		},
		"Update":        func() error { return r.Update(ctx, value) },
		"CompareAndSet": func() error { _, err := r.CompareAndSet(ctx, 1, value); return err },
		"Find":          func() error { _, err := c.Find(ctx, value); return err },
		"FindAll": func() error {
			for _, err := range c.FindAll(ctx, value) {
				return err
			}
			return nil
		},
		"Watch": func() error {
			for _, err := range c.Watch(ctx, value) {
				return err
			}
			return nil
		},
	} {
		if err := do(); !errors.Is(err, rocl.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Buffer(-1); err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("a buffer of less than 0 bytes: %v", err)
	}
	if _, err := c.Find(ctx, nil); errors.Is(err, rocl.ErrTooLarge) {
		t.Errorf("another error is that too: %v", err)
	}
}

// A send to the zero identifier fails with an error that says what is wrong.
func TestSendToZero(t *testing.T) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 1).Open(0)
	r := reg(t, c)
	err := r.SendBytes(ctx, rocl.GID{}, 0, nil)
	if !errors.Is(err, rocl.ErrGone) || !strings.Contains(err.Error(), "zero identifier") {
		t.Errorf("sending to the zero identifier: %v", err)
	}
}
