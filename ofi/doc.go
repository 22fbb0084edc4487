// SPDX-License-Identifier: Apache-2.0

// Package ofi is a transport over libfabric.
package ofi
