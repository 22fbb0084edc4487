// SPDX-License-Identifier: Apache-2.0

// Package version has the version of the library in this program.
package version

import (
	"runtime/debug"
	"strings"
)

// Version is the release of this source.
const Version = "0.2.0"

const module = "github.com/rocl-go/rocl"

// String returns the version of the library that the go command has recorded in this program. A
// program that was built in a clone of rocl has none. String then returns the release of the
// source, and the commit if that is recorded.
func String() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	return of(bi)
}

func of(bi *debug.BuildInfo) string {
	for _, m := range bi.Deps {
		if m.Path == module && m.Replace == nil && strings.HasPrefix(m.Version, "v") {
			return m.Version[1:]
		}
	}
	if bi.Main.Path != module && !strings.HasPrefix(bi.Main.Path, module+"/") {
		return Version // the commit is one of another repository
	}
	for _, s := range bi.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return Version + " (" + s.Value[:12] + ")"
		}
	}
	return Version
}
