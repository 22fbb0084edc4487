// SPDX-License-Identifier: Apache-2.0

// Package tcp carries frames over TCP.
//
// Frames go on the stream as package subsys draws them, one after another. Runs are written as they
// are. Of other frames, payloads up to 2 KiB are copied after their headers into one buffer, and
// the copy is counted. Larger payloads are written from where they lie with writev.
//
// On the receiving side, one large read fills a registered block, and small messages are slices of
// it. A payload that does not fit is read into a buffer of its own (package stream).
package tcp
