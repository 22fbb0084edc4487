// SPDX-License-Identifier: Apache-2.0

package context

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/loopback"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// errBare says that a transport does not seal.
var errBare = errors.New("what goes to other nodes of the cluster is sealed, and TCP does not seal")

// seal brings the sealer to the terms: it is made when the cluster has a key, of
// the certificates given or else of the keys, and made new ones of when those
// change. Conns that live stay as they are.
func (c *Context) seal(t *directory.Terms) error {
	switch {
	case !t.Sealed || t.Host == "":
		return nil
	case c.secrets != nil:
		if slices.EqualFunc(t.Keys, c.sealed, bytes.Equal) {
			return nil
		}
		if err := c.secrets.Set(t.Keys...); err != nil {
			return err
		}
	case c.sealer != nil: // of certificates, which see to themselves
		return nil
	case t.Certificates:
		files, err := tls.FromFiles(c.cfg.certs.Cert, c.cfg.certs.Key, c.cfg.certs.CA)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCertificates, err)
		}
		c.sealer = tls.New(files)
		return nil
	default:
		var err error
		if c.secrets, err = tls.FromSecrets(t.Cluster, t.Keys...); err != nil {
			return err
		}
		c.sealer = tls.New(c.secrets)
	}
	c.sealed = t.Keys
	return nil
}

// over are the transports with the sealer among them, behind TCP, which is for
// this node then. Who is given a TLS of his own is left with it, and so is who
// is given neither.
func (cfg *config) over(sealer subsys.Transport) []subsys.Transport {
	at := slices.IndexFunc(cfg.transports, func(t subsys.Transport) bool { return t.Name() == "tcp" })
	own := slices.ContainsFunc(cfg.transports, func(t subsys.Transport) bool { return t.Name() == "tls" })
	if sealer == nil || at < 0 || own {
		return cfg.transports
	}
	return slices.Insert(slices.Clone(cfg.transports), at+1, sealer)
}

// listens checks that somebody listens at each address that was named, and
// nobody for other nodes in the clear where that is to be sealed.
func (cfg *config) listens(t *directory.Terms, sealer subsys.Transport) error {
	for _, u := range cfg.listen {
		if !slices.ContainsFunc(cfg.over(sealer), func(t subsys.Transport) bool { return strings.HasPrefix(u, t.Name()+"://") }) {
			return fmt.Errorf("%w: %q: no transport of this context listens there", subsys.ErrAddress, u)
		}
		if t.Sealed && strings.HasPrefix(u, "tcp://") && !isLoopback(u) {
			return fmt.Errorf("%w: %q: %w: listen at tls://, or let the context choose", subsys.ErrAddress, u, errBare)
		}
	}
	return nil
}

func isLoopback(addr string) bool {
	u, err := url.Parse(addr)
	if err != nil {
		return false
	}
	return loopback.IsHost(u.Hostname())
}

// sealedOver refuses links with other nodes over TCP, whoever begins.
func (c *Context) sealedOver(peer resource.GID, transport string) error {
	if transport == "tcp" && peer.Node() != c.self.Node() {
		return errBare
	}
	return nil
}
