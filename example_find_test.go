// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl"
)

// A master waits until its workers are registered, and gets the least loaded first.
func ExampleLeast() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := newNode()
	defer n.close()
	master, workers := n.open(), n.open()
	for i, load := range []string{"0.75", "0.25", "0.5"} {
		if _, err := workers.Register(ctx, rocl.Attrs{"role": "worker", "name": fmt.Sprint("w", i), "load": load}); err != nil {
			fmt.Println(err)
			return
		}
	}
	found, err := master.Await(ctx, rocl.Match{"role": "worker"}, 3, rocl.Least("load"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range found {
		fmt.Println(f.Attrs.GetString("name"), f.Attrs.GetString("load"))
	}
	// Output:
	// w1 0.25
	// w2 0.5
	// w0 0.75
}

// A program chooses machines by numbers among their attributes.
func ExampleAt() {
	n := newNode()
	defer n.close()
	c := n.open()
	for name, cores := range map[string]string{"small": "2", "middle": "8", "large": "64"} {
		if _, err := c.Register(context.Background(), rocl.Attrs{"name": name, "cores": cores}); err != nil {
			fmt.Println(err)
			return
		}
	}
	f, err := c.Find(context.Background(), nil, rocl.At("cores", rocl.Ge, 4), rocl.At("cores", rocl.Lt, 16))
	fmt.Println(f.Attrs.GetString("name"), err)
	// Output: middle <nil>
}

// Find returns the machine with the most memory, and FindAll lists all machines in that order.
func ExampleMost() {
	n := newNode()
	defer n.close()
	c := n.open()
	for name, memory := range map[string]string{"small": "4e9", "large": "256000000000"} {
		if _, err := c.Register(context.Background(), rocl.Attrs{"name": name, "memory": memory}); err != nil {
			fmt.Println(err)
			return
		}
	}
	f, err := c.Find(context.Background(), nil, rocl.Most("memory"))
	fmt.Println(f.Attrs.GetString("name"), err)
	for f := range c.FindAll(context.Background(), nil, rocl.Most("memory")) {
		fmt.Println(f.Attrs.GetString("name"))
	}
	// Output:
	// large <nil>
	// large
	// small
}

// A comparison is a value: a program may take it from its settings.
func ExampleOp() {
	for _, op := range []rocl.Op{rocl.Eq, rocl.Ne, rocl.Lt, rocl.Le, rocl.Gt, rocl.Ge} {
		fmt.Print(op, " ")
	}
	fmt.Println()
	// Output: = != < <= > >=
}

// Workers publish their load in an attribute, and SendTo chooses the least loaded worker.
func ExampleResource_sendTo() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := newNode()
	defer n.close()
	c := n.open()
	a, _ := c.Register(ctx, rocl.Attrs{"role": "worker", "load": "0"})
	b, _ := c.Register(ctx, rocl.Attrs{"role": "worker", "load": "1"})
	from, err := c.Register(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := a.Set(ctx, "load", "2"); err != nil {
		fmt.Println(err)
		return
	}
	buf, err := c.Buffer(4)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(buf.Bytes(), "work")
	to, err := from.SendTo(ctx, rocl.Match{"role": "worker"}, 1, buf, rocl.Least("load"))
	if err != nil {
		buf.Release()
		fmt.Println(err)
		return
	}
	fmt.Println(to == b.ID())
	all, err := c.Buffer(4)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(all.Bytes(), "stop")
	fmt.Println(from.SendToAll(ctx, rocl.Match{"role": "worker"}, 2, all))
	// Output:
	// true
	// 2 <nil>
}

// Of several programs that want to be the master, exactly one becomes it.
func ExampleUnique() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := newNode()
	defer n.close()
	c := n.open()
	role := rocl.Attrs{"role": "master", "job": "17"}
	first, err := c.Register(ctx, role, rocl.Unique("role", "job"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Register(ctx, role, rocl.Unique("role", "job"))
	fmt.Println(errors.Is(err, rocl.ErrExists))
	first.Close()
	_, err = c.Register(ctx, role, rocl.Unique("role", "job"))
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
