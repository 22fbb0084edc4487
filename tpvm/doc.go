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
//	for i, id := range ids {
//		err = t.SendPacked(ctx, id, 1, float64(i))
//	}
//	for _, id := range ids {
//		var y float64
//		_, err = t.RecvInto(ctx, id, 2, &y)
//	}
//
// # Programs
//
// Spawn of a program returns when its processes have enrolled. Start returns when they run, for
// programs that may know nothing of this package. Wait tells how the program of a task ended.
// Catchout gathers what programs print, and what those print that they spawn. EndWithParent
// has them end with the task that spawned them:
//
//	err := t.Catchout(os.Stdout)
//	ps, err := t.Start(ctx, "hostname", 8, tpvm.EndWithParent())
//	for _, p := range ps {
//		status, err := p.Wait(ctx)
//	}
//	err = t.Exit(ctx) // waits for the output
//
// The command tpvm does that from a shell.
//
// # Other ways to pass messages
//
// Send and Mcast send a pack.Buffer, and Recv receives a Message. Both hold any number of values, in
// the encodings of package pack. SendValues and RecvValues are for one slice. AddHandler has a
// function called for messages instead of a receive. PutInfo leaves a message in the message box of
// the virtual machine, under a name, for any task to read or take. A Persistent one stays when the
// task that put it has ended, as long as another task lives.
//
// # What is registered
//
// As in the RoCL paper (section 5.1), all that the virtual machine knows are resources. Each
// has the attribute vm, the name of the virtual machine, host and node.
//
//	type=task       a process; its identifier is the task's; launcher, the pod that started it
//	type=observer   a process that is not listed; see Observing
//	type=systhread  the pod controller of a task, which starts and ends threads and programs;
//	                launch=yes, if any task may ask it for programs, and servedby, see Hosts
//	type=threaddef  an exported function; name, and systhread, the pod controller
//	type=thread     a thread; its identifier is the thread's
//	type=tmp        a program that has been started, until it enrols; token, pid, ptid
//	type=msgctx     a message context; number
//	type=mbox       an entry of the message box; name, index, owner, flags, and a small message
//	type=group      a member of a group; group, inst, which is Unique in it, and tid, the thread
//	type=grouptask  a task that has had members of a group; group
//	type=groupsync  the coordinator of a group, in one of these tasks; group
//
// # Hosts
//
// A host is a node of the cluster. Spawn runs programs on the hosts where something starts
// them, which Host.Launcher tells:
//
//	task       the pod controller of any task there, for as long as the task is
//	pod        a pod of its own: AddHosts starts it over ssh, or an operator by "tpvm pod"
//	dirserver  the node's dirserver, where its operator has given it --tpvm
//
// A pod that AddHosts starts goes on when the task that added the host has ended, and is ended
// by DelHosts. Threads and programs are dealt to tasks and hosts in turn, each as many as any
// other, or in proportion to processors with ByCores.
//
// When a host is lost, Notify tells of each task on it, and NotifyHosts of the host.
package tpvm
