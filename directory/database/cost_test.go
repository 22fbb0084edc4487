// SPDX-License-Identifier: Apache-2.0

//go:build !race

package database

import (
	"fmt"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// The cost of deleting resources with many attributes grows with the length of their lists, not
// with its square. The database answers nothing else meanwhile.
func TestManyAttributesCost(t *testing.T) {
	d := New()
	var l resource.List
	for i := range resource.MaxAttrs {
		_ = l.AddString(fmt.Sprint(i), "")
	}
	owner := resource.MakeGID(1, 1, 0)
	const n = 800
	for i := range uint32(n) {
		if _, err := d.Put(owner.WithSerial(1+i), owner, &l); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint32(n) {
			if err := d.Delete(owner.WithSerial(1 + i)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(40 * time.Second):
		t.Fatal("the cost grows with the square of the number of attributes")
	}
}
