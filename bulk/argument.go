// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"iter"
)

// An Argument is a handle that may carry the bytes themselves. It is sent like any other value,
// also within arguments of calls. Small memory arrives with the request, and large memory is
// pulled.
type Argument struct {
	Handle   Handle
	Snapshot []byte // the bytes when the argument was made; nil if they must be pulled
}

// Argument returns the region's handle. If the region is small (see [Eager]) and may be read, the
// argument has a copy of its bytes. Then [Endpoint.PullArgument] and [PipelineArgument] need no
// message, and do not see later changes of the memory.
func (r *Region) Argument() Argument {
	a := Argument{Handle: r.Handle()}
	if r.rights&ReadOnly != 0 && r.Len() <= int64(r.ep.cfg.eager) && r.begin() {
		defer r.end()
		a.Snapshot = make([]byte, r.Len())
		r.mem.read(a.Snapshot, 0)
	}
	return a
}

// PullArgument is [Endpoint.Pull] from the bytes in the argument, or from its handle if the
// argument has none.
func (ep *Endpoint) PullArgument(ctx context.Context, a *Argument, off int64, dst ...[]byte) (int64, error) {
	if !a.isEager() {
		return ep.Pull(ctx, a.Handle, off, dst...)
	}
	mem, n := newLocal(dst)
	if err := a.Handle.check(ReadOnly, off, n); err != nil {
		return 0, wrapTransfer("pull", &a.Handle, off, n, err)
	}
	mem.write(a.Snapshot[off:off+n], 0)
	return n, nil
}

// PipelineArgument is [Pipeline] over an argument. It yields the bytes in the argument as one piece
// without a message, or pulls from the handle if the argument has none.
func PipelineArgument(ctx context.Context, ep *Endpoint, a *Argument, opts ...Option) iter.Seq2[Piece, error] {
	if !a.isEager() {
		return Pipeline(ctx, ep, a.Handle, opts...)
	}
	return func(yield func(Piece, error) bool) {
		if err := a.Handle.check(ReadOnly, 0, a.Handle.Len()); err != nil {
			yield(Piece{}, wrapTransfer("pipeline", &a.Handle, 0, a.Handle.Len(), err))
		} else if len(a.Snapshot) > 0 {
			yield(Piece{bytes: a.Snapshot}, nil)
		}
	}
}

// isEager reports whether all bytes are in the argument.
func (a *Argument) isEager() bool {
	return a.Snapshot != nil && int64(len(a.Snapshot)) == a.Handle.Len()
}
