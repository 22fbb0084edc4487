// SPDX-License-Identifier: Apache-2.0

//go:build race || rocldebug

package subsystest

const isWatched = true
