package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	resolveTime   = 2 * time.Second // for which a name server is waited for
	mostAddresses = 32              // of one name
	mostLooks     = 32              // members that are looked for at a time; the others have their turn later
)

// look tries to join at an address, or at those of a name, beside whatever else
// is being tried: one that hangs keeps nobody waiting.
func (c *Cluster) look(at string) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if c.looking[at] || len(c.looking) >= mostLooks || c.life.Err() != nil {
		return
	}
	c.looking[at] = true
	c.busy.Go(func() {
		err := c.join(at)
		if err != nil && c.life.Err() == nil {
			c.log.Debug("cluster: joining", "addr", at, "err", err)
		}
		c.nmu.Lock()
		delete(c.looking, at)
		c.nmu.Unlock()
	})
}

func (c *Cluster) join(at string) error {
	if _, err := netip.ParseAddrPort(at); err == nil {
		if _, err = c.list.Join([]string{at}); err != nil {
			c.count.notJoined.Add(1)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(c.life, resolveTime)
	defer cancel()
	to, err := c.addresses(ctx, at)
	if err != nil {
		c.count.unresolved.Add(1)
		return err
	}
	for _, a := range to {
		c.look(a)
	}
	return nil
}

// addresses are those of HOST:PORT, in no order so that not all members try the
// same one first, and without this member's own. memberlist would look names up
// itself: first over TCP, with nothing to stop it when a name server hangs.
func (c *Cluster) addresses(ctx context.Context, name string) ([]string, error) {
	host, service, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	r := c.cfg.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	n, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	own := c.port.Addr().AddrPort()
	var to []string
	for _, ip := range ips {
		a := netip.AddrPortFrom(ip.Unmap(), uint16(n))
		if own.Addr().Unmap().Is4() && !a.Addr().Is4() || a == netip.AddrPortFrom(own.Addr().Unmap(), own.Port()) || slices.Contains(to, a.String()) {
			continue // no datagram would get there, or it is us
		}
		to = append(to, a.String())
	}
	if len(to) == 0 {
		return nil, fmt.Errorf("%s has no address of another member that this one could reach: %v", name, ips)
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return to[:min(len(to), mostAddresses)], nil
}

// within is memberlist's transport, whose streams end with the member's life:
// who does not answer must not keep it from closing.
type within struct {
	memberlist.NodeAwareTransport
	life context.Context
}

func (w within) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	nc, err := d.DialContext(w.life, "tcp", addr)
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
