// SPDX-License-Identifier: Apache-2.0

// Package tls carries frames over TLS 1.3 with both ends verified, using only crypto/tls. Its
// addresses are tls://host:port.
//
// # Which peers may connect
//
// [Credentials] identify a context and say which peers it trusts. [FromSecrets] needs only the
// secret that a cluster shares: each end derives the same authority from it and mints a certificate
// of its own at start. [FromFiles] takes the operator's certificates. In both cases both ends are
// checked by the same rule. The certificate chains to an authority that is accepted now, it is
// valid for a client and for a server, and the handshake names the protocol of this package. There
// is no older version, no resumption and no choice of ciphers, so a connection cannot be
// downgraded.
//
// Certificates are not compared with addresses or identifiers of contexts: contexts come, go and
// move, and all holders of the secret have the same rights. The handshake of package dispatch tells
// which context a peer is.
//
// # Peers without access
//
// A client that does not name the cluster, which takes the secret, or the protocol is disconnected
// without an answer, before a certificate is shown. With files there is no secret, so a client that
// names the protocol is shown the certificate. A handshake may take 2 s in all. At most 256
// handshakes are in progress; beyond that the oldest is cut, since a genuine one completes in
// milliseconds. Every refusal is logged here with its reason.
//
// # Goroutines and locks
//
// Package stream says which goroutine calls what. A handshake runs on the goroutine that dials, or
// on a goroutine of its own for an accepted connection. Credentials may be used by any number of
// goroutines at once. Secrets.Set replaces one pointer. Files holds its lock while it checks the
// files, at each handshake, and while it reads those that have changed. After the handshake, the
// parts of a connection that write and that read share only crypto/tls, which locks, and the buffer
// of sealed bytes, which has a lock of its own.
//
// If the peer ends, with or without a close_notify, the connection calls Down with
// [subsys.ErrPeerClosed] behind all whole records. Cutting the stream early gains an attacker
// nothing: package dispatch numbers and acknowledges frames, and resumes over a new connection. A
// record that does not open ends the connection with the error of crypto/tls.
//
// # The stream
//
// After the handshake the socket moves to the context's [subsys.Poller], as in package tcp, and
// crypto/tls works on memory. The goroutine that waits for a message reads the socket and gives
// crypto/tls one whole record at a time, so that crypto/tls never waits. Sent data is sealed into a
// buffer and written from there.
//
// Sealing and opening are copies, and are counted as such. Sending allocates nothing. crypto/tls
// allocates 24 bytes for each record that it reads.
//
// crypto/tls does not change its keys by itself, and AES-GCM is safe for 2^24.5 records under one
// key. After 2^24 records (256 GiB) Send fails, and the link resumes over another connection.
package tls
