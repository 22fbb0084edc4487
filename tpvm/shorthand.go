// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// SendPacked packs values, which are numbers, strings and slices of numbers, and sends them in one
// message, as Send does. The receiver unpacks them in the same order, with RecvInto or from the
// Message. The values are read before SendPacked returns.
//
// The message is typed: it has a description of the types of its values, of about two bytes for
// each value. If the receiver unpacks another type than was packed, such as a float64 in place of
// an int, it gets pack.ErrType. Package pack lists the PVM type of each Go type: int and int64 are
// the same.
func (t *Thread) SendPacked(ctx context.Context, to TID, tag int, values ...any) error {
	b := packer(&t.task.typedPackers, pack.InPlace, pack.WithTypes())
	defer putPacker(&t.task.typedPackers, b)
	if err := b.PackValues(values...); err != nil {
		return fmt.Errorf("tpvm: send to %v: %w", to, err)
	}
	return t.Send(ctx, to, tag, b)
}

// RecvInto receives a message as Recv does, and unpacks its values into numbers and strings, given
// by pointers, and into slices of numbers. It fails with pack.ErrType if SendPacked packed other
// types.
//
// A message of Send is untyped, unless its Buffer has pack.WithTypes. Its values must be unpacked
// as they were packed: other types give wrong values without an error. RecvInto fails with
// rocl.ErrGone if the message tells that its sender has ended.
func (t *Thread) RecvInto(ctx context.Context, from TID, tag int, into ...any) (Info, error) {
	m, err := t.Recv(ctx, from, tag)
	if err != nil {
		return Info{}, err
	}
	defer m.Release()
	i := Info{From: m.From(), Tag: m.Tag(), Len: m.Len()}
	if m.IsGone() {
		return i, fmt.Errorf("tpvm: receive %v: %v: %w", t.filter(from, tag), i.From, rocl.ErrGone)
	}
	if err := m.UnpackValues(into...); err != nil {
		return i, fmt.Errorf("tpvm: unpack the message from %v with tag %d: %w", i.From, i.Tag, err)
	}
	return i, nil
}
