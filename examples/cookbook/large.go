// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"io"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// SendLent sends memory of the program and returns when the library does not read it any more: then
// the program may write to it.
func SendLent(ctx context.Context, me *rocl.Resource, to rocl.GID, tag uint64, mem []byte) error {
	done := make(chan struct{})
	b := me.Context().Lend(mem, func() { close(done) })
	err := me.Send(ctx, to, tag, b)
	if err != nil {
		b.Release() // nothing was sent
	}
	<-done
	return err
}

// Offer lets other processes read mem, and sends the handle of it to the resource to. The caller
// revokes the region before it writes to mem again.
func Offer(ctx context.Context, ep *bulk.Endpoint, me *rocl.Resource, to rocl.GID,
	mem []byte) (*bulk.Region, error) {
	region, err := ep.Expose(bulk.ReadOnly, bulk.Bytes(mem))
	if err != nil {
		return nil, err
	}
	if err := rocl.SendValue(ctx, me, to, 0, region.Handle()); err != nil {
		region.Close()
		return nil, err
	}
	return region, nil
}

// Fetch receives a handle and writes the memory that it names to w, in pieces of 1 MiB. While it
// writes one piece the next ones are on their way.
func Fetch(ctx context.Context, ep *bulk.Endpoint, me *rocl.Resource, w io.Writer) error {
	m, err := me.Recv(ctx, rocl.Tag(0))
	if err != nil {
		return err
	}
	h, err := rocl.Value[bulk.Handle](m)
	m.Release()
	if err != nil {
		return err
	}
	for piece, err := range bulk.Pipeline(ctx, ep, h, bulk.PieceSize(1<<20)) {
		if err != nil {
			return err
		}
		if _, err := w.Write(piece.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
