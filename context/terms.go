// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
)

// ErrCluster is returned when the node's directory is in another cluster than rocl.WithCluster
// names.
//
// Cause: `ROCL_CLUSTER` or `WithCluster` differs from the daemon's `--cluster`. Remedy: use one
// name.
var ErrCluster = errors.New("rocl: the node is in another cluster")

// ErrCertificates is returned when certificates are missing, or given although the cluster uses
// none, or cannot be used.
//
// Cause: certificates are missing, damaged, or not used here. Remedy: correct the files.
var ErrCertificates = errors.New("rocl: invalid certificates")

// ErrNoTLS is returned by Open if the node's cluster has keys or certificates, and the program was
// built without TLS (the build tag roclnotls).
//
// Cause: the program was built with `-tags roclnotls`. Remedy: build it without.
var ErrNoTLS = errors.New("rocl: the cluster needs TLS, and this program is built without it")

// checkTerms checks the directory's terms against the options. If both name a cluster, it must be
// the same. Certificates must be given if, and only if, the cluster's nodes use certificates.
func (p *Ports) checkTerms(t *directory.Terms) error {
	switch given := p.cfg.Certificates.Given(); {
	case !t.Member:
	case p.cfg.Cluster != "" && t.Cluster != p.cfg.Cluster:
		return fmt.Errorf("%w: the directory is in cluster %q, not in %q", ErrCluster, t.Cluster, p.cfg.Cluster)
	case t.Certificates && !given:
		// Cause: the program lacks the daemon's certificates. Remedy: set `ROCL_TLS_CERT`,
		// `ROCL_TLS_KEY` and `ROCL_TLS_CA`.
		return fmt.Errorf("%w: the cluster's nodes show certificates, and this context has none (WithCertificates; ROCL_TLS_CERT, ROCL_TLS_KEY, ROCL_TLS_CA)", ErrCertificates)
	case !t.Certificates && given:
		// Cause: only the program has certificates. Remedy: give them to all nodes, or to none.
		return fmt.Errorf("%w: the cluster's nodes show no certificates (dirserver --tls-cert), and this context has some", ErrCertificates)
	}
	return nil
}

// Follow applies new terms of the directory until the context closes; a goroutine of its own runs
// it. Terms change, for example, when another process serves the node: the new server may be a
// member of a cluster although the last one was not, or the reverse. Follow renews the sealer,
// opens the missing ports and registers their addresses. If the directory refuses the addresses, or
// the machine does not have the cluster's address, Follow tries again after a second. It does not
// handle keys of links, because Trust reads those each time.
func (p *Ports) Follow(ctx context.Context) {
	var again <-chan time.Time // receives when something must be tried again; else nil
	if p.lacking != "" {
		again = time.After(time.Second)
	}
	for {
		select {
		case <-p.changed:
		case <-again:
		case <-ctx.Done():
			return
		}
		t := p.dir.Terms()
		if p.terms.Member && !t.Member {
			// Cause: a program serves where the daemon died. Remedy: start the daemon again.
			p.cfg.Logger.Warn("rocl: the node has left its cluster: the process that serves it now has no settings of a member", "cluster", p.terms.Cluster)
		}
		p.terms = t
		if err := p.checkTerms(&t); err != nil {
			// Cause: the new server's cluster or certificates differ. Remedy: use the same settings
			// everywhere.
			p.cfg.Logger.Warn("rocl: the directory has changed", "err", err)
		}
		if err := p.seal(&t); err != nil {
			// Cause: TLS cannot be set up. Remedy: correct certificates or key.
			p.cfg.Logger.Warn("rocl: this context and those of other nodes may not reach each other", "err", err)
		}
		more := slices.DeleteFunc(p.cfg.listenAddrs(&t, p.sealer), func(a listenAddr) bool { return p.listening[a.key()] })
		if !slices.ContainsFunc(more, func(a listenAddr) bool { return a.at == p.lacking }) {
			p.lacking = "" // the cluster has another address now
		}
		if err := p.listen(more); err != nil {
			// Cause: the context cannot listen at another address. Remedy: see `err`.
			p.cfg.Logger.Warn("rocl: other nodes may not reach this context", "err", err)
		}
		if again = nil; p.lacking != "" {
			again = time.After(time.Second)
		}
		addrs := p.Addrs()
		if slices.Equal(addrs, p.registered) {
			continue
		}
		l, err := describe(addrs)
		if err == nil {
			_, err = p.dir.Update(ctx, p.self, 0, l)
		}
		if err == nil {
			p.registered = addrs
		} else if ctx.Err() == nil {
			// Cause: they are sent again each second. Remedy: restart the program if it repeats.
			p.cfg.Logger.Warn("rocl: the directory did not take the new addresses", "err", err)
			again = time.After(time.Second)
		}
		p.disp.Reconsider()
	}
}
