// SPDX-License-Identifier: Apache-2.0

// Libpvm3 is PVM's C library, built on tpvm. Programs in C that were written for PVM 3.4 compile
// against its pvm3.h, link with -lpvm3, and run without change and without pvmd:
//
//	make libpvm3
//	gcc -Ibuild hello.c -o hello -Lbuild -Wl,-rpath,$PWD/build -lgpvm3 -lpvm3
//	./hello
//
// libgpvm3 is the same library. The library needs cgo; without cgo, this package is an empty
// program.
//
// # Parts
//
// The file exports.go has the calls as C sees them. Each is a line or two around a method of
// library, which has the state of the process: the task, the active buffers, options, message
// handlers. shim.c has the functions that Go cannot export: those with variable arguments, and
// those that take a function or a FILE.
//
// # Task identifiers
//
// A PVM program sees an identifier of 32 bits, which it prints, compares, and packs into messages.
// Package numbers makes it from the identifier of the task: the number of the host, and 18 bits of
// the number of the rocl context. So each task computes the same number for a task, even for an
// ended one. Each task of libpvm3 claims its number, so that no two have the same at a time.
//
// # What differs from PVM
//
// Hosts:
//
//   - A host is a node of rocl's cluster, and pvm_config lists all of them. pvm_addhosts starts a
//     pod on a host, by ssh (see tpvm.Thread.AddHosts, TPVM_SSH and TPVM_POD), and takes names
//     without options. The code of a host is PvmDupHost if programs can be started on it already,
//     and PvmCantStart if the remote shell or the pod fails.
//   - pvm_delhosts ends the pod that pvm_addhosts or tpvm pod has started, and the programs that
//     the pod has started. The code of a host without such a pod is PvmBadParam, also that of the
//     caller's host. A node that has a dirserver or a task stays a host.
//   - pvm_notify of hosts reports nodes that join and are lost. Each message of PvmHostAdd reports
//     one host. A pod that is started on a node of the cluster is no event.
//   - pvm_mstat never returns PvmHostFail: a node that is out of reach is not a host. Other calls
//     return it if they find no task, group or entry, and a node that may have it does not answer.
//
// Tasks:
//
//   - pvm_spawn waits until the programs have enrolled, because only tasks have message queues.
//     PVM does not wait. A program that ends without enrolling, such as /bin/true, gets a number
//     too. pvm_pstat and pvm_notify take the number, and report that the program has ended.
//   - For a program that runs without enrolling, such as /bin/sleep, pvm_spawn waits ten seconds,
//     or the duration in the environment variable TPVM_ENROL_TIME, such as 500ms. The number of
//     such a program is valid in pvm_kill, pvm_sendsig, pvm_pstat, pvm_tasks and pvm_notify. If
//     the program enrols later, it gets another number, and pvm_notify reports the end of the
//     first.
//   - pvm_spawn starts threads of a function that a program in Go exports under the name.
//   - The output of spawned tasks goes to the same place as their parent's, unless pvm_catchout
//     gathers it. PVM writes it to a file in /tmp.
//   - pvm_tasks has the name of a program without its folder.
//
// Messages:
//
//   - pvm_recv from a task that has ended fails with PvmNoTask. PVM waits for ever.
//   - pvm_recv with a tid that no task can have, or with a tag less than -1, fails with PvmBadParam,
//     as the manual says. PVM waits for ever.
//   - With PvmDataInPlace, strides and strings are packed too. A negative long in PvmDataDefault
//     stays negative.
//   - Buffers stay after pvm_exit.
//   - A persistent entry of the message box lasts while a task of the virtual machine runs.
//
// Groups:
//
//   - pvm_barrier with a count less than 1, and pvm_freezegroup of a frozen group, fail with the
//     codes of the manual, PvmBadParam and PvmDupGroup.
//   - pvm_bcast to a group of which this task is the only member is no error.
//
// Options of pvm_setopt other than PvmAutoErr, PvmShowTids and PvmNoReset are kept, but have no
// effect: rocl chooses routes, fragments and how to wait.
//
// These calls fail with PvmNotImpl:
//
//   - pvm_notify of PvmRouteAdd and PvmRouteDelete: rocl changes routes, and sends no messages about it.
//   - pvm_hostsync of another host: the host need not have a task that could read its clock.
//   - pvm_getfds: messages come through shared memory, and there is no descriptor to wait for.
//   - pvm_tickle: it changes the pvmd, and there is no pvmd.
//   - pvm_reg_rm, pvm_reg_tasker, pvm_reg_hoster: they take over work of the pvmd.
//   - pvm_reg_tracer: there is no tracing. pvm_settmask and pvm_gettmask are missing.
//
// # Threads
//
// As with PVM, one thread should call the library. Calls of several threads are safe, but share
// the active buffers and wait for each other. A message handler may call the library. It runs in
// another thread than the pvm_recv or pvm_trecv that receives its message.
//
// # Signals
//
// A signal handler may leave pvm_recv and pvm_trecv by siglongjmp, for example for a time-out. The
// thread must have called the library before. A message that comes meanwhile is for the next
// receive. A jump in the last instructions of a receive, after it has its result, comes too late:
// the message is the active receive buffer, as pvm_getrbuf tells.
//
// A jump out of another function, such as pvm_precv, pvm_barrier or pvm_send, or out of a message
// handler, unwinds Go code, and the program crashes later. A signal handler must not call the
// library.
package main

func main() {}
