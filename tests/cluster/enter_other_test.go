// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import "errors"

// enter fails: this system has no namespaces.
func enter(string) error { return errors.ErrUnsupported }

// raise does nothing: no thread of this system enters a namespace.
func raise() {}
