// SPDX-License-Identifier: Apache-2.0

// Package buffers provides the memory of messages: registered, pooled and counted.
//
// A [Pool] maps page-backed arenas outside the Go heap. The garbage collector does not scan them,
// and a transport may give them to a device or to another process. The pool announces each arena to
// each [Registrar] once. Get takes a [Buffer] of the smallest sufficient size class from a free
// list. The last Release puts the buffer back. Neither allocates memory nor enters the kernel once
// the pool has seen the load.
//
// A Buffer has one owner at a time. Send passes ownership to the library. A sender that keeps the
// buffer as well calls Retain first. It may ask later, through State, Done and Wait, whether the
// library still uses the buffer (bfstat in the paper).
//
//	Owned ──Send──► Sending ──acknowledged──► Delivered ──last Release──► Free
//
// Built with the tag rocldebug, a pool fills released memory with a pattern and panics if the
// memory was written after its release. It panics at a double release with the stacks of both, and
// lists the stacks of leaked buffers.
package buffers
