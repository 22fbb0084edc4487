// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/hex"
	"net"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// The proofs at a TCP port must stay.
func TestVectors(t *testing.T) {
	id := new(Identity)
	copy(id.key[:], bytes.Repeat([]byte{1}, len(id.key)))
	h := handshake{id: id, at: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7946}}
	copy(h.server[:], bytes.Repeat([]byte{2}, tcpNonce))
	copy(h.client[:], bytes.Repeat([]byte{3}, tcpNonce))
	var all []vectors.Vector
	for _, role := range []string{"client", "server"} {
		proof := h.proof(role)
		all = append(all, vectors.Of("proof of the "+role, proof[:], map[string]any{
			"key": hex.EncodeToString(id.key[:]), "nonce of the server": hex.EncodeToString(h.server[:]), "nonce of the client": hex.EncodeToString(h.client[:]), "address": "127.0.0.1:7946",
		}))
	}
	vectors.Check(t, "proofs", all)
}
