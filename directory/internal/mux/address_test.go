// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// The route to the first member to join decides which address is advertised. Without one, the only
// candidate is. A choice is never made silently.
//
// A member advertises its address on the route to the first member to join. A
// choice that is left is an error that lists it. See also TestAdvertised.
func TestChoose(t *testing.T) {
	at := func(ip, ifi string) candidate { return candidate{ip: netip.MustParseAddr(ip), ifi: ifi} }
	apart := func(c candidate) candidate { c.isApart = true; return c }
	to := func(ips ...string) (d direction) {
		for _, ip := range ips {
			d.sources = append(d.sources, netip.MustParseAddr(ip))
		}
		return d
	}
	public, docker, lan, six := at("203.0.113.7", "eth0"), apart(at("172.17.0.1", "docker0")), at("10.0.0.7", "eth1"), at("fd00::7", "eth1")
	const every, limited = true, false
	for name, c := range map[string]struct {
		all        []candidate
		d          direction
		everywhere bool
		want       string // an address, or what the error says
		err        error
	}{
		"a public address and docker0":        {[]candidate{docker, public}, direction{}, every, "203.0.113.7", nil},
		"the route":                           {[]candidate{docker, public, lan}, to("10.0.0.7"), every, "10.0.0.7", nil},
		"the route over a bridge":             {[]candidate{docker, public}, to("172.17.0.1"), every, "172.17.0.1", nil},
		"a choice":                            {[]candidate{public, docker, lan}, direction{}, every, "203.0.113.7 (eth0), 10.0.0.7 (eth1)", ErrChoice},
		"routes that differ":                  {[]candidate{public, lan}, to("10.0.0.7", "203.0.113.7"), every, "203.0.113.7 (eth0), 10.0.0.7 (eth1)", ErrChoice},
		"one address twice":                   {[]candidate{lan, at("10.0.0.7", "eth2")}, direction{}, every, "10.0.0.7", nil},
		"both families":                       {[]candidate{six, lan}, direction{}, every, "10.0.0.7", nil},
		"both families by a name":             {[]candidate{six, lan}, to("fd00::7", "10.0.0.7"), every, "10.0.0.7", nil},
		"the route of the other family":       {[]candidate{six, lan}, to("fd00::7"), every, "fd00::7", nil},
		"nothing":                             {nil, direction{}, every, "no interface", ErrNoAddress},
		"a bridge alone":                      {[]candidate{docker}, direction{}, every, "no interface", ErrNoAddress},
		"the bridge that is named":            {[]candidate{docker}, direction{}, limited, "172.17.0.1", nil},
		"no route yet":                        {[]candidate{lan}, direction{isUnrouted: true}, every, "no route", ErrNoAddress},
		"no route, and a network":             {[]candidate{lan}, direction{isUnrouted: true}, limited, "10.0.0.7", nil},
		"a choice that a name will make":      {[]candidate{public, lan}, direction{isUnknown: true}, every, "203.0.113.7 (eth0), 10.0.0.7 (eth1)", ErrNoAddress},
		"a name that would choose among one":  {[]candidate{lan}, direction{isUnknown: true}, every, "10.0.0.7", nil},
		"the route leads over another one":    {[]candidate{lan}, to("203.0.113.7"), limited, "10.0.0.7", nil},
		"a network with a choice":             {[]candidate{lan, at("10.9.0.7", "eth2")}, to("203.0.113.7"), limited, "10.0.0.7 (eth1), 10.9.0.7 (eth2)", ErrChoice},
		"a network, and the route of members": {[]candidate{lan, at("10.9.0.7", "eth2")}, to("10.9.0.7"), limited, "10.9.0.7", nil},
	} {
		ip, err := choose(c.all, c.d, c.everywhere)
		if c.err == nil && (err != nil || ip.String() != c.want) || !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %s", name, ip, err, c.want)
		}
	}
}

// A port is bound by an interface, a network or a name, and then listens at one address. An address
// that the machine lacks is told from other errors.
func TestBind(t *testing.T) {
	for bind, want := range map[string]string{
		"lo:0": "127.0.0.1", "127.0.0.0/8:0": "127.0.0.1", "localhost:0": "127.0.0.1", "[::ffff:127.0.0.1]:0": "127.0.0.1",
	} {
		n := start(t, 1, func(c *Config) { c.Bind = bind })
		if got := n.Addr().IP.String(); got != want || n.Lost() != nil {
			t.Errorf("%s: at %s, want %s: %v", bind, got, want, n.Lost())
		}
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for bind, opening := range map[string]context.Context{"198.51.100.1:0": nil, "198.51.100.0/24:0": nil, "198.51.100.0/24": nil, "rocl-none0:0": over, "[fe80::1%rocl-none0]:0": nil} { // over: no name is looked up
		if n, err := attempt(1, func(c *Config) { c.Bind, c.Opening = bind, opening }); !errors.Is(err, ErrNoAddress) {
			t.Errorf("%s: %v", bind, err)
			if err == nil {
				n.Close()
			}
		}
	}
	n := start(t, 1, nil)
	n.adv = &net.UDPAddr{IP: net.IPv4(198, 51, 100, 1), Port: n.adv.Port}
	if err := n.Lost(); !errors.Is(err, ErrNoAddress) || !strings.Contains(err.Error(), "198.51.100.1") {
		t.Errorf("an address that is gone: %v", err)
	}
	for at, want := range map[string][2]string{"10.0.0.0/8": {"10.0.0.0/8", "7946"}, "10.0.0.0/8:1": {"10.0.0.0/8", "1"}, "[fd00::/8]:1": {"fd00::/8", "1"}, "fd00::/8": {"fd00::/8", "7946"}, "eth0:1": {"eth0", "1"}} {
		if host, port, err := SplitBind(at); err != nil || host != want[0] || port != want[1] {
			t.Errorf("%s is %s and %s: %v", at, host, port, err)
		}
	}
}

// Members on the loopback interface, and names that do not resolve, say nothing about the way to
// the others.
func TestToward(t *testing.T) {
	at, err := []string{"127.0.0.1:1", "[::1]:1", "no port"}, error(nil)
	x := &Mux{cfg: Config{Toward: func(context.Context) ([]string, error) { return at, err }}}
	if d := x.toward(context.Background()); len(d.sources) > 0 || d.isUnrouted || d.isUnknown {
		t.Errorf("%+v", d)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	at = []string{"name.invalid:1"}
	if d := x.toward(gone); !d.isUnknown {
		t.Errorf("%+v", d)
	}
	at, err = nil, errors.New("a command fails")
	if d := x.toward(context.Background()); !d.isUnknown {
		t.Errorf("%+v", d)
	}
}
