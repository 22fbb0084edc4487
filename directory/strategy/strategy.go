// SPDX-License-Identifier: Apache-2.0

// Package strategy names the search strategies: the ways in which a directory asks the other
// members of its cluster. It also has the step of a trace, which shows how one node was asked.
package strategy

import "fmt"

// A Strategy says how a search reaches the other members. The zero value is Auto.
type Strategy uint8

// The search strategies. A new strategy also needs code where a search asks (choose and askFirst of
// search.Node), a code for traced searches (traceCodes of package directory, trace of the asker in
// package cluster) and a method by which searches are counted (methods of package cluster).
const (
	Auto      Strategy = iota // Broadcast, Unicast or Tree, by the number of members
	Broadcast                 // one datagram to all members where the network allows it, else as Unicast
	Unicast                   // one question to each member
	Tree                      // along spanning trees: each member that is asked asks further members
	end
)

var names = [end]string{Auto: "auto", Broadcast: "broadcast", Unicast: "unicast", Tree: "tree"}

// IsValid reports whether s is one of the strategies of this package.
func (s Strategy) IsValid() bool { return s < end }

// String returns the name that settings use.
func (s Strategy) String() string {
	if s.IsValid() {
		return names[s]
	}
	return fmt.Sprintf("strategy %d", s)
}

// Parse returns the strategy with a name that String returns.
func Parse(name string) (Strategy, error) {
	for i, n := range names {
		if name == n {
			return Strategy(i), nil
		}
	}
	return 0, fmt.Errorf("strategy: %q is not auto, unicast, broadcast or tree", name)
}
