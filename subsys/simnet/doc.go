// SPDX-License-Identifier: Apache-2.0

// Package simnet is a network in memory for tests, with the faults of a real one. It works inside
// testing/synctest, where its delays take virtual time.
//
// A [Network] has hosts, a [Host] runs processes, and a [Process] owns sockets. The faults are:
//
//	fault                            method
//	delay of everything              Network.SetDelay
//	loss of datagrams                Network.SetLoss
//	a path that carries nothing      Network.Cut, for one direction; Network.Heal
//	a connection that breaks         Network.Break, behind a chosen byte
//	a machine that stands still      Host.Stop, Host.Continue
//	a machine that loses power       Host.Crash; Host.Start starts processes on it again
//	a process that reads nothing     Process.Stop, Process.Continue
//	a process that is killed         Process.Kill
//
// Delay and loss are drawn from the seed of the network. A connection loses nothing while its path
// is cut or one of its machines stands still: its bytes wait, as those that TCP retransmits. To the
// others, a machine that stands still looks like a machine out of reach. Its goroutines run on,
// because they share the test's process.
//
// [Process.Transport] is a [subsys.Transport] over the network. [Process.Listen],
// [Process.DialContext] and [Process.ListenPacket] are for programs over package net.
//
// # Goroutines and locks
//
// Network.mu guards everything of a network. No other lock is taken while it is held, and no
// function of a user is called. Bytes and datagrams with a delay arrive in goroutines of timers.
// Each started [subsys.Conn] has a goroutine, which takes Config.Progress to call its sink. It
// needs no [subsys.Poller]. Each port of the transport has a goroutine that accepts connections.
package simnet
