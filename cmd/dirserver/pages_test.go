// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// docs/CONFIGURATION.md lists each flag with its variable, and no other flags.
func TestConfigurationPage(t *testing.T) {
	var help bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &help, io.Discard); code != 0 {
		t.Fatalf("--help ends with %d", code)
	}
	page := try.Get(os.ReadFile("../../docs/CONFIGURATION.md"))(t)
	variables := map[string]string{} // by flag
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)[^|]*` \\| ([^|]*) \\|").FindAllStringSubmatch(strings.ReplaceAll(string(page), `\|`, "/"), -1) {
		variables[m[1]] = strings.Trim(m[2], "`")
	}
	var flags []string
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z-]+)`).FindAllStringSubmatch(help.String(), -1) {
		flags = append(flags, m[1])
		if m[1] == "help" || m[1] == "version" || m[1] == "verbose" {
			continue // a flag of cobra, or a short form
		}
		want := "ROCL_" + strings.ToUpper(strings.ReplaceAll(m[1], "-", "_"))
		if m[1] == "print-config" {
			want = "–"
		}
		try.Equal(t, variables[m[1]], want, "the variable of --%s in docs/CONFIGURATION.md", m[1])
	}
	for name := range variables {
		if !slices.Contains(flags, name) {
			t.Errorf("docs/CONFIGURATION.md has --%s, which is no flag", name)
		}
	}
	if len(variables) < 20 {
		t.Errorf("docs/CONFIGURATION.md has %d flags", len(variables))
	}
}
