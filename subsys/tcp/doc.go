// SPDX-License-Identifier: Apache-2.0

// Package tcp carries frames over TCP.
//
// Frames go on the stream as package subsys draws them, one after another.
// Runs are written as they are; of frames by themselves, payloads up to 2 KiB
// are gathered behind their headers in one buffer (one copy, counted), longer
// ones are written from where they lie with writev.
// On the way in, one large read fills a registered block and small messages
// are slices of it; a payload that does not fit is read straight into a buffer
// of its own (package stream).
package tcp
