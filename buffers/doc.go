// SPDX-License-Identifier: Apache-2.0

// Package buffers keeps the memory of messages: registered, pooled and counted.
//
// A [Pool] maps page-backed arenas outside the Go heap, where the collector
// does not look and from where a transport may hand memory to a device or to
// another process. Every arena is announced to each [Registrar] once. Get
// takes a [Buffer] of the smallest sufficient size class from a free list;
// the last Release puts it back. Neither allocates nor enters the kernel once
// the pool has seen the load.
//
// A Buffer has one owner at a time; Send passes ownership to the library.
// Who wants to keep one as well calls Retain before, and may ask later,
// through State and Done, whether the library is through with it (bfstat in
// the paper).
//
//	Owned ──Send──► Sending ──acknowledged──► Delivered ──last Release──► Free
//
// Built with the tag rocldebug, a pool poisons what is released, notices who
// writes to it afterwards, and names the places of a double release and of
// leaks.
package buffers
