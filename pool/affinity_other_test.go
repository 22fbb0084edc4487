// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package pool

func threadID() int { return 0 }
