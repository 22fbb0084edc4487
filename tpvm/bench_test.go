// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"testing"
)

// BenchmarkPacked measures a message of SendPacked to RecvInto within one task.
func BenchmarkPacked(b *testing.B) {
	ctx := context.Background()
	for name, values := range map[string][]any{"one": {1}, "mixed": {1, "text", 2.5}, "slice": {make([]float64, 1024)}} {
		b.Run(name, func(b *testing.B) {
			t := enrol(b, alone(b))
			var into []any
			for _, v := range values {
				switch v := v.(type) {
				case int:
					into = append(into, new(int))
				case string:
					into = append(into, new(string))
				case float64:
					into = append(into, new(float64))
				case []float64:
					into = append(into, v)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := t.SendPacked(ctx, t.ID(), 1, values...); err != nil {
					b.Fatal(err)
				}
				if _, err := t.RecvInto(ctx, t.ID(), 1, into...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
