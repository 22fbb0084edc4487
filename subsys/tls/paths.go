// SPDX-License-Identifier: Apache-2.0

package tls

import "fmt"

// Paths has the names of the PEM files that [FromFiles] reads: a certificate, its key, and the
// certificates of the accepted authorities. The zero value names none.
type Paths struct{ Cert, Key, CA string }

// Given reports whether p names a file.
func (p Paths) Given() bool { return p != Paths{} }

// Check returns an error if some of the names are missing. It does not read the files.
func (p Paths) Check() error {
	if p.Given() && (p.Cert == "" || p.Key == "" || p.CA == "") {
		return fmt.Errorf("a certificate, its key and the authorities' certificates belong together: have %q, %q, %q", p.Cert, p.Key, p.CA)
	}
	return nil
}
