// SPDX-License-Identifier: Apache-2.0

package subsys

import "unsafe"

func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
