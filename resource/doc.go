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
// without change (paper, section 3.1). Before it is head room for a protocol's header:
//
//	+-----------+-------+-------+----------------------------------------+
//	| head room | count | bytes | count × (nlen u16, vlen u32, name, value) |
//	+-----------+-------+-------+----------------------------------------+
//	  64 bytes     u16     u32    little-endian throughout
//
// A vlen of 2³²-1 means that the value is absent. It is wanted in a question, and lacking in an
// answer. An empty value is not absent.
//
// # Patterns
//
// A pattern is a List. A resource matches if it has the known attributes of the pattern. The values
// of the absent ones are wanted. A pattern may also have conditions:
//
//	vlen                       operand          a resource matches only if
//	2³¹ + Op × 2²⁴ + bytes     decimal number   Op 1 to 6: its first attribute with the name is a
//	                                            number that is =, !=, <, <=, >, >= the operand
//	2³¹ + Op × 2²⁴             none             always. Op 7, 8: that number orders the resources,
//	                                            the least or the greatest first, those without last
//	2³¹ + 9 × 2²⁴ + 16         identifier       the context owns it; the name is rocl.context
//
// A number is a text of at most 128 bytes, such as 4, -0.25 or 1e9. Numbers are compared without
// rounding. [ParseList] refuses conditions, as does every parser that does not know them.
// [ParsePattern] accepts them.
package resource
