// SPDX-License-Identifier: Apache-2.0

package tls

import "github.com/rocl-go/rocl/subsys"

// NewWorn is New with a limit of records for each connection.
func NewWorn(c Credentials, records uint64) subsys.Transport {
	return transport{cred: c, recordsPerKey: records}
}
