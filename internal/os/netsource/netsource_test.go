// SPDX-License-Identifier: Apache-2.0

package netsource

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOf(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{nil, ""},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}, "10.0.0.1"},
		{&net.UDPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 6}, "10.0.0.1"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::1:2"), Port: 5}, "2001:db8::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 5, Zone: "eth0"}, "fe80::/64"},
		{&net.UnixAddr{Name: "/run/rocl", Net: "unix"}, "unix"},
	} {
		try.Equal(t, Of(c.addr), c.want, "Of(%v)", c.addr)
	}
}

func TestOfURL(t *testing.T) {
	for url, want := range map[string]string{
		"": "", "tcp://10.0.0.1:5": "10.0.0.1", "tls://[2001:db8::1]:5": "2001:db8::/64", "shm://0123/name": "shm", "nonsense": "nonsense",
	} {
		try.Equal(t, OfURL(url), want, "OfURL(%q)", url)
	}
}
