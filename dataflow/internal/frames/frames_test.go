// SPDX-License-Identifier: Apache-2.0

package frames

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

type record struct {
	Text string
	I    int
	F    float64
}

type point struct{ X, Y int32 }

// texts is a codec of records that lies if a text asks for it.
type texts struct{}

func (texts) Append(p []byte, r record) ([]byte, error) {
	switch r.Text {
	case "panic":
		panic("oops")
	case "short":
		return p[:0], nil
	case "error":
		return nil, errors.New("refused")
	}
	return fmt.Appendf(p, "%d %s", r.I, r.Text), nil
}

func (texts) Decode(p []byte) (r record, err error) {
	if string(p) == "0 undecodable" {
		panic("oops")
	}
	_, err = fmt.Sscan(string(p), &r.I, &r.Text)
	return r, err
}

// crossed sends items from one resource to another and returns what comes.
func crossed[T any](t *testing.T, own rocl.Codec[T], items []T) (got []T, messages int) {
	c := rocltest.Cluster(t, 1)
	from, to := c.Open(0), c.Open(0)
	a, b := try.Get(from.Register(t.Context(), nil))(t), try.Get(to.Register(t.Context(), nil))(t)
	f := New(own)
	try.OK(t, f.Send(t.Context(), a, b.ID(), 1, 2, items, nil))
	for len(got) < len(items) {
		m := try.Get(b.Recv(t.Context()))(t)
		if m.Tag() == 2 {
			got = append(got, try.Get(f.Many(m.Bytes()))(t)...)
		} else {
			var v T
			try.OK(t, f.One(to, m, &v))
			got = append(got, v)
		}
		messages++
		m.Release()
	}
	return got, messages
}

// checkCross checks that items arrive as they were sent, in one message.
func checkCross[T any](t *testing.T, own rocl.Codec[T], items ...T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= len(items); n += max(1, len(items)-1) {
			got, messages := crossed(t, own, items[:n])
			try.Equal(t, reflect.DeepEqual(got, items[:n]), true, "%v", got)
			try.Equal(t, messages, 1, "messages")
		}
	})
}

// Items of each form arrive as they were sent.
func TestCross(t *testing.T) {
	checkCross(t, nil, 1, 2, -3)
	checkCross(t, nil, point{1, 2}, point{3, 4})
	checkCross(t, nil, []byte("a"), []byte("bcd"), nil, bytes.Repeat([]byte("x"), 100_000))
	checkCross(t, nil, "a", "", "äö", strings.Repeat("x", 3000))
	checkCross(t, nil, record{"Hello", 1, 2.5}, record{I: -1})
	checkCross[record](t, texts{}, record{Text: "a"}, record{strings.Repeat("b", 5000), 2, 0})
	checkCross(t, nil, [][]string{{"a"}, {}}, [][]string{})
	checkCross(t, nil, struct{}{}, struct{}{})
}

// A buffer crosses as it is: the receiver reads the sender's memory, and the last holder gives it
// back. A buffer that cannot be sent is released.
func TestBuffersCrossUncopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 1).Open(0)
		a := try.Get(c.Register(t.Context(), nil))(t)
		f := New[*rocl.Buffer](nil)
		var sent []*rocl.Buffer
		for _, n := range []int{0, 5, 100_000} {
			sent = append(sent, try.Get(c.Buffer(n))(t))
		}
		where := &sent[2].Bytes()[0]
		try.OK(t, f.Send(t.Context(), a, a.ID(), 1, 2, sent, nil))
		for _, n := range []int{0, 5, 100_000} {
			m := try.Get(a.Recv(t.Context()))(t)
			var b *rocl.Buffer
			try.OK(t, f.One(c, m, &b))
			m.Release()
			try.Equal(t, b.Len(), n)
			if n == 100_000 && &b.Bytes()[0] != where {
				t.Error("the buffer was copied")
			}
			Discard([]*rocl.Buffer{b, nil})
		}
		try.Fails(f.Send(t.Context(), a, a.ID(), 1, 2, []*rocl.Buffer{nil, try.Get(c.Buffer(1))(t)}, nil))(t, codec.ErrValue)
		try.Fails(f.Send(t.Context(), a, c.ID(), 1, 2, []*rocl.Buffer{try.Get(c.Buffer(1))(t)}, nil))(t, rocl.ErrGone)
		Discard([]int{1})
	})
}

// A codec of the program that panics or shortens the payload is an error.
func TestCodecLies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 1).Open(0)
		a := try.Get(c.Register(t.Context(), nil))(t)
		f := New[record](texts{})
		for _, more := range [][]record{nil, {{}}, make([]record, 20)} {
			for _, text := range []string{"panic", "short", "error"} {
				err := f.Send(t.Context(), a, a.ID(), 1, 2, append(more, record{Text: text}), nil)
				if text == "short" && len(more) == 0 {
					try.OK(t, err) // nothing stands before the item
				} else {
					try.Rejects(err)(t)
				}
			}
		}
		try.Fails(f.Many([]byte("\x0d\x00\x00\x000 undecodable")))(t, ErrCodec)
		try.Rejects(New[*rocl.Buffer](nil).Many(nil))(t)
	})
}

// checkMany checks that any bytes are items or an error, and that items can be sent again.
func checkMany[T any](t *testing.T, own rocl.Codec[T], p []byte) {
	f := New(own)
	items, err := f.Many(p)
	if err != nil || len(items) < 2 {
		return
	}
	q, err := f.append(nil, items)
	if err != nil {
		return // a codec may decode what it does not encode
	}
	if _, err := f.Many(q); err != nil {
		t.Errorf("the items of %q are not decoded: %v", q, err)
	}
}

// Any bytes from another process are items or an error.
func FuzzMany(f *testing.F) {
	add := func(p []byte, err error) {
		try.OK(f, err)
		f.Add(p)
		f.Add(p[:len(p)-1])
	}
	add(New[int](nil).append(nil, []int{1, 2, 3}))
	add(New[point](nil).append(nil, []point{{1, 2}, {3, 4}}))
	add(New[[]byte](nil).append(nil, [][]byte{[]byte("a"), nil, []byte("bc")}))
	add(New[record](nil).append(nil, []record{{"a", 1, 2}, {}}))
	add(New[record](texts{}).append(nil, []record{{"a", 1, 2}, {Text: "b"}}))
	f.Add(binary.LittleEndian.AppendUint32(nil, 1<<32-1))
	f.Fuzz(func(t *testing.T, p []byte) {
		was := bytes.Clone(p)
		checkMany[int](t, nil, p)
		checkMany[point](t, nil, p)
		checkMany[[]byte](t, nil, p)
		checkMany[string](t, nil, p)
		checkMany[record](t, nil, p)
		checkMany[record](t, texts{}, p)
		try.Equal(t, bytes.Equal(p, was), true, "the payload is unchanged")
	})
}
