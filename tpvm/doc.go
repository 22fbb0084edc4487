// SPDX-License-Identifier: Apache-2.0

// Package tpvm is a parallel virtual machine: processes and goroutines on many hosts that start
// each other, exchange typed messages, and are told when another one has ended. It has the ideas of
// PVM 3.4 and of TPVM, whose unit is the thread, and needs no daemon of its own.
//
// A process joins the virtual machine with Enrol and is a task from then on. It exports functions
// by name. Any task can spawn such a function as threads, in the tasks that export it, or spawn
// programs, which become tasks. Tasks and threads have identifiers, to which messages are sent:
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
// programs that may know nothing of this package. Wait returns how the program of a task ended.
// Catchout gathers the output of programs, and of the programs that these spawn. EndWithParent
// makes programs end with the task that spawned them:
//
//	err := t.Catchout(os.Stdout)
//	ps, err := t.Start(ctx, "hostname", 8, tpvm.EndWithParent())
//	for _, p := range ps {
//		status, err := p.Wait(ctx)
//	}
//	err = t.Exit(ctx) // waits for the output
//
// The command tpvm does the same from a shell.
//
// # Other ways to pass messages
//
// Send and Mcast send a pack.Buffer, and Recv receives a Message. Both hold any number of values,
// in the encodings of package pack. SendValues and RecvValues are for one slice. AddHandler makes a
// function handle messages, in place of a receive. PutInfo leaves a message in the message box of
// the virtual machine, under a name, for any task to read or take. A Persistent entry stays when
// the task that put it has ended, as long as another task lives.
//
// # What is registered
//
// As in the RoCL paper (section 5.1), all that the virtual machine knows are resources. Each
// resource has the attribute vm, the name of the virtual machine. All but message contexts have the
// attributes host and node.
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
// A host is a node of the cluster. Spawn runs programs on the hosts on which a launcher starts
// them. Host.Launcher names the kind of launcher:
//
//	task       the pod controller of any task on the host, as long as the task runs
//	pod        a pod of its own: AddHosts starts it over ssh, or an operator by "tpvm pod"
//	dirserver  the node's dirserver, if its operator has given it --tpvm
//
// A pod that AddHosts starts goes on when the task that added the host has ended. DelHosts ends it.
// Threads and programs are dealt to tasks and hosts in turn, to each the same number, or in
// proportion to processors with ByCores.
//
// When a host is lost, Notify reports each task on it, and NotifyHosts reports the host.
package tpvm
