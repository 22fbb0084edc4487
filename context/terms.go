// SPDX-License-Identifier: Apache-2.0

package context

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/loopback"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// ErrCluster is returned when the node's directory is in another cluster than [WithCluster] names.
var ErrCluster = errors.New("rocl: the node is in another cluster")

// ErrCertificates is returned when certificates are missing, or given although the cluster uses
// none, or cannot be used.
var ErrCertificates = errors.New("rocl: invalid certificates")

// agrees checks the directory's terms against the options. If both name a cluster, it must be the
// same. Certificates must be given if, and only if, the cluster's nodes use certificates.
func (c *Context) agrees(t *directory.Terms) error {
	switch given := c.cfg.certs.Given(); {
	case !t.Member:
	case c.cfg.cluster != "" && t.Cluster != c.cfg.cluster:
		return fmt.Errorf("%w: its directory says %q, not %q", ErrCluster, t.Cluster, c.cfg.cluster)
	case t.Certificates && !given:
		return fmt.Errorf("%w: the nodes of its cluster show certificates, and none are given (WithCertificates; ROCL_TLS_CERT, ROCL_TLS_KEY, ROCL_TLS_CA)", ErrCertificates)
	case !t.Certificates && given:
		return fmt.Errorf("%w: the nodes of its cluster show none (dirserver --tls-cert), and some are given", ErrCertificates)
	}
	return nil
}

// trust returns the conditions on which the dispatcher links with other contexts now.
func (c *Context) trust() dispatch.Trust {
	t := c.dir.Terms()
	name := c.cfg.cluster
	if name == "" {
		name = t.Cluster
	}
	trust := dispatch.Trust{Cluster: name, Keys: t.Keys}
	if t.Sealed {
		trust.CheckTransport = c.checkSealed
	}
	return trust
}

// A listenAddr is where one port listens. If at is empty, the transport chooses the address.
type listenAddr struct {
	transport subsys.Transport
	at        string
}

// listenAddrs returns where the context listens. A transport listens at the addresses that WithListen
// gives it, if any. Otherwise it chooses an address, which serves this node. On a node in a
// cluster, one transport also listens on the host by which the other nodes know this node: TCP, or
// the sealer if the cluster has a key.
func (cfg *config) listenAddrs(t *directory.Terms, sealer subsys.Transport) (all []listenAddr) {
	far := "tcp"
	if t.Sealed {
		far = "tls"
	}
	for _, tr := range cfg.withSealer(sealer) {
		before := len(all)
		for _, u := range cfg.listen {
			if strings.HasPrefix(u, tr.Name()+"://") {
				all = append(all, listenAddr{tr, u})
			}
		}
		if len(all) > before {
			continue
		}
		if tr.Name() != far || t.Host == "" {
			all = append(all, listenAddr{tr, ""})
			continue
		}
		if far == "tcp" && !isHere(t.Host) {
			all = append(all, listenAddr{tr, ""})
		}
		all = append(all, listenAddr{tr, far + "://" + net.JoinHostPort(t.Host, "0")})
	}
	return all
}

// key returns the key of the address in Context.at.
func (a listenAddr) key() string { return a.transport.Name() + " " + a.at }

// listen opens a port at each address. A transport that this machine lacks is skipped with a log
// line, unless no port at all can be opened.
func (c *Context) listen(addrs []listenAddr) error {
	var missing error
	open := len(c.at) > 0
	for _, a := range addrs {
		err := c.disp.Listen(a.transport, a.at)
		switch {
		case err == nil:
			open = true
		case errors.Is(err, subsys.ErrUnavailable):
			missing = err
			c.cfg.logger.Warn("rocl: doing without a transport", "transport", a.transport.Name(), "err", err)
		default:
			return err
		}
		c.at[a.key()] = true
	}
	if !open {
		return missing
	}
	return nil
}

// follow applies new terms of the directory until the context closes; a goroutine of its own runs
// it. Terms change, for example, when another process serves the node: the new server may be a
// member of a cluster although the last one was not, or the reverse. follow renews the sealer,
// opens the missing ports and registers their addresses. If the directory refuses the addresses,
// follow registers them again after a second. It does not handle keys of links, because trust reads
// those each time.
func (c *Context) follow(was directory.Terms) {
	var again <-chan time.Time // receives when the addresses must be registered again; else nil
	for {
		select {
		case <-c.news:
		case <-again:
		case <-c.life.Done():
			return
		}
		t := c.dir.Terms()
		if was.Member && !t.Member {
			c.cfg.logger.Warn("rocl: the node has left its cluster: the process that serves it now has no settings of a member", "cluster", was.Cluster)
		}
		was = t
		if err := c.agrees(&t); err != nil {
			c.cfg.logger.Warn("rocl: the directory has changed", "err", err)
		}
		if err := c.seal(&t); err != nil {
			c.cfg.logger.Warn("rocl: this context and those of other nodes may not reach each other", "err", err)
		}
		more := slices.DeleteFunc(c.cfg.listenAddrs(&t, c.sealer), func(a listenAddr) bool { return c.at[a.key()] })
		if len(more) == 0 && again == nil {
			continue
		}
		if err := c.listen(more); err != nil {
			c.cfg.logger.Warn("rocl: other nodes may not reach this context", "err", err)
		}
		l, err := c.describe()
		if err == nil {
			_, err = c.dir.Update(c.life, c.self, 0, l)
		}
		if again = nil; err != nil && c.life.Err() == nil {
			c.cfg.logger.Warn("rocl: telling the directory new addresses", "err", err)
			again = time.After(time.Second)
		}
		c.disp.Reconsider()
	}
}

// meant returns the addresses of the context peer that are usable from here. On another machine a
// loopback address would mean that machine, so loopback addresses of other nodes are left out. They
// stay if the cluster's own address is on the loopback interface, because then all nodes are on one
// machine. In a cluster with a key, TCP addresses of other nodes are left out whatever the peer
// claims: nothing goes to another node unencrypted.
func (c *Context) meant(peer resource.GID, urls []string) []string {
	if peer.Node() == c.self.Node() {
		return urls
	}
	t := c.dir.Terms()
	apart := t.Host != "" && !isHere(t.Host)
	if !apart && !t.Sealed {
		return urls
	}
	return slices.DeleteFunc(slices.Clone(urls), func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (apart && isHere(u.Hostname()) || t.Sealed && u.Scheme == "tcp")
	})
}

// isHere reports whether a host names the machine that uses the name: a loopback or unspecified
// address.
func isHere(host string) bool {
	a, err := netip.ParseAddr(host)
	return loopback.IsHost(host) || err == nil && a.IsUnspecified()
}
