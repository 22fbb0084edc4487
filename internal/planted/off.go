// SPDX-License-Identifier: Apache-2.0

//go:build !roclbugs

package planted

// Enabled says that the build has planted defects.
const Enabled = false

// Is reports whether the defect b is active.
func Is(Bug) bool { return false }

// Sometimes reports whether the defect b is active now: not at each call.
func Sometimes(Bug) bool { return false }
