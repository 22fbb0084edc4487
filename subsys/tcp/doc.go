// SPDX-License-Identifier: Apache-2.0

// Package tcp carries frames over TCP.
//
// Frames go on the stream as package subsys draws them, one after another. Batches are written as
// they are. Of other frames, payloads up to 2 KiB are copied after their headers into one buffer,
// and the copy is counted. Larger payloads are written from where they lie with writev.
//
// On the receiving side, one large read fills a registered block, and small messages are slices of
// it. A payload that does not fit is read into a buffer of its own.
//
// This package has only the writer. Package stream has the port, the life of a connection, the
// reader, and which goroutine may call what. The writer belongs to the goroutine that calls Send,
// or to the progress goroutine while the socket is full, and needs no lock. Package dispatch
// resends what a broken connection has lost.
package tcp
