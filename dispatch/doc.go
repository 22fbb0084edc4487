// SPDX-License-Identifier: Apache-2.0

// Package dispatch carries messages between contexts.
//
// It has the communication of the RoCL paper (Alves, Pina, Exposto, Rufino; see the README). A
// [Dispatcher] is the message half of a context. Messages to a resource wait in its
// [Dispatcher.Mailbox] for [Mailbox.Recv]. [Dispatcher.Flow] leads to a resource in any context,
// and [Flow.Send] sends to it:
//
//	to a context                what happens
//	of this process, if the     the message is added to a queue of the mailbox (local.go), in the
//	best route is within it     sender's buffer
//	any other                   the message is queued in the session of a link
//
// A link is the reliable session with one other context over one lane. It outlives its connections:
// frames that the peer has not acknowledged are retransmitted over the next connection. Two
// contexts have one lane, the common one, unless rules send to some resources over others ([Lane]).
//
// The parts that need no I/O, clock or lock are in packages of their own, each with a drawing:
//
//	internal/session    frames sent, acknowledged and retransmitted; pieces of large messages
//	internal/life       which connection a link has
//	internal/credit     what contexts may send to a mailbox
//	internal/spin       how long a waiter polls
//	internal/wire       frame types, and the messages of the handshake
//
// Package internal/progress has the goroutines that wait, and stands above internal/spin.
//
// # From Send to Recv
//
//	sender's goroutine                   receiving process
//	------------------                   -----------------
//	Flow.Send
//	  takes credit                       progress token
//	  adds a frame to the session          Poller.Poll ─► Conn ─► link.receive
//	  takes the pen, and pumps             Session.Accept: is it the next frame?
//	    Conn.Send ───────────────────►     link.work ─► Mailbox.deliver
//	                                         hands the message to a receiver that waits,
//	                                         or stores it
//	                                     Mailbox.Recv returns
//
// A small message takes four locks if no goroutine contends: link.mu in Send, the token to read it,
// Mailbox.mu to deliver it, and Mailbox.mu in Recv. Within a process it takes localQueue.mu and
// Mailbox.mu, or Mailbox.mu twice if a receiver waits for it. TestLocksOfMessage counts them.
//
// Small messages that came together are stored as a run, which is one element of the mailbox's list
// (run.go). Each becomes a Message when it is received. Receives without selectors take the others
// of the run without the lock (open.go).
//
// # Which message a receive takes
//
// A receive takes the first message in the mailbox's list that matches its selectors. A message
// that arrives goes to the first receiver that selects it. The receive checks the first few
// messages, and the message the first few receivers. Beyond those, messages and receivers are found
// by hash of origin, tag or both (match.go, receivers.go). They are entered into the hash table not
// when they arrive, but when they are first passed over. So receiving in order costs nothing more,
// and a message or receiver is passed over once. An exception is a receiver whose selectors have no
// single key: messages check such receivers one by one. RecvAny has a receiver in each of several
// mailboxes; the first mailbox with a message claims all of them.
//
// # Calls
//
// [Mailbox.Request] sends a request and [Mailbox.Reply] its reply; calls.go has the drawing. A
// request is a message that is sent with a number. Replies go to a mailbox of the context that
// stores nothing: Mailbox.put finds the call by its number and wakes its goroutine. So a small call
// takes eight locks, as two messages do, and four within a process. In place of the locks to store
// and receive a message, it takes the lock of that mailbox to enter the call and to hand its reply
// over. TestLocksOfCall counts them.
//
// # Waiting, and progress
//
// A goroutine that waits for a message, for credit or for room makes progress: it reads what has
// arrived for all of its context and delivers it. Package internal/progress has how it waits, and
// which waiting goroutine has the progress token. A waiter of this package embeds a
// progress.Waiter, and has what the goroutine waits for. The type written says what the token
// holder does besides polling: it writes what links have queued, and acknowledges.
//
// # Which goroutine runs what
//
//	goroutine         started by                 ends                      does
//	waiter            the program                with its call             makes progress while it waits
//	keeper            the first connection       Close                     makes progress while no waiter does;
//	                                                                       acknowledges every millisecond
//	flusher           New                        Close                     writes what paced links have queued
//	watchLinks        New                        Close                     looks for silent machines
//	searcher          life.StartDial             with a connection, the    dials
//	                                             link or the context
//	                  life.StartMove             after one pass, or when   tries better routes
//	                                             its connection breaks
//	closeAccounts     the end of a link          by itself                 gives credit back to mailboxes,
//	                                                                       and calls Config.Ended
//	queueGoneLater    the end of a resource      with the last such end    tells the peer, behind what was sent
//	notifyLocal       the end of a resource      by itself                 tells a context of the process, behind
//	                                                                       what was sent
//	serve             a message to a handler     with the last message     calls the handler of [Dispatcher.Serve]
//	reports           an undelivered message     when no report waits      calls Config.Undelivered
//	closer            a link that drops a        by itself                 closes it: memory that lies in the
//	                  connection                                           peer's pages takes long to free
//	consumeEarlyLocked      a reply                    by itself                 grants credit to its sender
//	grantAll,         credit or memory that      by itself                 grants credit to senders that wait
//	grantQueuedSoon   has come back
//	accept            a port                     the port's Close          gives each new connection an endpoint
//	originWatch       a receive that waits       by itself                 registers for the ends of
//	                  for some resources                                   these resources
//	timers            –                          –                         link.timeout, ackSoon, Mailbox.checkOversize,
//	                                                                       Mailbox.checkOrigins, originWatch,
//	                                                                       Mailbox.checkStuck, Flow.dropTryCredit,
//	                                                                       calls.sweep, the end of the time of a
//	                                                                       handshake
//	of SendAll        a target without room      with the call of SendAll  waits for credit, as a waiter
//	AfterFunc         the end of a           by itself                 stops the monitor
//	                  monitor's context
//
// Close waits for the goroutines from keeper to originWatch, with these exceptions. It does not
// wait for closers, grantAll and grantQueuedSoon, which touch only memory. It waits for reports as
// its documentation says. It does not wait for goroutines that inBackground starts when everything
// else has been freed. Nor does it wait for waiters, or for the goroutines of timers, SendAll and
// AfterFunc: they find their mailbox or link ended.
//
// Transports call a link (Frames, Room and Writable of its sink) only from the goroutine that has
// the progress token. So the inbound part of a link, which works on arrived frames, needs no lock.
// A goroutine without the token that has to touch it calls progress.Lock.
//
// # Credit
//
// Package internal/credit has the accounts of a mailbox, and says who gets credit next. An inflow
// has the account of one sending context, and a Flow has the sender's side of it. A sender that
// lacks credit sends a Need frame with the limit that it needs, and waits. The mailbox answers with
// a Credit frame that has the new limit: at once, or when enough has been received
// (Mailbox.consumeLocked, Mailbox.grantQueuedLocked). A Need frame also withdraws what was asked
// for, or gives credit back.
//
// # Large messages
//
// A message above 256 KiB travels over a stream in pieces of 1 MiB, if the peer has the feature:
//
//	sender: internal/session, pieces.go           receiver: pieces.go, landing.go
//	-----------------------------------           -------------------------------
//	Session.Queue puts it into the flow's line
//	link.feedLinesLocked numbers Begin, then pieces     onBegin checks the length against the credit
//	  while less than 1 MiB is unsent, one piece  payloadBuffer: the first piece gets memory
//	  of each line in turn ──────────────────►      for the whole message
//	                                              onPiece: the last piece delivers the message
//
// Small messages to other resources get their numbers at once, so they pass between the pieces.
// Later messages to the same resource wait in the line behind the large one. A broken connection
// costs the pieces that were under way. The memory comes from the program if it has given some for
// the reply (landing), and from the pool otherwise. Pieces are read into their place there.
//
// # Which goroutine writes to a connection
//
// The writer is the goroutine that has the link's pen (pen.go lists its states). A sender adds its
// frames to the session with link.mu held. If the pen is idle, the sender takes it, and writes
// until no frame is left. If another goroutine has the pen, that goroutine writes these frames too.
// If the connection is full, no goroutine has the pen: the token holder takes it when the
// connection is writable again.
//
// A sender over shared memory does not need the pen for a small message on an idle link. It keeps
// link.mu, and SendBriefly copies the frame into the ring (sendBrieflyLocked).
//
// A link is paced if a sender sends one message right after another, or if batches of calls go over
// it. The frames of a paced link are written when there are 32 KiB of them, or 24 requests or
// replies. Otherwise the next goroutine that waits writes them, or the goroutine that polls, if
// there are requests or replies, or the flusher (pace.go). Without a connection, frames stay in
// the session until a handshake has succeeded.
//
// The frames of a handshake are written under endpoint.mu, before the connection belongs to the
// link. The last one, Ready, is an exception: the goroutine that has accepted the connection takes
// the pen for it.
//
// # Which connection a link has
//
// The state machine in package life decides that, and has the drawing. A link whose connection
// breaks dials again, and the session resumes over the next connection. In the state moving it
// dials as soon as the searcher there has ended.
//
// # When a peer ends
//
// A link learns that its peer has ended in one of three ways: the peer says goodbye, a [Resolver]
// returns ErrGone, or the peer is not reached within Config.GiveUp since the searcher began to
// dial. A process that is killed says no goodbye: its connection breaks, the link dials, and the
// Resolver answers. With ErrNodeDead the link first dials the addresses that it knows. If it knows
// none, it waits for the peer to dial. A machine that is switched off breaks no connection:
// watchLinks notices that it does not answer (silence.go). A detached link learns nothing until it
// is used; Flow.OnEnd uses it.
//
// In each state of the link the end leads to the state dying. Flows fail, the functions of OnEnd
// are called, and frames that were not acknowledged are reported as undelivered. Mailboxes take
// back the credit that the peer has not used, and Config.Ended is called. Messages of the peer that
// are stored stay, and can be received. A message that a process has acknowledged and not received
// is lost if that process dies, and is not reported. A peer that reconnects before the end finds
// the session as it was. A peer that reconnects later has its link end too, and passes on to the
// successor what this context has not received (successor.go).
//
// # Locks
//
// A goroutine waits only for locks that stand below all those it holds in this table. A build with
// the tag rocldebug checks that (package internal/lock). TryLock does not wait, and is not checked.
//
//	level  lock                guards
//	10     Engine.token        the poller; the inbound part of each link, with what its session receives;
//	                           the steps of handshakes
//	25     endpoint.mu         the order of the frames of one handshake, its timer, its entry in Handshakes
//	40     Mailbox.mu          the messages of a mailbox, its receivers, and the credit of each sender; that
//	                           of the mailbox for replies: the calls in flight
//	45     localQueue.mu       the messages that senders of this process add, and their credit
//	50     link.mu             the rest of a link: life, the sending part of its session, flows, watching,
//	                           counters, and what becomes of the pen
//	60     Dispatcher.mu       the tables of links, mailboxes, ports and passages
//	70     watched.mu          the list of links that expect something
//	80     parking.mu          the list of waiters that would make progress
//
// Transports and the poller have locks of the levels 120 to 140. Some locks are held for a few
// instructions only, in which none of these is taken. They have no level: deferredLinks.mu,
// landing.mu, and the locks of packages buffers, callqueue and ratelog, and of Handshakes.
//
// link.mu is not held while Start, Send, Close or Unanswered of a connection is called. It is held
// while SendBriefly is.
//
// # Functions that this package calls
//
// All exported functions and methods may be called by any goroutine, and at the same time, unless
// their documentation says otherwise. In the other direction:
//
//	function                            called by                      locks held   may wait
//	Config.Resolve                      a searcher                     none         until ctx ends
//	Config.Undelivered                  reports, one call at a time    none         yes; Close waits for it
//	Config.Ended                        closeAccounts, or the caller   none         yes
//	                                    of Close
//	handler of Serve                    serve, one call at a time      none         yes
//	function of OnEnd                   any goroutine                  the token    no
//	Config.Trust, Trust.CheckTransport  any goroutine                  several      no
//	Config.Logger                       any goroutine                  several      no
//
// A function that may not wait may also call nothing of this package, except that a function of
// OnEnd may call what only takes Mailbox.mu. (Package context queues the lines of a program's log.)
//
// # To add a frame type
//
//   - Package wire gets the constant, at the end of the numbered types. After a release, the
//     frame needs a bit of Attach.Features, and link.bindLocked notes whether the peer has it: a
//     peer cuts a connection that carries a frame type that it does not know.
//   - Session.Accept checks that a frame type is in range: the new last type goes there.
//   - link.payloadBuffer refuses payloads of types other than Data and Piece that are read apart
//     from their frames, and Session.drop knows which entries end the send of a buffer. A frame
//     with a large payload goes into both.
//   - link.control works on frames that arrive. It begins with the check that the frame behind a
//     Call is the request; a type that may come between goes there. Their payload and numbers come
//     from the peer: what makes no sense is ErrProtocol.
//   - A goroutine sends the frame with link.put and link.post, with link.mu held. Work on what
//     arrived sends it with link.answer, so that mostAnswers bounds what a peer can cause.
//   - The comment "Protocol:" in package wire describes it for docs/PROTOCOL.md (go run
//     ./tests/pages), and vectors_test.go there has its bytes. FuzzFrames gets frames of the type to
//     begin with.
//
// # To add a condition to selectors
//
//   - Select gets a field, or moreConditions if the condition is rare.
//   - Select.matches and equals check it. andPlain and restrict join it with other conditions, and
//     merge calls them. expects says which contexts may send such a message.
//   - Select.key and keys return no key for a Select with the condition. A message that is found in
//     a chain by its key is not compared with the Select again, nor is a receiver in a queue.
//   - condition in select_test.go models it. drawSelect and drawFrom draw it, for the models in
//     select_test.go, match_test.go and receivers_test.go.
//
// # To add a counter
//
// A count of messages or of a link goes into traffic, and into traffic.add: Dispatcher.past keeps
// it when the link ends. A count of the context goes into Dispatcher as an atomic word, or beside
// what a lock guards. Stats gets a field for either.
package dispatch
