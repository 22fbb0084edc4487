// SPDX-License-Identifier: Apache-2.0

//go:build race || rocldebug

package rpc_test

const isWatched = true // by the race detector, or as a rocldebug build
