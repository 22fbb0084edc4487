// SPDX-License-Identifier: Apache-2.0

// Package dispatch carries messages between contexts.
//
// A [Dispatcher] is the message half of a context. [Dispatcher.Mailbox] is where messages
// to a resource wait for [Mailbox.Recv]. [Dispatcher.Flow] leads to a resource, wherever it
// is, and [Flow.Send] sends to it:
//
//	to a context                what happens
//	of this process, if the     the message is put into the mailbox, in the sender's buffer
//	best route is within it
//	any other                   the message is queued in the session of a link
//
// A link is the reliable session with one other context over one lane. It outlives its
// connections: what the peer has not acknowledged is sent again over the next one. There is
// one lane, the common one, where [Rules] give two contexts no others.
//
// What needs no I/O, clock or lock is in packages of its own, each with a drawing:
//
//	internal/session    what is sent, and acknowledged or sent again; the pieces of large messages
//	internal/life       which connection a link has
//	internal/patience   for how long a waiter polls
//	internal/wire       frame types, and the messages of the handshake
//
// # From Send to Recv
//
//	sender's goroutine                   receiving process
//	------------------                   -----------------
//	Flow.Send
//	  takes credit                       progress token
//	  adds a frame to the session          Poller.Poll ─► Conn ─► link.receive
//	  seizes the pen, and pumps            Session.Accept: is it the next frame?
//	    Conn.Send ───────────────────►     link.work ─► Mailbox.deliver
//	                                         hands the message to a receiver that waits,
//	                                         or stores it
//	                                     Mailbox.Recv returns
//
// A small message takes four locks where no goroutine contends: link.mu in Send, the token
// to read it, Mailbox.mu to deliver it, and Mailbox.mu in Recv. Within a process it takes
// Mailbox.mu twice. TestLocksOfMessage counts them.
//
// # Which message a receive takes
//
// The first one in the mailbox's list that matches its selectors; and a message that comes
// goes to the first receiver that it matches. Both look at the first few of the other kind.
// Beyond those, messages and receivers are found by hash of origin, tag or both (match.go,
// receivers.go): not when they come, but when they are first passed over. So what is received
// in order costs nothing more, and a message or receiver is passed over once. RecvAny has a
// receiver in each of several mailboxes; the first mailbox with a message claims all of them.
//
// # Calls
//
// [Mailbox.Request] sends a request and [Mailbox.Reply] its reply; calls.go has the drawing. A
// request is a message that has a number with it. Replies go to a mailbox of the context that
// stores nothing: Mailbox.put finds the call by its number and wakes its goroutine. So a small
// call takes eight locks, as two messages do, and four within a process: the lock of that
// mailbox to enter the call and to hand its reply over, in place of those to store and receive
// a message. TestLocksOfCall counts them.
//
// # Waiting, and progress
//
// A goroutine that waits, for a message, for credit or for room, makes progress: it reads
// what has come for all of its context and delivers it. So a message wakes only the
// goroutine that it is for, and, if that one made progress, one that goes on with it. One
// goroutine at a time makes progress, the holder of the progress token; the others are
// parked on channels. The holder polls first. Then it naps or sleeps, for some milliseconds
// at a time. After 10 ms in which nothing has come it parks like the others, and the keeper
// makes progress, which holds no thread (docs/BENCHMARKS.md, Waiting):
//
//	step      where                      costs meanwhile   is woken by
//	poll      a loop                     a processor       everything
//	nap       futex, up to 2 ms          a thread          rings, its own process
//	sleep     epoll_wait, up to 10 ms    a thread          everything
//	keeper    the runtime's poller       nothing           everything
//
// [Polling] says whether a waiter polls, and for how long. By default that adapts to
// whether polling has paid (twice as long each time that it has, up to the budget; a
// quarter when it has not), and to whether other goroutines want the processor, which a
// Gosched that takes long tells: then the next 8, 16, … 1024 waits do not poll. Where
// polling for 2 µs has been in vain thousands of times, as many waits do not poll. Where
// waiters sleep, and not for long, some waits explore whether polling for the whole budget
// would pay: two processes that sleep wake each other on one processor, and only polling
// makes the kernel part them.
// On one processor no goroutine polls, naps or sleeps: a thread that the kernel
// holds would hold the processor with it. No more goroutines of a process poll than leave a
// processor to others. PollAlways polls in any case.
//
// A nap is for memory that is shared with other processes, whose rings are looked at, not
// read. [subsys.Poller.Naps] chooses it where the last sleeps were short and ended by a
// ring, and where no socket has lately had anything. A socket that has something waits
// until the nap ends: after 50 µs, or, where there are only rings, when the keeper ends it,
// within 2 ms.
//
// A goroutine that makes progress lets other goroutines go first in two cases: before it
// polls, if a message that this context received is not released yet, since another
// goroutine may be about to answer it; and where a poll has woken parked goroutines
// (letWoken). While it does, these leave the requests of calls to it, and it writes them all in
// one batch. If a woken goroutine has not run after some polls that find nothing, another
// thread of the process has taken it and waits for a processor: then the goroutine that polls
// parks (giveWay), so that its own thread takes the other one back.
//
// # Which goroutine runs what
//
//	goroutine         started by                 ends                      does
//	waiter            the program                with its call             makes progress while it waits
//	keeper            the first connection       Close                     makes progress while no waiter does;
//	                                                                       acknowledges each millisecond
//	flusher           New                        Close                     writes what paced links have queued
//	watchLinks        New                        Close                     looks for silent machines
//	searcher          life.StartDial             with a connection, the    dials
//	                                             link or the context
//	                  life.StartMove             after one pass, or when   tries better routes
//	                                             its connection breaks
//	leave             the end of a link          by itself                 gives mailboxes their credit back,
//	                                                                       and calls Config.Ended
//	sayGoneLater      the end of a resource  with the last such end    tells the peer, behind what was sent
//	tellNeighbour     the same, within the   by itself                 the same, of a context of the process
//	                  process
//	serve             a message to a handler     with the last message     calls the handler of [Dispatcher.Serve]
//	reports           an undelivered message     when no report waits      calls Config.Undelivered
//	closer            a link that drops a        by itself                 closes it: memory that lies in the
//	                  connection                                           peer's pages takes long to give back
//	Posted.hand       a message for posted       by itself                 grants credit to its sender
//	                  memory
//	feedAll,          credit or memory that      by itself                 grants credit to senders that wait
//	nextNeedySoon     has come back
//	accept            a port                     the port's Close          gives each new connection an endpoint
//	doubt.ask         a receive that waits       by itself                 asks to be told of the ends of
//	                  for some resources                                   these resources
//	timers            –                          –                         link.timeout, Mailbox.judgeHolder,
//	                                                                       Mailbox.lookAtDoubts, doubt.ask,
//	                                                                       Mailbox.judgeStuck, Flow.dropWish,
//	                                                                       Mailbox.sweep, calls.sweep, the end of
//	                                                                       a stranger's time
//	of SendAll        a target without room  with the call of SendAll  waits for credit, as a waiter
//	AfterFunc         the end of a           by itself                 stops the monitor
//	                  monitor's context
//
// Close waits for all of them but waiters, closers, feedAll and nextNeedySoon, which touch
// only memory, and for reports as its documentation says.
//
// Transports call a link (Frames, Room and Writable of its sink) only from the goroutine
// that has the progress token. So the inbound part of a link, which works on what arrives,
// needs no lock. A goroutine without the token that has to touch it calls take.
//
// # Which goroutine writes to a connection
//
// The one that has the link's pen (pen.go has the drawing). A sender adds its frames to the
// session with link.mu held. If the pen is idle it takes it, and writes until nothing is
// left. If another goroutine has the pen, that one writes these frames too. If the
// connection is full no goroutine has the pen: the holder of the token takes it when the
// connection is writable again. A link over which a sender sends one message right after
// another, or batches of calls go, is paced: its frames are written when there
// are 32 KiB of them, or 24 requests or replies, by the next goroutine that waits, by the one that
// polls if there are requests or replies, or by the flusher (stream.go). Without a connection
// frames stay in the session until a handshake has succeeded.
//
// The frames of a handshake are written under endpoint.mu, before the connection belongs to
// the link; but for the last, Ready, for which the goroutine that has accepted the
// connection takes the pen.
//
// # Which connection a link has
//
// That is decided by the state machine in package life. A link learns that its peer has ended
// in one of three ways: the peer says goodbye; a [Resolver] returns ErrGone; or the peer is not
// reached within Config.GiveUp since the searcher began to dial. With ErrNodeDead the link first
// dials the addresses that it knows, or, if it knows none, waits for the peer to dial. A process
// that is killed says no goodbye: its connection breaks, and the link dials, in the state moving
// as soon as the searcher there has ended. A detached link learns nothing until it is used;
// Flow.OnEnd uses it.
//
// In each state the end leads to dying: flows fail, the functions of OnEnd are called, what was
// not acknowledged is reported as undelivered, mailboxes take back the credit that the peer has
// not used, and Config.Ended is called. A peer that reconnects before that finds the session as
// it was.
//
// # Locks
//
// A goroutine waits only for locks that stand below all those it holds in this table. A
// build with the tag rocldebug checks that (package internal/lock); TryLock does not wait,
// and is not checked.
//
//	level  lock                guards
//	10     progress.token      the poller; the inbound part of each link, with what its session receives;
//	                           the steps of handshakes
//	20     spread.mu           over which lanes the messages of a flow went
//	25     endpoint.mu         the order of the frames of one handshake, its timer, its place among strangers
//	40     Mailbox.mu          the messages of a mailbox, its receivers, and the credit of each sender; that
//	                           of the mailbox for replies: the calls in flight
//	50     link.mu             the rest of a link: life, the sending part of its session, flows, watching,
//	                           counters, and what becomes of the pen
//	60     Dispatcher.mu       the tables of links, mailboxes, ports and passages
//	70     watched.mu          the list of links that expect something
//	80     progress.parkedMu   the list of waiters that would make progress
//
// Transports and the poller have locks of the levels 120 to 140. Locks that are held for a
// few instructions, in which none of these is taken, have no level: left.mu, those of packages
// buffers and callqueue, of ratelog and of Strangers.
//
// link.mu is not held while Start, Send, Close or Unanswered of a connection is called. No
// lock and no token is held while a function of the program is called that may wait:
// Config.Undelivered, Config.Ended, Config.Resolve, the handler of Serve. Config.Logger,
// Config.Trust and Trust.Over are called with locks held: they may not wait, and call
// nothing of this package. (Package context queues the lines of a program's log.)
package dispatch
