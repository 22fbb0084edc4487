// SPDX-License-Identifier: Apache-2.0

// Package version says which build this is.
package version

import "runtime/debug"

// Version is the release this source is of.
const Version = "0.1.0"

// String is the release, and the commit if the build knows it.
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
