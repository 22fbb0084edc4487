// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The test binary runs as the example if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("BE_THE_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestHello(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe)
	c.Env = append(os.Environ(), "BE_THE_EXAMPLE=1", "ROCL_SOCKET="+filepath.Join(t.TempDir(), "directory.sock"))
	c.Stderr = os.Stderr
	said, err := c.Output()
	if err != nil || !regexp.MustCompile(`^hello from \S+\n$`).Match(said) {
		t.Errorf("it said %q, %v", said, err)
	}
}
