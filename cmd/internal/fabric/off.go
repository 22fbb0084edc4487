// SPDX-License-Identifier: Apache-2.0

//go:build !ofi

package fabric

import "github.com/rocl-go/rocl"

// Options returns none: a context has its own transports only.
func Options() []rocl.Option { return nil }
