// SPDX-License-Identifier: Apache-2.0

// Package version has the version of this build.
package version

import "runtime/debug"

// Version is the release of this source.
const Version = "0.1.0"

// String returns the release, and the commit if the build information has it.
func String() string {
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return Version + " (" + s.Value[:12] + ")"
			}
		}
	}
	return Version
}
