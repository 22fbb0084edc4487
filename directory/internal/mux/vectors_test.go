// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// Datagrams must stay: of node 1 with the epoch 0x1111 to node 2 with the epoch 0x2222.
func TestVectors(t *testing.T) {
	var all []vectors.Vector
	for _, key := range []string{"a key of 16 byte", ""} {
		var secrets [][]byte
		if key != "" {
			secrets = [][]byte{[]byte(key)}
		}
		k := newKeys("lab", secrets)
		for _, d := range []struct {
			name    string
			kind    byte
			counter uint64
			content string
			of      string
			ids     []uint64
			before  []byte
		}{
			{"one member", kindOne, 7, "\x00hello", "one", []uint64{1, 0x1111, 2, 0x2222}, nil},
			{"cast", kindCast, 7, "hello", "cast", []uint64{1, 0x1111}, nil},
			{"beacon of port 7582", kindBeacon, 7, "\x9e\x1d", "beacon", nil, nil},
			{"head of a stream", kindLarge, 8, "\x05\x00\x00\x00", "one", []uint64{1, 0x1111, 2, 0x2222}, []byte{largeByte}},
			{"body of a stream", kindBody, 9, "hello", "one", []uint64{1, 0x1111, 2, 0x2222}, nil},
			{"gossip", kindGossip, 7, "hello", "gossip", []uint64{1, 0x1111, 2, 0x2222}, nil},
			{"hello that asks", kindHello, 7, "\x00\x01\x02\x03\x04\x05\x06\x07\x08", "hello", nil, nil},
		} {
			b := seal(d.before, k.cipher(derive(k.bytes[0], d.of, d.ids...)), d.kind, k.tags[0], 1, d.counter, []byte(d.content))
			all = append(all, vectors.Of(d.name, b, map[string]any{"cluster": "lab", "key": key, "kind": d.kind, "sender": 1, "counter": d.counter}))
		}
	}
	vectors.Check(t, "datagrams", all)
}
