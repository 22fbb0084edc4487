// SPDX-License-Identifier: Apache-2.0

// Package ofi is a transport over libfabric (OpenFabrics Interfaces), the library through which
// programs use fast networks. It needs no cgo, and nothing of libfabric to build: it loads
// libfabric.so.1 when a context first listens, on 64-bit x86 and ARM Linux. Without the library, or
// without the provider, Listen returns [subsys.ErrUnavailable], and the context logs one line and
// uses its other transports. With the build tag ofi_cgo, the calls go through cgo, which needs a C
// compiler.
//
//	t := ofi.New("verbs;ofi_rxm")
//	c, err := rocl.Open(ctx,
//		rocl.WithTransports(inproc.New(), t, tcp.New()),
//		rocl.WithListen("ofi+verbs://10.2.0.7:0"))
//
// By default the transport listens at 127.0.0.1. To be reached from other machines, a context names
// an address of the network's interface, as above.
//
// # What is needed of a provider
//
// The provider has reliable endpoints without connections (FI_EP_RDM) that keep the order of
// messages (FI_ORDER_SAS), and reads of remote memory (FI_RMA). These providers are tested:
// tcp;ofi_rxm, sockets, udp;ofi_rxd and shm. Others, such as verbs;ofi_rxm, psm2, opx, efa and cxi,
// have never been run. The modes of registration that they need are written: FI_MR_LOCAL,
// FI_MR_VIRT_ADDR, FI_MR_ALLOCATED and FI_MR_PROV_KEY.
//
// shm needs [WithShm]. A process of shm holds the spin lock of its region while it copies
// (smr_progress_cmd), and fi_send of a peer takes it: when gdb kills the receiver in
// process_vm_readv, fi_send does not return. A process that is killed leaves the memory of its
// endpoints in /dev/shm, 16 MiB of each.
//
// # The parts
//
//	            handshake, end, pings
//	A  ◄──────────── TCP connection ───────────►  B      one for each connection
//	endpoint ─────── messages, acknowledgements ─► endpoint
//	endpoint ◄────── reads of A's memory ───────── endpoint     one for each port
//
// An address names a TCP listener. The two ends of a connection greet each other there, and tell
// each other the names of their endpoints and a random number of 64 bits. A message to an endpoint
// begins with the number of its connection, so only the peer can send on it.
//
// The TCP connection stays open and idle. Its end is the end of the peer, which no endpoint without
// connections reports. A connection that is closed says there how many messages it has sent, and
// the peer goes down when it has delivered them. When the TCP connection ends without that, the
// peer's process has ended: what the provider still has is delivered, and then Down is called. The
// peer's kernel answers pings on it, which the dispatcher asks for ([subsys.Prober]).
//
// # Messages
//
// Frames are copied into messages of at most 16 KiB, many into one. A message has a number. The
// receiver's memory comes from the context's pool: it gives the endpoint buffers for 16 messages,
// and for 16 more with each connection, up to 256. The sink gets slices of these buffers.
//
// 32 messages of a connection may be under way. Each message acknowledges what came in the other
// direction, and after 8 messages without one, a message without frames does. While the window is
// full, small frames fill at most 8 further messages, and then Send takes no more.
//
// # Large payloads
//
// A payload above 8 KiB stays in the sender's memory (rendezvous). Its frame carries an address and
// a key. When it is its turn, the receiver asks the sink for a buffer, and reads the payload into
// it by fi_read. No processor copies it, if the network can do that. Meanwhile it reads those that
// follow into buffers of the context's pool, up to 16 MiB in a port, which the sink gets without
// being asked. The sender's buffer is retained until the receiver has acknowledged the read. 16
// payloads of a connection may wait for that.
//
// The arenas of the context's pool are registered when the first connection is made, and later
// ones when they are mapped ([buffers.Registrar]). A payload in other memory is copied first, as is
// one in an arena that the provider has refused (RLIMIT_MEMLOCK). A payload that is to land in
// memory that a program has given is read into a buffer and copied, because the program may take
// the memory back.
//
// # One-sided transfers
//
// A port exposes memory of any kind ([subsys.Exposer]): the memory gets a registration of its own,
// with a random key, for the access that is wanted. The two ends of a connection read and write
// what the other exposes, by fi_read and fi_write, 64 at a time in a port. A write has ended when
// it is in the peer's memory (FI_DELIVERY_COMPLETE). Local memory is copied only if the provider
// wants it registered (FI_MR_LOCAL) and it is not. The provider of the peer needs progress, which
// the context's keeper makes.
//
// What is refused, such as a read by a key that is no longer registered, breaks the connection:
// over tcp;ofi_rxm nothing passes afterwards. Package bulk asks all targets to stop before it
// closes an exposure. An operation ends when the provider says so. With a machine that has lost its
// power this takes as long as the provider's time-outs. udp;ofi_rxd does not end operations with a
// peer that has ended, so nothing is exposed over it.
//
// # Security
//
// Messages and reads are not encrypted. In a cluster with a key, a context uses the transport
// within its node only ([subsys.Unsealed]). A peer that has been sent one large payload can read
// the whole arena in which it lies, until the arena is unmapped. Other arenas have other random
// keys, unless the provider chooses keys. A process that can reach the ports that libfabric opens
// can send garbage to libfabric itself.
//
// The name of a peer's endpoint is checked before it goes to libfabric, and the host in a socket
// address is replaced by the peer's host on the TCP connection.
//
// # Goroutines and locks
//
//	goroutine                              does
//	one that accepts                       starts a handshake
//	one for each handshake
//	one for each connection                reads the TCP connection
//	the progress goroutine (subsys)        reads the completion queue, and calls sinks
//	callers of Send                        give messages to the endpoint
//
// port.mu guards all of a port and its connections. No sink is called while it is held. A pool's
// lock is taken after it, and memory.mu after that. The functions that a pool calls when memory has
// come back take none of them.
//
// # Waiting
//
// The completion queue is in the context's [subsys.Poller] by its descriptor (FI_WAIT_FD), and
// before each sleep fi_trywait is asked. shm and udp;ofi_rxd have no such descriptor. Over these
// each Poll reads the queue, and a sleep ends after 50 µs. While nothing comes and nothing is under
// way, the next sleeps are twice as long each, up to 5 ms. A context without a connection sleeps
// without bound. The timer also runs while the provider cannot take a message (FI_EAGAIN).
//
// # Faults
//
//	what                                    becomes
//	libfabric or provider missing           ErrUnavailable of Listen
//	all memory is refused                   Send fails, and the context uses another transport
//	a peer's process ends                   Down with ErrPeerClosed
//	exposed memory is closed while read     the operation fails, and the connection breaks
//	an operation fails                      the TCP connection is ended; Down when the peer ends it too, or after 5 s
//	a peer violates the protocol            Down with ErrProtocol at once
//	more operations than 1024               messages wait; the completion queue has room for all
//	a peer stops                            its window fills, and Send takes no more
//	the port is closed                      what was sent is sent, for a second at most
//
// # Limits
//
// The buffers of ofi_rxm and of a port are bounded, but the provider keeps some state for each peer
// (with tcp;ofi_rxm a socket). An endpoint of shm reaches 256 others in its life. udp;ofi_rxd never
// ends what exceeds 256 operations in progress, so a port gives it no more at once. It also never
// ends a read or a message that a peer has not answered before it ended: buffer and address stay
// until the port is closed. libfabric takes about half a second when it is loaded, and ofi_rxm as
// long when the first message connects. The package sets two variables of the C environment that
// libfabric reads, FI_OFI_RXM_MSG_RX_SIZE and FI_OFI_RXM_COMP_PER_PROGRESS, unless they are set.
package ofi
