// SPDX-License-Identifier: Apache-2.0

package subsys

// MostKey is the size in bytes of the longest key of an [Exposure].
const MostKey = 64

// An Access is a set of what peers may do with exposed memory.
type Access uint8

// Kinds of access.
const (
	MayRead Access = 1 << iota
	MayWrite
)

// An Exposer is a Port over which peers read and write memory of this process, though no goroutine
// of the program takes part. Its connections are [OneSided].
type Exposer interface {
	Port
	// Expose gives access to mem, which need not be of Config.Pool, to each peer that has the key,
	// until the exposure is closed. mem must stay valid so long. No peer can guess the key, as far
	// as the transport chooses it. Expose may take milliseconds. Its error matches
	// errors.ErrUnsupported if the port cannot expose memory on this machine.
	Expose(mem []byte, access Access) (Exposure, error)
}

// An Exposure is memory that a port exposes. Any goroutine may call its methods, Close without
// Config.Progress and without locks.
type Exposure interface {
	// Key returns at most MostKey bytes, by which the other end of each connection of the port
	// names the memory. They must not be changed.
	Key() []byte
	// Close ends the access. What peers do with the key later fails, and may break the connection
	// over which they do it. Of a peer that is connected, the caller first learns in another way
	// that no operation with the key is in progress: the port does not know. What has come from a
	// peer that has ended is written before Close returns. Close does nothing when it is called
	// again, or after Port.Close.
	Close()
}

// A OneSided is a Conn over which this end reads and writes memory that the peer exposes. Several
// operations may be in progress, and end in any order. They are not ordered with frames.
//
// Both methods begin an operation, and do not wait. They fail for a key that is not of the port at
// the other end, or bytes beyond its memory. If they return nil, done is called once when the
// operation has ended, after Close of the connection too. Until then the local memory, which need
// not be of Config.Pool, stays valid, and only the transport uses it. The progress goroutine or
// Port.Close calls done, perhaps with locks held, so done must not wait or call the port or its
// connections. An error given to done means that any of the bytes may have been copied. An
// operation that fails may end the connection.
type OneSided interface {
	Conn
	// ReadMemory fills dst with what lies at off in the memory of the key.
	ReadMemory(dst, key []byte, off uint64, done func(error)) error
	// WriteMemory writes src to the memory of the key at off. When done gets nil, the peer's
	// program can read the bytes.
	WriteMemory(src, key []byte, off uint64, done func(error)) error
}
