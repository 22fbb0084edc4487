// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

// overAll does what over does, and adds shared memory.
func overAll(t *testing.T, f func(t *testing.T, open func(...rocl.Option) *rocl.Context)) {
	eachTransport(t, f)
	t.Run("shm", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		f(t, func(more ...rocl.Option) *rocl.Context {
			return cl.Open(0, append([]rocl.Option{rocl.WithTransports(shm.New())}, more...)...)
		})
	})
}

type sample struct {
	At    int64
	Value [3]float64
	Valid bool
	ID    resource.GID
}

type report struct {
	Name    string
	Samples []sample
	More    map[string]int
}

// passes sends v from one resource to the other and compares what arrives.
func passes[T any](t *testing.T, from, to *rocl.Resource, v T, c ...codec.Codec[T]) {
	t.Helper()
	try.OK(t, rocl.SendValue(bg, from, to.ID(), 7, v, c...))
	m := recv(t, to)
	got, err := rocl.Value(m, c...)
	m.Release()
	if err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%T: %.200v, %v", v, got, err)
	}
}

func TestValue(t *testing.T) {
	overAll(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from, to := newResource(t, a, nil), newResource(t, b, nil)
		s := sample{1, [3]float64{1, 2, 3}, true, from.ID()}
		passes(t, from, to, s)
		passes(t, from, to, 5)
		passes(t, from, to, []byte("bytes"))
		passes(t, from, to, "")
		passes(t, from, to, strings.Repeat("text", 100_000))
		passes(t, from, to, make([]float32, 200_000))
		passes(t, from, to, []sample{s, {}, s})
		passes(t, from, to, report{"r", []sample{s}, map[string]int{"a": 1}})
		passes(t, from, to, strings.Split(strings.Repeat("x,", 50_000), ",")) // longer than the guess
		passes(t, from, to, []string{"a"})
		passes(t, from, to, report{Name: "json"}, codec.Codec[report](asJSON[report]{}))
		passes(t, from, to, strings.Repeat("json", 1000), codec.Codec[string](asJSON[string]{}))
		for _, c := range []*rocl.Context{a, b} {
			if n := held(t, c); n != 0 {
				t.Errorf("%d buffers are held", n)
			}
		}
	})
}

// held returns how many buffers are in use beyond those that links keep. It first lets the
// context's messages be acknowledged.
func held(t *testing.T, c *rocl.Context) int64 {
	t.Helper()
	try.Check(t, c.Close())
	return c.Stats().Buffers.InUse
}

type asJSON[T any] struct{}

func (asJSON[T]) Append(p []byte, v T) ([]byte, error) {
	q, err := json.Marshal(v)
	return append(p, q...), err
}

func (asJSON[T]) Decode(p []byte) (v T, err error) { return v, json.Unmarshal(p, &v) }

// A payload that is not a value of the type gives an error, and the message stays the receiver's. A
// value that cannot be encoded is not sent.
func TestNoValue(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, nil)
	send(t, r, r.ID(), "some text")
	m := recv(t, r)
	if v, err := rocl.Value[sample](m); !errors.Is(err, codec.ErrValue) || v != (sample{}) {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := rocl.Value[report](m); !errors.Is(err, codec.ErrValue) {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := rocl.Value(m, codec.Codec[int](asJSON[int]{})); err == nil {
		t.Errorf("not JSON: %v", v)
	}
	if v, err := rocl.Value[string](m); v != "some text" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	m.Release()

	try.Fails(rocl.SendValue(bg, r, r.ID(), 0, make(chan int)))(t, codec.ErrValue, "a channel")
	two := []codec.Codec[int]{asJSON[int]{}, asJSON[int]{}}
	try.Fails(rocl.SendValue(bg, r, r.ID(), 0, 1, two...))(t, codec.ErrValue, "two codecs")
	odd := errors.New("odd")
	try.Fails(rocl.SendValue(bg, r, r.ID(), 0, 1, codec.Codec[int](broken{odd, nil})))(t, odd, "a codec that fails")
	func() {
		defer func() {
			if recover() != odd {
				t.Error("the panic of a codec is not its caller's")
			}
		}()
		_ = rocl.SendValue(bg, r, r.ID(), 0, 1, codec.Codec[int](broken{nil, odd}))
	}()
	try.Fails(rocl.SendValue(bg, r, resource.GID{}, 0, sample{}))(t, dispatch.ErrGone, "to no target")
	try.Fails(r.TryRecv())(t, dispatch.ErrEmpty, "something was sent")
	b, err := rocl.EncodeValue(bg, c, sample{At: 1})
	if err != nil || b.Len() == 0 {
		t.Fatal(err)
	}
	b.Release()
	if n := c.Stats().Buffers.InUse; n != 0 {
		t.Errorf("%d buffers are held", n)
	}
}

// A codec that is nil stands for none.
func TestNilCodec(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, nil)
	var none codec.Codec[sample]
	try.OK(t, rocl.SendValue(bg, r, r.ID(), 0, sample{At: 1}, none))
	m := recv(t, r)
	defer m.Release()
	if v, err := rocl.Value(m, none); v != (sample{At: 1}) || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	b := try.Get(rocl.EncodeValue(bg, c, sample{At: 1}, none))(t)
	defer b.Release()
	if !bytes.Equal(b.Bytes(), m.Bytes()) {
		t.Errorf("%q, want %q", b.Bytes(), m.Bytes())
	}
}

type broken struct{ fails, panics error }

func (b broken) Append(p []byte, v int) ([]byte, error) {
	if b.panics != nil {
		panic(b.panics)
	}
	return append(p, 1), b.fails
}

func (b broken) Decode([]byte) (int, error) { return 0, b.fails }

// SendValue waits for memory until its ctx ends, and holds none when it fails.
func TestValueWaitsForMemory(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0, rocl.WithMemory(1<<20))
	r := newResource(t, c, nil)
	var all []*buffers.Buffer
	for {
		b, err := c.Buffer(16 << 10)
		if err != nil {
			break
		}
		all = append(all, b)
	}
	big := make([]byte, 16<<10)
	ended, end := context.WithCancelCause(bg)
	why := errors.New("why")
	end(why)
	try.Fails(rocl.SendValue(ended, r, r.ID(), 0, big))(t, why, "without memory")
	sent := make(chan error, 1)
	go func() { sent <- rocl.SendValue(bg, r, r.ID(), 0, big) }()
	for _, b := range all {
		b.Release()
	}
	try.Check(t, <-sent)
	try.Fails(rocl.SendValue(bg, r, r.ID(), 0, make([]byte, 1<<20)))(t, buffers.ErrTooLarge, "more than there is")
	m := recv(t, r)
	m.Release()
}

// Sending a raw value allocates no more than sending its bytes in a buffer.
func TestValueAllocations(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, nil)
	v, p := sample{At: 5}, make([]byte, 57)
	recv := func() *dispatch.Message {
		m := recv(t, r)
		return m
	}
	bare := testing.AllocsPerRun(1000, func() {
		b := try.Get(c.Buffer(len(p)))(t) // as a value is sent: SendBytes uses no buffer within the process
		copy(b.Bytes(), p)
		try.OK(t, r.Send(bg, r.ID(), 0, b))
		recv().Release()
	})
	n := testing.AllocsPerRun(1000, func() {
		try.OK(t, rocl.SendValue(bg, r, r.ID(), 0, v))
		m := recv()
		got, err := rocl.Value[sample](m)
		m.Release()
		if err != nil || got != v {
			t.Fatal(got, err)
		}
	})
	if n > bare {
		t.Errorf("%v allocations, and %v for the bytes", n, bare)
	}
}
