// SPDX-License-Identifier: Apache-2.0

//go:build !roclbugs

package rocltest_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/planted"
)

var all = flag.Bool("planted", false, "TestPlanted looks for all planted defects, not for two of them")

// The simulation finds each defect of package planted.
func TestPlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the library")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command")
	}
	program := filepath.Join(t.TempDir(), "rocltest.test")
	if out, err := exec.Command(tool, "test", "-c", "-tags", "roclbugs", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for b := planted.None + 1; b < planted.Bugs; b++ {
		if !*all && b != planted.LostCredit && b != planted.SilentDenied {
			continue
		}
		t.Run(fmt.Sprint(b), func(t *testing.T) {
			t.Parallel()
			c := exec.Command(program, "-test.run", "^TestBroken$", "-test.v")
			c.Env = append(os.Environ(), fmt.Sprintf("ROCL_BUG=%d", b))
			out, err := c.CombinedOutput()
			_, found, ok := strings.Cut(string(out), "found by ")
			if err != nil || !ok {
				t.Fatalf("%v: %s", err, out[:min(len(out), 2000)])
			}
			line, _, _ := strings.Cut(found, "\n")
			t.Log("found by ", line)
		})
	}
}
