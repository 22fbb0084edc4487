// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// A key that another process has made up is refused, whatever lengths it has.
func TestKeysOfMemoryThatLie(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	for _, key := range [][]byte{
		{0}, {1}, {1, 'x'}, {255}, {1, 'x', 1},
		bytes.Repeat([]byte{255}, 255),
		append([]byte{1, 'x', subsys.MostKey + 1}, make([]byte, subsys.MostKey+1)...),
		append([]byte{255}, make([]byte, 255)...), // a name, and no key
		append(append([]byte{255}, make([]byte, 255)...), append([]byte{255}, make([]byte, 255)...)...),
	} {
		_, err := d.RemoteMemory(id(0), key)
		try.Fails(err)(t, ErrProtocol, "%d bytes that begin with %d", len(key), key[0])
	}
	for _, key := range [][]byte{nil, {1, 'x', 0}, append([]byte{255}, make([]byte, 256)...)} {
		try.Get(d.RemoteMemory(id(0), key))(t)
	}
}
