package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/rocl-go/rocl"
)

// open opens a context on a node of its own, so that the examples see nobody
// else's resources.
func open(ctx context.Context) (*rocl.Context, func()) {
	dir, err := os.MkdirTemp("", "rocl-")
	if err != nil {
		log.Fatal(err)
	}
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "d.sock")))
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { c.Close(); os.RemoveAll(dir) }
}

func ExampleOpen() {
	ctx := context.Background()
	c, done := open(ctx) // rocl.Open(ctx), on a node of its own
	defer done()
	me, err := c.Register(ctx, rocl.Attrs{"type": "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	peer, err := c.Find(ctx, rocl.Match{"type": "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	b, err := c.Buffer(5)
	if err != nil {
		log.Fatal(err)
	}
	copy(b.Bytes(), "hello")
	if err := me.Send(ctx, peer.ID, 7, b); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Printf("%s, tag %d\n", m.Bytes(), m.Tag())
	// Output: hello, tag 7
}

func ExampleFrom() {
	ctx := context.Background()
	c, done := open(ctx)
	defer done()
	a, _ := c.Register(ctx, rocl.Attrs{"name": "a"})
	b, _ := c.Register(ctx, rocl.Attrs{"name": "b"})
	me, _ := c.Register(ctx, rocl.Attrs{"name": "me"})
	_ = a.SendBytes(ctx, me.ID(), 1, []byte("from a"))
	_ = b.SendBytes(ctx, me.ID(), 2, []byte("from b"))
	m, err := me.Recv(ctx, rocl.From(b.ID()), rocl.Tag(2))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Bytes())
	m.Release()
	// Output: from b
}

func ExampleTag() {
	ctx := context.Background()
	c, done := open(ctx)
	defer done()
	me, _ := c.Register(ctx, rocl.Attrs{"name": "me"})
	for tag := range uint64(3) {
		_ = me.SendBytes(ctx, me.ID(), tag, nil)
	}
	m, err := me.Recv(ctx, rocl.Tag(2))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Tag())
	m.Release()
	_, err = me.TryRecv(rocl.Tag(9))
	fmt.Println(errors.Is(err, rocl.ErrEmpty))
	// Output:
	// 2
	// true
}

func ExampleWant() {
	ctx := context.Background()
	c, done := open(ctx)
	defer done()
	for _, load := range []string{"3", "5"} {
		if _, err := c.Register(ctx, rocl.Attrs{"type": "server", "load": load, "notes": "long"}); err != nil {
			log.Fatal(err)
		}
	}
	n := 0
	for f, err := range c.FindAll(ctx, rocl.Match{"type": "server"}, rocl.Want("load", "color")) {
		if err != nil {
			log.Fatal(err)
		}
		_, known := f.Attrs.Get("color")
		fmt.Println(f.Attrs.GetString("load") != "", known)
		n++
	}
	fmt.Println(n)
	// Output:
	// true false
	// true false
	// 2
}

func ExampleParseGID() {
	id, err := rocl.ParseGID("8f3a21b0c4d5-1000002-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id.Serial(), id.Context())
	// Output: 7 8f3a21b0c4d5-1000002-0
}

func ExampleContext_watch() {
	ctx := context.Background()
	c, done := open(ctx)
	defer done()
	r, _ := c.Register(ctx, rocl.Attrs{"type": "lamp", "state": "off"})
	for ev, err := range c.Watch(ctx, rocl.Match{"type": "lamp"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v %q\n", ev.Kind, ev.Attrs.GetString("state"))
		switch ev.Kind {
		case rocl.Synced:
			_ = r.Update(ctx, rocl.Attrs{"type": "lamp", "state": "on"})
		case rocl.Changed:
			_ = r.Delete(ctx)
		}
		if ev.Kind == rocl.Gone {
			break
		}
	}
	// Output:
	// appeared "off"
	// synced ""
	// changed "on"
	// gone "on"
}
