// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/resource"
)

// ErrMember is returned where the settings of a member of a cluster are not valid, or its key or
// its certificates cannot be used.
//
// Cause: `ROCL_BIND` and the rest, or `WithMember`, are wrong. Remedy: correct them, or run a
// `dirserver` and unset `ROCL_BIND`.
var ErrMember = errors.New("rocl: invalid settings of a member")

// Terms say how the contexts of a node link with other contexts. The server tells them to each
// context when it joins and whenever they change.
type Terms struct {
	Keys    [][]byte // a process that knows one of them may link
	Member  bool     // the node is in a cluster
	Cluster string   // the name of the cluster
	Host    string   // the IP address at which other nodes reach this one, "" if none
	Sealed  bool     // links to other nodes are to be sealed
	// Certificates says that the operator's certificates prove membership of the cluster, in place
	// of certificates made from keys.
	Certificates bool
}

// Protocol: Terms
//
// The terms are a list, which tells a context how to link with others. Unknown names are ignored.
//
// | name | value |
// |---|---|
// | `key` | a link key; repeated, the newest first |
// | `cluster` | the cluster's name, if the node is in one |
// | `host` | the IP address at which other nodes reach this one |
// | `sealed` | present if traffic to other nodes must go [over TLS](#tls) |
// | `certificates` | present if the operator's certificates identify the nodes |

// Names of the terms on the wire, where they are a list of attributes. A receiver ignores names
// that it does not know.
const (
	termKey     = "key" // repeated
	termCluster = "cluster"
	termHost    = "host"
	termSealed  = "sealed"
	termCerts   = "certificates"
)

// list returns the terms in their form on the wire.
func (t *Terms) list() (l resource.List) {
	// The error is dropped: a node whose terms are too long for a list cannot be served.
	add := func(name string, value []byte) { _ = l.Add(name, value) }
	for _, k := range t.Keys {
		add(termKey, k)
	}
	if t.Member {
		add(termCluster, []byte(t.Cluster))
	}
	if t.Host != "" {
		add(termHost, []byte(t.Host))
	}
	if t.Sealed {
		add(termSealed, nil)
	}
	if t.Certificates {
		add(termCerts, nil)
	}
	return l
}

// parseTerms returns the terms in a list. Terms without a key are an error.
func parseTerms(l *resource.List) (*Terms, error) {
	t := &Terms{Host: l.GetString(termHost)}
	for k := range l.Values(termKey) {
		t.Keys = append(t.Keys, slices.Clone(k))
	}
	if len(t.Keys) == 0 {
		return nil, fmt.Errorf("%w: terms without a key", ErrProtocol)
	}
	var name []byte
	name, t.Member = l.Get(termCluster)
	t.Cluster = string(name)
	_, t.Sealed = l.Get(termSealed)
	_, t.Certificates = l.Get(termCerts)
	return t, nil
}

// equal reports whether t and o are the same on the wire.
func (t *Terms) equal(o *Terms) bool {
	a, b := t.list(), o.list()
	return a.Equal(&b)
}

// CertificateFiles has the names of PEM files: a certificate, its key, and the certificates of the
// accepted authorities. The zero value names none.
type CertificateFiles struct{ Cert, Key, CA string }

// Given reports whether f names a file.
func (f CertificateFiles) Given() bool { return f != CertificateFiles{} }

// Check returns an error if some of the names are missing. It does not read the files.
func (f CertificateFiles) Check() error {
	if f.Given() && (f.Cert == "" || f.Key == "" || f.CA == "") {
		// Cause: some of the three TLS settings are missing. Remedy: give all three.
		return fmt.Errorf("a certificate, its key and the authorities' certificates belong together: have %q, %q, %q", f.Cert, f.Key, f.CA)
	}
	return nil
}
