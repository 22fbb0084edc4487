// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"

	"github.com/rocl-go/rocl"
)

// A Model is a resource that answers questions.
type Model struct {
	Type  string   `rocl:"type"`
	Name  string   `rocl:"name"`
	Load  float64  `rocl:"load"`
	Zones []string `rocl:"zone"`
}

// A program finds resources by a pattern that a user gives as a text.
func ExampleParse() {
	ctx := context.Background()
	n := newNode()
	defer n.close()
	c := n.open()
	for _, m := range []Model{
		{"model", "llama", 1, []string{"north"}},
		{"model", "phi", 2.5, []string{"east", "south"}},
		{"model", "busy", 3, []string{"north"}},
		{"model", "far", 0, []string{"west"}},
	} {
		a, err := rocl.AttrsOf(m)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := c.Register(ctx, a); err != nil {
			log.Fatal(err)
		}
	}

	pattern, err := rocl.Parse("type=model load<3 zone=north|south")
	if err != nil {
		log.Fatal(err)
	}
	var names []string
	for f, err := range c.FindAll(ctx, pattern) {
		if err != nil {
			log.Fatal(err)
		}
		names = append(names, f.Attrs.GetString("name"))
	}
	slices.Sort(names)
	fmt.Println(names)

	_, err = rocl.Parse("type=model name=large language model") // without quotes
	fmt.Println(errors.Is(err, rocl.ErrCondition))
	// Output:
	// [llama phi]
	// true
}

// A server registers what its struct describes.
func ExampleAttrsOf() {
	a, err := rocl.AttrsOf(Model{Type: "model", Name: "llama", Load: 0.5, Zones: []string{"north", "south"}})
	if err != nil {
		log.Fatal(err)
	}
	n := newNode()
	defer n.close()
	r, err := n.open().Register(context.Background(), a)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	fmt.Println(a)
	// Output: {type=model, name=llama, load=0.5, zone=north, zone=south}
}

// A client gets the attributes of a resource as a struct.
func ExampleInto() {
	ctx := context.Background()
	n := newNode()
	defer n.close()
	c := n.open()
	if _, err := c.Register(ctx, rocl.Attrs{"type": "model", "name": "llama", "load": "0.5"}); err != nil {
		log.Fatal(err)
	}
	f, err := c.Find(ctx, rocl.Match{"type": "model"})
	if err != nil {
		log.Fatal(err)
	}
	var m Model
	if err := rocl.Into(f, &m); err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Name, 2*m.Load)
	// Output: llama 1
}
