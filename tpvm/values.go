// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// SendValues packs v and sends it, as pvm_psend does: the receiver calls [RecvValues] with the
// same T, or Recv and pack.Unpack. The values travel in encoding Raw, and are copied once.
func SendValues[T pack.Number](ctx context.Context, t *Thread, to TID, tag int, v []T) error {
	b := packer(&t.task.packers, pack.InPlace)
	defer putPacker(&t.task.packers, b)
	err := pack.Pack(b, v, 1)
	if err == nil {
		return t.Send(ctx, to, tag, b)
	}
	return fmt.Errorf("tpvm: send to %v: %w", to, err)
}

// RecvValues receives a message, as Recv does, and unpacks its values into v, as pvm_precv does. It
// returns the number of values, and the sender and the tag of the message. If the message has more
// values than v, RecvValues fills v and fails with ErrTruncated; the rest is lost. A message from
// Send can be received too, if its values are all of type T. Bytes of encoding Default count with
// their padding, up to a multiple of four.
func RecvValues[T pack.Number](ctx context.Context, t *Thread, from TID, tag int, v []T) (n int, i Info, err error) {
	m, err := t.Recv(ctx, from, tag)
	if err != nil {
		return 0, i, err
	}
	defer m.Release()
	i = Info{From: m.From(), Tag: m.Tag(), Len: m.Len()}
	n = min(valuesIn[T](m), len(v))
	if err = pack.Unpack(&m.Reader, v[:n], 1); err == nil && m.Remaining() > 0 {
		err = ErrTruncated
	}
	if err != nil {
		return n, i, fmt.Errorf("tpvm: receive values from %v: %w", i.From, err)
	}
	return n, i, nil
}

// valuesIn returns how many values of type T a message has.
func valuesIn[T pack.Number](m *Message) int {
	var z T
	size := int(unsafe.Sizeof(z))
	k := reflect.TypeFor[T]().Kind()
	isInt := k <= reflect.Uint64
	if k == reflect.Int || k == reflect.Uint {
		size = 8 // a long, even if Go's int has four bytes
	}
	if m.Encoding() == pack.Default && isInt && size > 1 {
		size = 4 // XDR has no smaller integers
	}
	return m.Remaining() / size
}

// SendBytes sends p as [SendValues] does.
func (t *Thread) SendBytes(ctx context.Context, to TID, tag int, p []byte) error {
	return SendValues(ctx, t, to, tag, p)
}

// SendBuffer sends the memory of m without a copy, as bytes of encoding InPlace. The receiver reads
// it with View or UnpackBytes. If SendBuffer returns nil, it has taken over the caller's reference
// to m; otherwise m stays the caller's.
func (t *Thread) SendBuffer(ctx context.Context, to TID, tag int, m *rocl.Buffer) error {
	if to.IsZero() {
		return errZeroTID
	}
	tg, err := t.tag(tag)
	if err == nil {
		err = t.r.Send(ctx, to, tg|bareFlag, m)
	}
	if err != nil {
		return fmt.Errorf("tpvm: send to %v: %w", to, err)
	}
	return nil
}

// packer returns an empty Buffer of a pool. All Buffers of a pool have the same types, which are
// options of NewBuffer.
func packer(pool *sync.Pool, enc pack.Encoding, types ...pack.Option) *pack.Buffer {
	b, ok := pool.Get().(*pack.Buffer)
	if !ok {
		return pack.NewBuffer(enc, types...)
	}
	b.Reset(enc)
	return b
}

func putPacker(pool *sync.Pool, b *pack.Buffer) {
	b.Reset(pack.Default) // drops references to packed memory
	pool.Put(b)
}
