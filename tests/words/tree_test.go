// SPDX-License-Identifier: Apache-2.0

package words

import (
	"go/parser"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

// root is the folder of the module.
const root = "../.."

// files returns the paths, relative to the root, of the files whose names end in one of endings.
func files(t *testing.T, endings ...string) []string {
	t.Helper()
	return try.Get(tree.Files(root, func(p string) bool { return slices.Contains(endings, path.Ext(p)) }))(t)
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(try.Get(os.ReadFile(filepath.Join(root, path)))(t))
}

func anyFile(string) bool { return true }

// parsed returns the Go files that isWanted wants.
func parsed(t *testing.T, isWanted func(path string) bool) []*tree.File {
	t.Helper()
	return try.Get(tree.Go(root, parser.ParseComments, isWanted))(t)
}
