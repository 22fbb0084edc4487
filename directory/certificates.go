// SPDX-License-Identifier: Apache-2.0

package directory

import "fmt"

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
