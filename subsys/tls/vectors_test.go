// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"crypto/ed25519"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// All members must derive the same values, in every version.
func TestVectors(t *testing.T) {
	a := derive(t, "test", key(1))
	vectors.Check(t, "tls", []vectors.Vector{vectors.Of("public key of the authority", a.key.Public().(ed25519.PublicKey),
		map[string]any{"cluster": "test", "secret": "32 bytes of 01", "name of the authority": a.name})})
}
