// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// SendPacked packs values, which are numbers, strings and slices of numbers, and sends them in
// one message, as Send does. The receiver unpacks them in the same order, with RecvInto or from
// the Message. They are read before SendPacked returns.
func (t *Thread) SendPacked(ctx context.Context, to TID, tag int, values ...any) error {
	b := t.Buffer(pack.InPlace)
	if err := b.PackValues(values...); err != nil {
		return fmt.Errorf("tpvm: send to %v: %w", to, err)
	}
	return t.Send(ctx, to, tag, b)
}

// RecvInto receives a message as Recv does, and unpacks its values into numbers and strings,
// given by pointers, and into slices of numbers. It fails if the message tells that its sender has
// ended, with rocl.ErrGone.
func (t *Thread) RecvInto(ctx context.Context, from TID, tag int, into ...any) (Info, error) {
	m, err := t.Recv(ctx, from, tag)
	if err != nil {
		return Info{}, err
	}
	defer m.Release()
	i := Info{From: m.From(), Tag: m.Tag(), Len: m.Len()}
	if m.IsGone() {
		return i, fmt.Errorf("tpvm: receive: %v: %w", i.From, rocl.ErrGone)
	}
	if err := m.UnpackValues(into...); err != nil {
		return i, fmt.Errorf("tpvm: message from %v with tag %d: %w", i.From, i.Tag, err)
	}
	return i, nil
}
