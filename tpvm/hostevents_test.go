// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// Unpacking the event of a host from any message fails or returns a host.
func FuzzHostEvent(f *testing.F) {
	b := pack.NewBuffer(pack.Default)
	for _, s := range []string{"000000000001-1000001-1", "000000000001", "one", "linux/amd64"} {
		try.OK(f, b.PackString(s))
	}
	try.OK(f, pack.Pack(b, []int32{8, 1}, 1))
	p := make([]byte, b.Size())
	try.Get(b.Encode(p))(f)
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
