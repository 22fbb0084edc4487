// SPDX-License-Identifier: Apache-2.0

// Package election lets one process of many hold a name, such as role=leader, with standbys behind
// it:
//
//	term, err := election.Hold(ctx, c, rocl.Attrs{"role": "leader"}) // waits as a standby
//	defer term.Close()                                               // gives up the name
//	for {
//		select {
//		case <-term.Done(): // the name is lost: term.Err() says why
//			return term.Err()
//		case job := <-jobs:
//			err := storage.Write(job, term.Number()) // the storage refuses lesser numbers than it has seen
//			…
//		}
//	}
//
// # What is promised, and what is not
//
// While the nodes reach each other, at most one process holds a name. There is no quorum. When the
// network is cut, each side that takes the other for dead may have a holder: the old one goes on,
// and a standby of the other side takes the name. rocl does not know which side is the greater one:
// a node tells apart only which nodes it reaches, and that it reaches none. When the sides meet
// again, the older claim wins. The newer holder is told within a second or two, and 5 s at most
// after the cut: [Term.Done] is closed, and [Term.Err] is [ErrLost]. A machine that stood still
// counts as cut off, and so may a node whose directory has failed.
//
// So what must not be done twice needs the fencing number ([Term.Number]), and a storage that
// refuses requests with a number below the greatest one that it has seen. Numbers grow from holder
// to holder. Each claim is numbered when it is made: above the numbers of all claims on all nodes,
// and above the microseconds of the clock. So the number of a holder is above those of all holders
// for which it, or a standby before it, has waited, whatever the clocks of the machines say. If
// there was no claim for a time, numbers grow because the clock goes on, or by [Above]. The two
// sides of a cut give numbers without knowing of each other: such numbers are ordered, differ
// except by a chance of 1 in 2,048 in one microsecond, and grow as the clocks do. When the sides
// meet, the number of the winner is raised above that of the other one.
//
// # Who takes the name, and when
//
// Standbys take the name in the order of their claims. Each waits for the one before it, so the end
// of a holder wakes one process:
//
//   - [Term.Close] hands over at once.
//   - A killed process is noticed at once on its node, and about a millisecond later elsewhere.
//   - A dead machine is noticed when gossip takes it for dead, after 1 to 3 s.
//   - A process that is stopped, or hangs, keeps the name, and keeps its place as a standby: it is
//     not dead. Its monitor and its calls tell no end either.
//
// A standby does not take the name as long as a node cannot be asked and may live
// (rocl.ErrPartial), such as a member that refuses the others. [Hold] then waits.
//
// # How clients find the holder
//
// The resource of the holder ([Term.Resource]) has the attributes of the name, so clients find it
// and send to it as to any resource. Its attribute [AttrNumber] is the fencing number. A standby's
// does not have the attributes of the name. Between two holders clients find none.
package election
