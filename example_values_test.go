// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/rocl-go/rocl"
)

// A buffer is an io.Writer and a message is an io.Reader.
func ExampleBuffer_write() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")

	b, err := c.BufferWait(ctx, 1000)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(b).Encode(map[string]int{"answer": 42}); err != nil {
		b.Release()
		log.Fatal(err)
	}
	if err := me.Send(ctx, me.ID(), 0, b); err != nil { // sends what was written, not 1000 bytes
		b.Release()
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	var v map[string]int
	if err := json.NewDecoder(m).Decode(&v); err != nil {
		log.Fatal(err)
	}
	fmt.Println(v["answer"], m.Len())
	// Output: 42 14
}

// WriteTo writes what Read has not read.
func ExampleMessage_reader() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	if err := me.SendBytes(ctx, me.ID(), 0, []byte("HEADpayload\n")); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	head := make([]byte, 4)
	if _, err := m.Read(head); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: ", head)
	if _, err := m.WriteTo(os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output: HEAD: payload
}

type order struct {
	Item   string
	Pieces int
	At     time.Time
}

// A program sends a value of any type. The receiver gets a copy.
func ExampleSendValue() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	shop := register(node.open(), "shop")
	me := register(node.open(), "me")

	if err := rocl.SendValue(ctx, me, shop.ID(), 1, order{Item: "lamp", Pieces: 2}); err != nil {
		log.Fatal(err)
	}
	m, err := shop.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	o, err := rocl.Value[order](m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(o.Pieces, o.Item)
	// Output: 2 lamp
}

// A payload of another type gives an error. The message stays as it was.
func ExampleValue() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")

	if err := rocl.SendValue(ctx, me, me.ID(), 0, [3]float32{1, 2, 3}); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	_, err = rocl.Value[[3]int32](m)
	fmt.Println(errors.Is(err, rocl.ErrValue))
	v, err := rocl.Value[[3]float32](m)
	fmt.Println(v, err)
	// Output:
	// true
	// [1 2 3] <nil>
}

// EncodeValue makes a buffer for methods that take a buffer.
func ExampleEncodeValue() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")

	b, err := rocl.EncodeValue(ctx, c, []string{"a", "b"})
	if err != nil {
		log.Fatal(err)
	}
	if err := me.Send(ctx, me.ID(), 0, b); err != nil {
		b.Release()
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Println(rocl.Value[[]string](m))
	// Output: [a b] <nil>
}

// jsonOrders is a codec whose payload is JSON, as programs in other languages expect it.
type jsonOrders struct{}

func (jsonOrders) Append(p []byte, o order) ([]byte, error) {
	q, err := json.Marshal(o)
	return append(p, q...), err
}

func (jsonOrders) Decode(p []byte) (o order, err error) {
	err = json.Unmarshal(p, &o)
	return o, err
}

func ExampleCodec() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")

	if err := rocl.SendValue(ctx, me, me.ID(), 0, order{Item: "lamp"}, rocl.Codec[order](jsonOrders{})); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	o, err := rocl.Value(m, rocl.Codec[order](jsonOrders{}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n%s\n", m.Bytes(), o.Item)
	// Output:
	// {"Item":"lamp","Pieces":0,"At":"0001-01-01T00:00:00Z"}
	// lamp
}

// One buffer goes to several targets. The error names the targets that have failed, and the buffer
// then stays the caller's.
func ExampleSendErrors() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me, first, second := register(c, "me"), register(c, "first"), register(node.open(), "second")
	second.Close()

	b, err := rocl.EncodeValue(ctx, c, "news")
	if err != nil {
		log.Fatal(err)
	}
	err = me.SendAll(ctx, []rocl.GID{first.ID(), second.ID()}, 0, b)
	var failed rocl.SendErrors
	if errors.As(err, &failed) {
		for _, f := range failed {
			fmt.Println("the second failed:", f.To == second.ID(), errors.Is(f, rocl.ErrGone))
		}
		b.Release()
	}
	m, err := first.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Println(rocl.Value[string](m))
	// Output:
	// the second failed: true true
	// news <nil>
}

func ExampleSendError() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me, you := register(c, "me"), register(c, "you")
	you.Close()

	b, err := c.Buffer(0)
	if err != nil {
		log.Fatal(err)
	}
	var failed *rocl.SendError
	if err := me.SendAll(ctx, []rocl.GID{you.ID()}, 0, b); errors.As(err, &failed) { // the first target that has failed
		b.Release()
		fmt.Println(failed.To == you.ID(), errors.Is(failed.Err, rocl.ErrGone))
	}
	// Output: true true
}
