// SPDX-License-Identifier: Apache-2.0

// Package image lays a node's resources out in memory that other processes read
// in place: who asks what is registered on its own node needs no system call and
// wakes nobody.
//
// The image is an index of its own beside the database, which writes it; one
// sealed memfd (package memfd) that the server writes and contexts map for
// reading, which the kernel enforces. It is made when the first context asks for
// it. The file is reserved large and takes memory only as it grows, so there is
// one descriptor and one mapping, and nothing moves.
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
// Nobody locks. Each part has a version and each record a sequence number: odd
// while the writer changes it, and another afterwards. They never move. What a
// reader wants it first copies, then it looks whether the number is the same and
// even. So memory can be used again at once: who still reads it finds that it
// was out of date.
//
//   - That a resource is there needs only its own record: it was copied whole, and
//     it matches byte by byte. Changes to others disturb nobody.
//   - That nothing matches needs the part whose posting was looked through to have
//     stood still, and each record in it. A change holds all parts it concerns odd
//     from the first word it writes to the last, so that what is updated is not
//     missing in between.
//
// A reader that meets a change tries again, some times; then, as when a posting
// is long, or a list too large to be kept, it says Ask: the server is to be asked.
// It never waits for the writer, nor the writer for it: a server that is stopped,
// or killed, in the midst of a change holds nobody.
//
// # Trust
//
// The key of the hash lies in the image, since both sides need the same one, which
// hash/maphash does not allow. It is SipHash: whoever chooses attributes does not
// know the key and finds no collisions, since only processes of the server's own
// user get the image, and these could do worse. If two attributes do share 64
// bits, the writer notices when both have a first place, and gives the image up.
//
// A reader trusts nothing it reads: every place and length is checked, lists are
// parsed, every loop is bounded. Nonsense ends the image for that reader.
//
// # The memory model
//
// All that may change under a reader it reads with atomic loads, which keep their
// order. The writer stores such words atomically too, but the bytes of a block,
// which it writes before it is published, and of a list. They may be read by who is out of date,
// which is no data race for the processor: the odd number was stored, by a
// read-modify-write, before the block was free; and a list within its record is
// written between the odd number and the even one. The race detector does not see
// mapped memory; the tests with real processes and checksums do.
package image
