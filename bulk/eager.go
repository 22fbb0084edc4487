// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
)

// An Argument is a handle that may have the bytes with it. It is sent like any other value, within
// arguments of calls too: small memory is there with the request, and large memory is pulled.
type Argument struct {
	Handle   Handle
	Snapshot []byte // what the memory had when the argument was made; nil: it is to be pulled
}

// Argument returns the region's handle. If the region has no more than limit bytes, and may be read, a copy of
// them is in the argument: [Endpoint.PullArgument] then needs no message, and later changes of the
// memory are not seen.
func (r *Region) Argument(limit int) Argument {
	a := Argument{Handle: r.Handle()}
	if r.rights&ReadOnly != 0 && r.Len() <= int64(limit) && r.begin() {
		defer r.end()
		a.Snapshot = make([]byte, r.Len())
		r.mem.read(a.Snapshot, 0)
	}
	return a
}

// PullArgument is [Endpoint.Pull] from what is in the argument, or else from its handle.
func (ep *Endpoint) PullArgument(ctx context.Context, a *Argument, off int64, dst ...[]byte) (int64, error) {
	if a.Snapshot == nil || int64(len(a.Snapshot)) != a.Handle.Len() {
		return ep.Pull(ctx, a.Handle, off, dst...)
	}
	mem, n := newLocal(dst)
	if err := a.Handle.check(ReadOnly, off, n); err != nil {
		return 0, failed("pull", &a.Handle, off, n, err)
	}
	mem.write(a.Snapshot[off:off+n], 0)
	return n, nil
}
