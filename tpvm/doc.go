// SPDX-License-Identifier: Apache-2.0

// Package tpvm is a parallel virtual machine: processes and goroutines of many hosts that
// start each other, exchange typed messages, and are told when another one has ended. It has
// the ideas of PVM 3.4 and of TPVM, whose unit is the thread, and needs no daemon of its own.
//
// A process joins the virtual machine with Enrol and is a task then. It exports functions by
// name; any task spawns them as threads, wherever they are exported, or spawns programs, which
// become tasks. Tasks and threads have identifiers, to which messages are sent:
//
//	t, err := tpvm.Enrol(ctx)
//	defer t.Exit(ctx)
//	t.Export(ctx, "square", square)
//	ids, err := t.Spawn(ctx, "square", 8)
//	b := t.Buffer(pack.Default)
//	pack.Pack(b, []int32{1, 2, 3}, 1)
//	err = t.Mcast(ctx, ids, 7, b)
//	m, err := t.Recv(ctx, tpvm.AnyTask, 8)
//
// # What is registered
//
// As in the RoCL paper (section 5.1), all that the virtual machine knows are resources. Each
// has the attribute vm, the name of the virtual machine, host and node.
//
//	type=task       a process; its identifier is the task's
//	type=systhread  the pod controller of a task, which starts and ends threads and programs
//	type=threaddef  an exported function; name, and the pod controller
//	type=thread     a thread; its identifier is the thread's
//	type=tmp        a program that has been started, until it enrols; token, pid, ptid
//	type=msgctx     a message context; number
//	type=group      a member of a group; group, inst, which is Unique in it, and tid, the thread
//	type=grouptask  a task that has had members of a group; group
//	type=groupsync  the coordinator of a group, in one of these tasks; group
//
// A host is a node of the cluster. Spawn of a program runs it on hosts where a task is: the
// pod controller of a task there starts it.
package tpvm
