// SPDX-License-Identifier: Apache-2.0

package context

import (
	"bytes"
	"errors"
	"slices"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// errBare is the error for a transport that does not seal, where the terms demand it.
//
// Cause: `WithListen("tcp://…")` in a cluster with a key. Remedy: listen at `tls://`, or let the
// context choose.
var errBare = errors.New("the cluster seals traffic between nodes, and the transport does not seal")

// keySet has the keys from which a sealer makes its certificates.
type keySet interface {
	// Set replaces the keys. The first seals, all open.
	Set(keys ...[]byte) error
}

// seal makes the sealer if the cluster has a key, and renews its secrets when the keys have
// changed. The sealer uses the certificates that were given, or else certificates that are made
// from the keys. Existing connections stay as they are.
func (p *Ports) seal(t *directory.Terms) error {
	switch {
	case !t.Sealed || t.Host == "" || len(p.cfg.Transports) == 0:
		return nil
	case p.secrets != nil:
		if slices.EqualFunc(t.Keys, p.sealed, bytes.Equal) {
			return nil
		}
		if err := p.secrets.Set(t.Keys...); err != nil {
			return err
		}
	case p.sealer != nil: // of certificates, which it reads again itself
		return nil
	case t.Certificates:
		sealer, err := sealerFromFiles(p.cfg.Certificates)
		p.sealer = sealer
		return err
	default:
		sealer, secrets, err := sealerFromKeys(t)
		if err != nil {
			return err
		}
		p.sealer, p.secrets = sealer, secrets
	}
	p.sealed = t.Keys
	return nil
}

// withSealer returns the transports of the context, with the sealer behind TCP, which then serves
// this node alone. The sealer is left out if the program has set a TLS transport of its own, or no
// TCP.
func (cfg *Config) withSealer(sealer subsys.Transport) []subsys.Transport {
	at := slices.IndexFunc(cfg.Transports, func(t subsys.Transport) bool { return t.Name() == "tcp" })
	own := slices.ContainsFunc(cfg.Transports, func(t subsys.Transport) bool { return t.Name() == "tls" })
	if sealer == nil || at < 0 || own {
		return cfg.Transports
	}
	return slices.Insert(slices.Clone(cfg.Transports), at+1, sealer)
}

// isUnsealed reports whether a transport of the context does not encrypt what it carries to other
// machines.
func (cfg *Config) isUnsealed(transport string) bool {
	return transport == "tcp" || slices.ContainsFunc(cfg.Transports, func(t subsys.Transport) bool {
		_, is := t.(subsys.Unsealed)
		return is && t.Name() == transport
	})
}

// checkSealed refuses links over transports that do not seal with contexts of other nodes,
// whichever side dials.
func (p *Ports) checkSealed(peer resource.GID, transport string) error {
	if p.cfg.isUnsealed(transport) && peer.Node() != p.self.Node() {
		return errBare
	}
	return nil
}

// Trust returns the conditions on which the dispatcher links with other contexts now.
func (p *Ports) Trust() dispatch.Trust {
	t := p.dir.Terms()
	name := p.cfg.Cluster
	if name == "" {
		name = t.Cluster
	}
	trust := dispatch.Trust{Cluster: name, Keys: t.Keys}
	if t.Sealed {
		trust.CheckTransport = p.checkSealed
	}
	return trust
}
