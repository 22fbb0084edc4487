// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// BenchmarkThreads measures a message there and back between two threads of one task.
func BenchmarkThreads(b *testing.B) {
	ctx := context.Background()
	t := enrol(b, alone(b))
	done := make(chan error, 1)
	must(t.Export(ctx, "echo", func(_ context.Context, th *tpvm.Thread) error {
		r := th.Buffer(pack.Raw)
		v := make([]float64, 8)
		for range b.N {
			m, err := th.Recv(ctx, th.Parent(), 1)
			if err != nil {
				done <- err
				return err
			}
			err = pack.Unpack(&m.Reader, v, 1)
			m.Release()
			r.Reset(pack.Raw)
			if err == nil {
				err = pack.Pack(r, v, 1)
			}
			if err == nil {
				err = th.Send(ctx, th.Parent(), 2, r)
			}
			if err != nil {
				done <- err
				return err
			}
		}
		done <- nil
		return nil
	}))(b)
	ids := must(t.Spawn(ctx, "echo", 1))(b)
	s, v := t.Buffer(pack.Raw), make([]float64, 8)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		s.Reset(pack.Raw)
		if err := pack.Pack(s, v, 1); err != nil {
			b.Fatal(err)
		}
		if err := t.Send(ctx, ids[0], 1, s); err != nil {
			b.Fatal(err)
		}
		m, err := t.Recv(ctx, ids[0], 2)
		if err != nil {
			b.Fatal(err)
		}
		if err := pack.Unpack(&m.Reader, v, 1); err != nil {
			b.Fatal(err)
		}
		m.Release()
	}
	b.StopTimer()
	check(b, <-done)
}

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
