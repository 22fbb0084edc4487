// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// vector returns the vector of a value. Its fields have the text of the type, if it is raw.
func vector[T any](t *testing.T, name string, v T) vectors.Vector {
	b := try.Get(Append(nil, &v))(t)
	f := map[string]any{"value": v}
	if text := planOf[T]().text; text != "" {
		f["type"] = text
	}
	return vectors.Of(name, b, f)
}

// The forms of values must stay.
func TestVectors(t *testing.T) {
	type point struct {
		X int16
		Y float32
	}
	vectors.Check(t, "values", []vectors.Vector{
		vector(t, "string", "text"),
		vector(t, "bool", true),
		vector(t, "int", -2),
		vector(t, "struct", point{1, 0.5}),
		vector(t, "array of structs", [2]point{{1, 0.5}, {2, 0.25}}),
		vector(t, "slice of numbers", []uint32{1, 2, 3}),
		vector(t, "slice of structs", []point{{1, 0.5}}),
		vector(t, "map, as CBOR", map[string]int{"a": 1}),
	})
}
