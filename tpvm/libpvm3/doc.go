// SPDX-License-Identifier: Apache-2.0

// Libpvm3 is PVM's C library over tpvm. Programs in C that were written for PVM 3.4 compile
// against its pvm3.h, link with -lpvm3, and run without change and without pvmd:
//
//	make libpvm3
//	gcc -Ibuild hello.c -o hello -Lbuild -Wl,-rpath,$PWD/build -lgpvm3 -lpvm3
//	./hello
//
// libgpvm3 is the same library. It needs cgo; where cgo is off, this package is an empty
// program.
//
// # Parts
//
// The file exports.go has the calls as C sees them. Each is a line or two around a method of
// library, which has the state of the process: the task, the active buffers, options, message
// handlers. shim.c has what Go cannot export, which is functions with variable arguments and
// those that take a function or a FILE.
//
// # Task identifiers
//
// A PVM program sees an identifier of 32 bits, which it prints, compares, and packs into
// messages. Package numbers makes it from the identifier of the task: the number of the host,
// and 18 bits of the number of the rocl context. So each task computes the same number for a
// task, even for one that has ended. Each task of libpvm3 claims its number, so that no two
// have the same at a time.
//
// # What differs from PVM
//
//   - No call starts or ends hosts: pvm_addhosts fails with PvmDupHost or PvmCantStart,
//     pvm_delhosts with PvmNotImpl. A host is a node of rocl's cluster.
//   - pvm_notify knows PvmTaskExit; the kinds of hosts and routes fail with PvmNotImpl. So do
//     pvm_getfds, pvm_tickle, pvm_reg_hoster, pvm_reg_rm, pvm_reg_tasker and pvm_reg_tracer,
//     and pvm_hostsync of another host.
//   - What spawned tasks print goes where their parent's output goes, unless pvm_catchout
//     gathers it. PVM writes it to a file in /tmp.
//   - pvm_recv from a task that has ended fails with PvmNoTask. PVM waits for ever.
//   - A persistent entry of the mailbox lasts while a task of the virtual machine runs.
//   - pvm_spawn returns when the children have enrolled. One that ends without enrolling gets a
//     number that nobody else has.
//   - With PvmDataInPlace, strides and strings are packed too. A negative long in PvmDataDefault
//     stays negative.
//   - Options of pvm_setopt other than PvmAutoErr, PvmShowTids and PvmNoReset are kept without a
//     meaning: rocl chooses routes, fragments and how to wait.
//
// # Threads
//
// As with PVM, one thread calls the library. Calls of several threads are safe, but share the
// active buffers and wait for each other. A message handler may call the library.
package main

func main() {}
