// SPDX-License-Identifier: Apache-2.0

// Package scale says what the directory of a large cluster costs: the search
// and filter code itself, in virtual time, with up to 10,000 nodes that hold a
// million resources. Its test holds the figures to their limits; its command,
// scaling, writes docs/SCALING.md.
package scale
