// SPDX-License-Identifier: Apache-2.0

// Package index lays out the index of a node: a copy of the directory's database in memory that
// other processes read in place. A process that asks for a resource of its own node needs no system
// call and wakes no other process.
//
// The server writes the index beside its database, when the first context asks for it and from then
// on. The index has hash tables of its own. It lies in one sealed memfd (package memfd), which the
// server writes and contexts map for reading; the kernel enforces that. The file is reserved large
// and takes memory only as it grows. So there is one descriptor and one mapping, and nothing moves.
//
//	header ─ key, state
//	  ├─ 256 parts ─► table: hash of an attribute ─► posting: numbers of records
//	  └─ pages ─────► record: sequence, identifier, revision, list
//	                                  or, where that is long ─► block: owner, list
//
// docs/PROTOCOL.md has the layout.
//
// # Torn reads
//
// No process locks. Each part has a version and each record a sequence number: odd while the writer
// changes it, and a new even number afterwards. Parts and records never move. A reader first copies
// what it wants, then checks that the number is even and the same as before. So the writer can use
// memory again at once: a reader that still reads it finds out that its copy is out of date.
//
//   - An answer "found" needs only the record of the resource: the record was copied whole, and it
//     matches byte by byte. Changes of other records do not disturb it.
//   - An answer "nothing matches" needs more. The part whose posting was read must not have changed,
//     nor any record in that posting. During a change, the writer keeps the versions of all parts
//     concerned odd, from the first word written to the last. So a resource that is being updated
//     is not missing in between.
//
// A reader that meets a change tries again, a limited number of times. Then it returns Ask: the
// server is to be asked. It does the same if a posting is long, or if a list is too large to be
// kept. A reader never waits for the writer, nor the writer for a reader. A server that is stopped
// or killed in the middle of a change blocks no reader.
//
// # Trust
//
// The key of the hash lies in the index, because both sides need the same one. hash/maphash does
// not allow that, so the hash is SipHash. Only processes of the server's own user get the index,
// and they could do worse than choose colliding attributes. Any other process that chooses
// attributes does not know the key and finds no collisions. If two attributes do share 64 bits, the
// writer notices when both have a first position, and gives the index up.
//
// A reader trusts nothing that it reads: every place and length is checked, lists are parsed, and
// every loop is bounded. Invalid content ends the index for that reader.
//
// # The memory model
//
// A reader uses atomic loads, which keep their order, for everything that may change while it
// reads. The writer stores such words atomically too, with two exceptions: the bytes of a block,
// which are written before the block is published, and the bytes of a list. A reader that is out of
// date may read these while they are written. For the processor this is no data race. The odd
// number of a record was stored, by a read-modify-write, before its block was free. A list within
// its record is written between the odd number and the even one. The race detector does not see
// mapped memory; the tests with real processes and checksums do.
package index
