// SPDX-License-Identifier: Apache-2.0

package bulk

// InPlace reports whether [Endpoint.View] of registered memory that h names would be in place, if
// the range is within one segment. That is so if the origin belongs to the context of ep, or shares
// memory with it.
func (ep *Endpoint) InPlace(h Handle) bool {
	return h.origin.Context() == ep.ID().Context() || ep.sharing.route(ep.c, h.origin) == shared
}
