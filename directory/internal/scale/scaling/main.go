// SPDX-License-Identifier: Apache-2.0

// Command scaling measures what a large cluster costs, in virtual time, and writes docs/SCALING.md.
// Run it by "make scaling".
package main

import (
	"fmt"
	"os"

	"github.com/rocl-go/rocl/directory/internal/scale"
)

func main() {
	f, err := scale.Measure(func(nodes int, what string) { fmt.Fprintf(os.Stderr, "%d nodes: %s\n", nodes, what) })
	var text []byte
	if err == nil {
		text, err = f.Document()
	}
	if err == nil {
		err = os.WriteFile("docs/SCALING.md", text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(1)
	}
}
