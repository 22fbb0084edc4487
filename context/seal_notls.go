// SPDX-License-Identifier: Apache-2.0

//go:build roclnotls

package context

import (
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/subsys"
)

// A program that is built with the tag roclnotls does not link the TLS of the standard library,
// which is a third of a small program. It can use a node alone, or one whose cluster has no keys.

func sealerFromFiles(directory.CertificateFiles) (subsys.Transport, error) { return nil, ErrNoTLS }

func sealerFromKeys(*directory.Terms) (subsys.Transport, keySet, error) { return nil, nil, ErrNoTLS }
