// SPDX-License-Identifier: Apache-2.0

//go:build !roclnotls

package context

import (
	"fmt"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// sealerFromFiles returns the sealer of certificates that an operator maintains.
func sealerFromFiles(certs directory.CertificateFiles) (subsys.Transport, error) {
	files, err := tls.FromFiles(certs.Cert, certs.Key, certs.CA)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCertificates, err)
	}
	return tls.New(files), nil
}

// sealerFromKeys returns a sealer whose certificates are made from the keys of the cluster, and
// those keys.
func sealerFromKeys(t *directory.Terms) (subsys.Transport, keySet, error) {
	secrets, err := tls.FromSecrets(t.Cluster, t.Keys...)
	if err != nil {
		return nil, nil, err
	}
	return tls.New(secrets), secrets, nil
}
