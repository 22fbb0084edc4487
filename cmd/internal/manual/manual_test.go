// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The hidden command writes a page for each command, the same bytes each time. Other command lines
// do not know it.
func TestPages(t *testing.T) {
	run := func(args ...string) error {
		root := &cobra.Command{Use: "thing", Short: "Do things", Version: "1.2", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(&cobra.Command{Use: "one", Short: "Do one", Run: func(*cobra.Command, []string) {}})
		Add(root, args)
		root.SetArgs(args)
		return root.Execute()
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var before string
	for range 2 {
		dir := t.TempDir()
		try.OK(t, run(Name, dir))
		files := try.Get(os.ReadDir(dir))(t)
		try.Equal(t, len(files), 2, "pages")
		text := string(try.Get(os.ReadFile(filepath.Join(dir, "thing.1")))(t))
		if before == "" {
			before = text
		}
		if !strings.Contains(text, "Nov 2023") || !strings.Contains(text, "thing 1.2") || strings.Contains(text, Name) || text != before {
			t.Errorf("the page is\n%s", text)
		}
		try.Works(os.Stat(filepath.Join(dir, "thing-one.1")))(t)
	}
	var wrong usage.Error
	if err := run(Name); !errors.As(err, &wrong) {
		t.Errorf("without a folder: %v", err)
	}
	try.Rejects(run("one-more", Name))(t, "another command line")
}
