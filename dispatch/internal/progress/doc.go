// SPDX-License-Identifier: Apache-2.0

// Package progress has the goroutines of a context wait, and make progress while they do.
package progress
