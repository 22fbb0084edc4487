// SPDX-License-Identifier: Apache-2.0

// Package scale computes what the directory of a large cluster costs. It runs the search and filter
// code itself, in virtual time, with up to 10,000 nodes that hold a million resources. Its tests
// hold the figures to their limits. Its command, scaling, writes docs/SCALING.md.
package scale
