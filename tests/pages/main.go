// SPDX-License-Identifier: Apache-2.0

// Command pages writes the documents whose text stands beside the code: docs/PROTOCOL.md from the
// comments that begin with "Protocol:", docs/TROUBLESHOOTING.md from those with "Cause:", and
// docs/GUARANTEES.md from the comments of tests that begin with "Promise".
package main

import (
	"errors"
	"fmt"
	"go/parser"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/tests/tree"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./tests/pages")
		os.Exit(2)
	}
	pages, err := pages(".")
	for _, path := range slices.Sorted(maps.Keys(pages)) {
		if err == nil {
			err = os.WriteFile(filepath.FromSlash(path), []byte(pages[path]), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pages returns the text of each page by its path.
func pages(root string) (map[string]string, error) {
	files, err := tree.Go(root, parser.ParseComments, func(path string) bool { return tree.IsCode(path) && !strings.HasPrefix(path, "tests/") })
	if err != nil {
		return nil, err
	}
	wire, err := protocol(root, files)
	troubles, err2 := troubleshooting(root, files)
	promises, err3 := guarantees(root)
	return map[string]string{"docs/PROTOCOL.md": wire, "docs/TROUBLESHOOTING.md": troubles, "docs/GUARANTEES.md": promises}, errors.Join(err, err2, err3)
}
