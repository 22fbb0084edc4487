// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sockerr

import "errors"

// Is is errors.Is for an error of a socket.
func Is(err, target error) bool { return errors.Is(err, target) }
