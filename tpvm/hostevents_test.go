// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"testing"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// Unpacking the event of a host from any message fails or returns a host.
func FuzzHostEvent(f *testing.F) {
	b := pack.NewBuffer(pack.Default)
	for _, s := range []string{"000000000001-1000001-1", "000000000001", "one", "linux/amd64"} {
		if err := b.PackString(s); err != nil {
			f.Fatal(err)
		}
	}
	if err := pack.Pack(b, []int32{8, 1}, 1); err != nil {
		f.Fatal(err)
	}
	p := make([]byte, b.Size())
	if _, err := b.Encode(p); err != nil {
		f.Fatal(err)
	}
	f.Add(uint8(pack.Default), p)
	f.Fuzz(func(t *testing.T, enc uint8, p []byte) {
		var m Message
		if err := m.Reader.Init(pack.Encoding(enc), false, p); err != nil {
			return
		}
		if e, err := m.HostEvent(); err != nil && e != (HostEvent{}) {
			t.Errorf("%+v with %v", e, err)
		}
	})
}
