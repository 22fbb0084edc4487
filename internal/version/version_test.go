// SPDX-License-Identifier: Apache-2.0

package version

import (
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The release that --version prints is the latest in the changelog, which has a section for
// unreleased changes.
//
// `--version` prints the latest release in the changelog.
func TestChangelogAgrees(t *testing.T) {
	text := try.Get(os.ReadFile("../../CHANGELOG.md"))(t)
	heads := regexp.MustCompile(`(?m)^## \[(.*)\](.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(heads) < 2 || heads[0][1] != "Unreleased" || heads[0][2] != "" {
		t.Fatalf("the changelog does not begin with [Unreleased] and a release: %q", heads)
	}
	try.Equal(t, heads[1][1], Version, "the latest release in the changelog")
	for _, h := range heads[1:] {
		if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(h[1]) || !regexp.MustCompile(`^ - \d{4}-\d\d-\d\d$`).MatchString(h[2]) {
			t.Errorf("%q is not [VERSION] - DATE", h[0])
		}
	}
	if !strings.HasPrefix(String(), Version) {
		t.Errorf("--version prints %q", String())
	}
}

func TestVersionOfBuild(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}}
	clone := &debug.Module{Path: module, Version: "(devel)"}
	released := &debug.Module{Path: module, Version: "v1.2.3"}
	replaced := &debug.Module{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "../rocl"}}
	for want, bi := range map[string]debug.BuildInfo{
		"1.2.3":                     {Main: debug.Module{Path: module + "/cmd", Version: "v1.2.3"}, Deps: []*debug.Module{released}},
		Version + " (0123456789ab)": {Main: debug.Module{Path: module + "/cmd"}, Deps: []*debug.Module{clone}, Settings: commit},
		Version:                     {Main: debug.Module{Path: "example.com/user"}, Deps: []*debug.Module{replaced}, Settings: commit},
	} {
		try.Equal(t, of(&bi), want)
	}
}
