// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package fabric

import "unsafe"

// writeArgs is a struct fi_msg_rma with what it points to.
type writeArgs struct {
	iov      uintptr // of mem
	desc     uintptr // of memDesc
	iovCount uintptr
	addr     uint64
	rma      uintptr // of at
	rmaCount uintptr
	context  uintptr
	data     uint64

	mem, memLen uintptr // a struct iovec
	memDesc     uintptr
	at, n, key  uint64 // a struct fi_rma_iov
}

// Expose registers memory for reads and writes of peers only. The memory may be Go's: its owner
// keeps it alive until Unregister. Otherwise it is as Register.
func (e *Endpoint) Expose(mem []byte, key uint64, isReadable, isWritable bool) (*Region, error) {
	access := uintptr(0)
	if isReadable {
		access |= capRemoteRead
	}
	if isWritable {
		access |= capRemoteWrite
	}
	return e.register(mem, key, access)
}

// Write writes len(mem) bytes to an address of a peer's region. The completion says that they are
// in the peer's memory. The memory may be Go's if op's owner keeps it alive.
func (e *Endpoint) Write(op int, mem []byte, desc uintptr, to Address, at, key uint64) error {
	w := e.writing
	*w = writeArgs{
		iov: uintptr(unsafe.Pointer(&w.mem)), desc: uintptr(unsafe.Pointer(&w.memDesc)), iovCount: 1, addr: uint64(to),
		rma: uintptr(unsafe.Pointer(&w.at)), rmaCount: 1, context: e.context(op),
		mem: addressOf(mem), memLen: uintptr(len(mem)), memDesc: desc, at: at, n: uint64(len(mem)), key: key,
	}
	e.args = append(e.args[:0], e.ep, uintptr(unsafe.Pointer(w)), flagCompletion|flagDelivered)
	return e.begun("write", quick(e.write, e.args))
}
