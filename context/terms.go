// SPDX-License-Identifier: Apache-2.0

package context

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
)

// ErrCluster is returned when the node's directory is in another cluster than [WithCluster] names.
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
func (c *Context) checkTerms(t *directory.Terms) error {
	switch given := c.cfg.certs.Given(); {
	case !t.Member:
	case c.cfg.cluster != "" && t.Cluster != c.cfg.cluster:
		return fmt.Errorf("%w: the directory is in cluster %q, not in %q", ErrCluster, t.Cluster, c.cfg.cluster)
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

// follow applies new terms of the directory until the context closes; a goroutine of its own runs
// it. Terms change, for example, when another process serves the node: the new server may be a
// member of a cluster although the last one was not, or the reverse. follow renews the sealer,
// opens the missing ports and registers their addresses. If the directory refuses the addresses, or
// the machine does not have the cluster's address, follow tries again after a second. It does not
// handle keys of links, because trust reads those each time.
func (c *Context) follow(was directory.Terms, registered []string) {
	var again <-chan time.Time // receives when something must be tried again; else nil
	if c.lacking != "" {
		again = time.After(time.Second)
	}
	for {
		select {
		case <-c.termsChanged:
		case <-again:
		case <-c.life.Done():
			return
		}
		t := c.dir.Terms()
		if was.Member && !t.Member {
			// Cause: a program serves where the daemon died. Remedy: start the daemon again.
			c.cfg.logger.Warn("rocl: the node has left its cluster: the process that serves it now has no settings of a member", "cluster", was.Cluster)
		}
		was = t
		if err := c.checkTerms(&t); err != nil {
			// Cause: the new server's cluster or certificates differ. Remedy: use the same settings
			// everywhere.
			c.cfg.logger.Warn("rocl: the directory has changed", "err", err)
		}
		if err := c.seal(&t); err != nil {
			// Cause: TLS cannot be set up. Remedy: correct certificates or key.
			c.cfg.logger.Warn("rocl: this context and those of other nodes may not reach each other", "err", err)
		}
		more := slices.DeleteFunc(c.cfg.listenAddrs(&t, c.sealer), func(a listenAddr) bool { return c.listening[a.key()] })
		if !slices.ContainsFunc(more, func(a listenAddr) bool { return a.at == c.lacking }) {
			c.lacking = "" // the cluster has another address now
		}
		if err := c.listen(more); err != nil {
			// Cause: the context cannot listen at another address. Remedy: see `err`.
			c.cfg.logger.Warn("rocl: other nodes may not reach this context", "err", err)
		}
		if again = nil; c.lacking != "" {
			again = time.After(time.Second)
		}
		addrs := c.Addrs()
		if slices.Equal(addrs, registered) {
			continue
		}
		l, err := c.describe(addrs)
		if err == nil {
			_, err = c.dir.Update(c.life, c.self, 0, l)
		}
		if err == nil {
			registered = addrs
		} else if c.life.Err() == nil {
			// Cause: they are sent again each second. Remedy: restart the program if it repeats.
			c.cfg.logger.Warn("rocl: the directory did not take the new addresses", "err", err)
			again = time.After(time.Second)
		}
		c.disp.Reconsider()
	}
}
