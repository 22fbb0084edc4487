// SPDX-License-Identifier: Apache-2.0

// Package pack packs values into messages and unpacks them, with the types and encodings of PVM
// 3.4. It does not send or receive messages; package tpvm does.
//
// # Packing and unpacking
//
// A [Buffer] is a message that is being packed. Values are appended to it one after another. A
// [Reader] unpacks them in the same order:
//
//	b := pack.NewBuffer(pack.Default)
//	err := pack.Pack(b, matrix, 1)      // []float64
//	err = pack.Pack(b, matrix, columns) // its first column
//	err = b.PackString("a name")
//
//	err = pack.Unpack(r, matrix, 1)
//	err = pack.Unpack(r, column, 1)
//	name, err := r.UnpackString()
//
// A message does not say how many values were packed. A sender whose receiver does not know the
// number packs it first, with [PackOne].
//
// # Encodings
//
//   - [Default] is XDR, byte for byte as PVM 3.4.6 writes it. Every number takes a multiple of four
//     bytes, the high one first. Packing and unpacking swap the bytes of each number.
//   - [Raw] is the form that numbers have in the memory of a little-endian machine with longs of
//     eight bytes. There, packing is a copy. Machines of other kinds convert; PVM's Raw cannot be
//     read by them.
//   - [InPlace] is Raw for the receiver. Pack keeps a reference, and Buffer.Encode reads the
//     values when the message is sent. Strings, single values and messages are copied at once.
//     Unlike PVM's, it allows strides and strings. A message that is nothing but one rocl.Buffer
//     is sent without any copy; see [Buffer.PackBuffer].
//
// [View] unpacks without a copy if possible.
//
// # Types
//
// Named types are packed as their underlying type. Sizes are those on the wire, in bytes.
//
//	PVM type  pack routine  Go type                Default  Raw  in Default
//	byte      pvm_pkbyte    int8, uint8            1        1    each Pack is padded with zeros to a multiple of four
//	short     pvm_pkshort   int16                  4        2
//	ushort    pvm_pkushort  uint16                 4        2    the high two bytes are copies of bit 15, as in PVM
//	int       pvm_pkint     int32                  4        4
//	uint      pvm_pkuint    uint32                 4        4
//	long      pvm_pklong    int64, int             4        8    ErrOverflow beyond four bytes; see below
//	ulong     pvm_pkulong   uint64, uint           4        8    likewise
//	float     pvm_pkfloat   float32                4        4
//	double    pvm_pkdouble  float64                8        8
//	cplx      pvm_pkcplx    complex64              8        8
//	dcplx     pvm_pkdcplx   complex128             16       16
//	str       pvm_pkstr     PackString             4 + n    4 + n  an int, n, then n bytes with a final zero, padded as byte
//	message   pvm_pkmesg    PackMessage            60 + n   60 + n a header, the length n and n bytes, padded as byte
//	-         pvm_pkmesgbody PackMessageBody       n        n
//
// Go's int is PVM's long, on every machine. A program that exchanges ints with C uses int32.
// Unpacking a value into an int of four bytes, on a 32-bit machine, fails with [ErrOverflow] if the
// value is too large.
//
// # Longs
//
// XDR as Debian builds PVM 3.4.6 gives a long four bytes. PVM's documentation promises the error
// PvmOverflow for a larger value, but Debian's library cuts the value off. Pack fails with
// [ErrOverflow] and packs nothing. In a typed message nothing overflows: if a long of a slice does
// not fit, all longs of the slice take eight bytes.
//
// # Bytes
//
// With encoding Default, bytes must be unpacked in the same groups as they were packed in, because
// each Pack ends with padding. Other numbers may be unpacked in other groups.
//
// # Typed messages
//
// A Buffer made [WithTypes] ends its message with a description of the types and counts, which
// takes about two bytes for each change of type. Unpacking as another type then fails with
// [ErrType] instead of giving wrong values. The receiver must know that the message is typed;
// package tpvm puts that into the byte behind the message. Without types, only the end of the
// message is noticed, with [ErrNoData].
//
// An Unpack that fails consumes nothing: the same values can be unpacked as something else.
//
// # Messages within messages
//
// [Buffer.PackMessage] packs a received message with its [Envelope], and [Reader.UnpackMessage]
// unpacks it. The header is PVM's, except that sender and receiver have 16 bytes each instead of
// four. [Buffer.PackMessageBody] appends the values alone.
//
// # Memory
//
// A Buffer that is emptied with [Buffer.Reset] and used again does not allocate. Nor do Encode,
// Init, Unpack, and View of values that need no conversion. Pack of a slice makes the slice escape
// to the heap, since an InPlace Buffer keeps it; [PackOne] does not.
package pack
