// SPDX-License-Identifier: Apache-2.0

// Package fabric calls libfabric without cgo: an [Endpoint] with one address vector and one
// completion queue. It knows nothing of frames.
//
// The library is loaded with dlopen on first use. Of its functions only fi_getinfo and a few others
// are symbols. The rest are members of tables that its objects point to, at the offsets of the
// libfabric ABI 1, which are the same on all 64-bit systems.
package fabric
