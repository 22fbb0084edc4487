// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net"
)

// CarriesDescriptors reports false on this system.
func (*Conn) CarriesDescriptors() bool { return false }

// SendDescriptor fails on this system.
func (*Conn) SendDescriptor(id, number uint64, fd int) error { return errors.ErrUnsupported }

// ReceiveDescriptor fails on this system.
func ReceiveDescriptor(*net.UnixConn) (m Message, fd int, err error) {
	return m, -1, errors.ErrUnsupported
}
