// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"

	"github.com/rocl-go/rocl/subsys"
)

// Host returns the host:port of addr, which must be scheme://host:port.
func Host(scheme, addr string) (string, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != scheme || u.Host == "" || u.Port() == "" {
		return "", fmt.Errorf("%w: %q is not %s://host:port", subsys.ErrAddress, addr, scheme)
	}
	return u.Host, nil
}

// Dial connects to a host:port. If nothing listens there, the error matches subsys.ErrNoPeer.
func Dial(ctx context.Context, host string) (*net.TCPConn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", subsys.ErrNoPeer, err)
		}
		return nil, err
	}
	// A loopback dial to a free ephemeral port can connect to itself.
	if nc.LocalAddr().String() == nc.RemoteAddr().String() {
		nc.Close()
		return nil, subsys.ErrNoPeer
	}
	return nc.(*net.TCPConn), nil
}
