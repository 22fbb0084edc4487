// SPDX-License-Identifier: Apache-2.0

// Package loopback recognizes addresses by which a machine reaches itself alone.
package loopback

import (
	"net/netip"
	"strings"
)

// IsHost reports whether host is "localhost", or an IP address of the loopback interface. An IPv6
// address may be in brackets. No name is looked up.
func IsHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && a.Unmap().IsLoopback()
}
