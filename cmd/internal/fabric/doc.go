// SPDX-License-Identifier: Apache-2.0

// Package fabric adds the transport over libfabric to the contexts of the commands, with the build
// tag ofi.
package fabric
