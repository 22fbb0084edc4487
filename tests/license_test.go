// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each source file names its license within its first three lines.
func TestLicense(t *testing.T) {
	const line = "SPDX-License-Identifier: Apache-2.0"
	files := 0
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sh") && filepath.Dir(path) != filepath.Join("..", ".ci"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		if head := bytes.SplitN(b, []byte("\n"), 4); !bytes.Contains(bytes.Join(head[:min(3, len(head))], []byte("\n")), []byte(line)) {
			t.Errorf("%s does not say %q", path, line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("only %d files were found", files)
	}
}
