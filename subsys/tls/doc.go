// SPDX-License-Identifier: Apache-2.0

// Package tls carries frames over TLS 1.3 with both ends verified, by crypto/tls
// alone. Its addresses are tls://host:port.
//
// # Who may connect
//
// [Credentials] say who a context is and whom it trusts. [FromSecrets] needs
// nothing but the secret that a cluster shares: each end derives the same
// authority from it and mints a certificate of its own at start. [FromFiles] takes
// the operator's certificates. Either way both ends are held to the same rule: the
// certificate chains to an authority that is accepted now, is good for a client
// and for a server, and the protocol named in the handshake is ours. There is no
// older version, no resumption and no choice of ciphers to be talked into.
//
// Certificates are not compared with addresses, nor with identifiers of contexts:
// contexts come and go and move, and every holder of the secret is as good as
// another. Which context speaks is settled above, by the handshake of package
// dispatch.
//
// # Strangers
//
// A client that does not name the cluster, which takes the secret, or does not
// name the protocol, is cut without a word and before a certificate is shown.
// (From files there is no secret, so the protocol's name is enough to be shown the
// certificate.) A handshake has 2 s in all; at most 256 are under way, beyond that
// the oldest is cut: of those who come, the ones that mean it are done in
// milliseconds. Every refusal is logged here with its reason.
//
// # The stream
//
// After the handshake the socket moves to the context's [subsys.Poller], like one
// of package tcp, and crypto/tls works on memory: the goroutine that waits for a
// message reads the socket, and hands crypto/tls one whole record at a time, so
// that it never has to wait. What is sent is sealed into a buffer and written from
// there.
//
// Sealing and opening are copies, and are counted as such. Sending allocates
// nothing; crypto/tls allocates 24 bytes for each record that it reads.
//
// crypto/tls does not change its keys by itself, and AES-GCM is good for 2^24.5
// records under one. After 2^24 (256 GiB) Send fails, and the link resumes over
// another conn.
package tls
