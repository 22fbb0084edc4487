package cluster

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// mostAddresses of one name are tried at a time.
const mostAddresses = 32

// addresses are those of HOST:PORT, in no order so that not all members try the
// same one first, and without this member's own. memberlist would look names up
// itself: first over TCP, with nothing to stop it when a name server hangs.
func (c *Cluster) addresses(name string) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(c.life, joinTime)
	defer cancel()
	host, service, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	r := c.cfg.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	n, err := r.LookupPort(ctx, "udp", service)
	if err != nil {
		return nil, err
	}
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	own := c.port.Addr().AddrPort()
	own = netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
	var to []netip.AddrPort
	for _, ip := range ips {
		a := netip.AddrPortFrom(ip.Unmap(), uint16(n))
		if own.Addr().Is4() && !a.Addr().Is4() || a == own || slices.Contains(to, a) {
			continue // no datagram would get there, or it is us
		}
		to = append(to, a)
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return to[:min(len(to), mostAddresses)], nil
}

// within is memberlist's transport, whose streams end with the member's life:
// who does not answer must not keep it from closing.
type within struct {
	memberlist.NodeAwareTransport
	dial func(ctx context.Context, addr string) (net.Conn, error)
	life context.Context
}

func (w within) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.life, timeout)
	defer cancel()
	nc, err := w.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &ending{nc, context.AfterFunc(w.life, func() { nc.Close() })}, nil
}

func (w within) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return w.DialTimeout(a.Addr, timeout)
}

// ending is a conn that something else may close too.
type ending struct {
	net.Conn
	stop func() bool
}

func (e *ending) Close() error {
	e.stop()
	return e.Conn.Close()
}
