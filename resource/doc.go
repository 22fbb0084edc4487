// SPDX-License-Identifier: Apache-2.0

// Package resource defines identifiers, attribute lists and patterns, on which all other packages
// build.
//
// # Identifiers
//
// A [GID] names one resource in the cluster for ever. Its 128 bits contain the node and the context
// that made it:
//
//	 127        80 79         32 31      0
//	+-------------+-------------+---------+
//	|    node     |   context   | serial  |
//	+-------------+-------------+---------+
//
// On the wire it is 16 bytes, big-endian. Serial 0 is the context's own resource. A context makes
// identifiers without asking: the node's directory gives each context a number that is never given
// again, and the context counts the serials.
//
// # Attribute lists
//
// A [List] is an ordered list of attributes: a name and a value of any bytes. Names may repeat. A
// list lies in one contiguous region, which is stored, sent as a question and sent as an answer
// without change (paper, section 3.1). Before it are 64 bytes of head room for a protocol's header.
// A value may be absent: it is wanted in a question, and lacking in an answer. An empty value is
// not absent.
//
// # Patterns
//
// A pattern is a List. A resource matches if it has the known attributes of the pattern. The values
// of the absent ones are wanted. A pattern may also have conditions: comparisons of numbers, an
// order, an owner.
//
// A number is a text of at most 128 bytes, such as 4, -0.25 or 1e9. Numbers are compared without
// rounding. [ParseList] refuses conditions, as does every parser that does not know them.
// [ParsePattern] accepts them.
package resource
