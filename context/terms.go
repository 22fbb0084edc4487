package context

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// ErrCluster says that the node's directory is in another cluster than the one
// that was named.
var ErrCluster = errors.New("rocl: the node is in another cluster")

// agrees checks that the directory is in the cluster that was named, if any
// was and it is in one.
func (c *Context) agrees(t *directory.Terms) error {
	if c.cfg.cluster != "" && t.Member && t.Cluster != c.cfg.cluster {
		return fmt.Errorf("%w: its directory says %q, not %q", ErrCluster, t.Cluster, c.cfg.cluster)
	}
	return nil
}

// trust is whom to link with now.
func (c *Context) trust() dispatch.Trust {
	t := c.dir.Terms()
	name := c.cfg.cluster
	if name == "" {
		name = t.Cluster
	}
	return dispatch.Trust{Cluster: name, Keys: t.Keys}
}

// A place is where one port listens; at "" its transport chooses.
type place struct {
	transport subsys.Transport
	at        string
}

// places are where to listen: where the user said; where the transport chooses,
// which is for this node; and, on a node that is in a cluster, on the host by
// which the others know it. In a cluster with a key what goes to other nodes is
// to be sealed (t.Sealed): a transport that seals belongs in TCP's place there.
func (cfg *config) places(t *directory.Terms) (all []place) {
	for _, tr := range cfg.transports {
		before := len(all)
		for _, u := range cfg.listen {
			if strings.HasPrefix(u, tr.Name()+"://") {
				all = append(all, place{tr, u})
			}
		}
		if len(all) > before {
			continue
		}
		if tr.Name() != "tcp" || t.Host == "" {
			all = append(all, place{tr, ""})
			continue
		}
		if !isHere(t.Host) {
			all = append(all, place{tr, ""})
		}
		all = append(all, place{tr, "tcp://" + net.JoinHostPort(t.Host, "0")})
	}
	return all
}

func (p place) key() string { return p.transport.Name() + " " + p.at }

// listen opens ports. A transport that cannot be had on this machine is done
// without if there is another.
func (c *Context) listen(places []place) error {
	var missing error
	open := len(c.at) > 0
	for _, p := range places {
		err := c.disp.Listen(p.transport, p.at)
		switch {
		case err == nil:
			open = true
		case errors.Is(err, subsys.ErrUnavailable):
			missing = err
			c.cfg.logger.Warn("rocl: doing without a transport", "transport", p.transport.Name(), "err", err)
		default:
			return err
		}
		c.at[p.key()] = true
	}
	if !open {
		return missing
	}
	return nil
}

// follow opens the ports that new terms ask for: whoever serves the node now
// may be a member of a cluster that its predecessor was not in. Keys are seen
// by trust.
func (c *Context) follow() {
	for {
		select {
		case <-c.news:
		case <-c.life.Done():
			return
		}
		t := c.dir.Terms()
		if err := c.agrees(&t); err != nil {
			c.cfg.logger.Warn("rocl: the directory has changed", "err", err)
		}
		more := slices.DeleteFunc(c.cfg.places(&t), func(p place) bool { return c.at[p.key()] })
		if len(more) == 0 {
			continue
		}
		if err := c.listen(more); err != nil {
			c.cfg.logger.Warn("rocl: other nodes may not reach this context", "err", err)
		}
		l, err := c.describe()
		if err == nil {
			_, err = c.dir.Update(c.life, c.self, 0, l)
		}
		if err != nil && c.life.Err() == nil {
			c.cfg.logger.Warn("rocl: telling the directory new addresses", "err", err)
		}
	}
}

// meant leaves out of the addresses of a context those that mean another place
// here than where it is: the loopback interface of another machine. Where the
// cluster itself is on the loopback interface, all nodes are on one machine.
func (c *Context) meant(peer resource.GID, urls []string) []string {
	if peer.Node() == c.self.Node() {
		return urls
	}
	if t := c.dir.Terms(); t.Host == "" || isHere(t.Host) {
		return urls
	}
	return slices.DeleteFunc(slices.Clone(urls), func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && isHere(u.Hostname())
	})
}

// isHere says whether an address is that of this machine on every machine.
func isHere(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && (a.IsLoopback() || a.IsUnspecified())
}
