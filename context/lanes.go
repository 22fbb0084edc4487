// SPDX-License-Identifier: Apache-2.0

package context

import (
	"fmt"
	"slices"
	"sync"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// All messages of a context to one resource use one lane, so they keep their order. The lane is
// chosen when the context first sends to the resource:
//
//	the resource was registered with Over      the lane is its attribute AttrOver
//	the resource matches a rule of WithRules   the lane is that of the first such rule
//	otherwise                                  the common lane
//
// The bit dispatch.Routed of the serial says that a resource has AttrOver. So a context without
// rules asks the directory for attributes of only these targets.

// A Rule says which transports carry the messages that this context sends to resources of other
// contexts..
type Rule struct {
	Match resource.Match // attributes of the target; none: every target
	Over  []string       // transports, best first, as in rocl.Over; none: as without rules
}

// Rules are the rules of a context. They do not change.
type Rules struct {
	each       []rule
	hasMatches bool // a rule depends on the target's attributes

	// choosing is held while the lane to a target is chosen, so that goroutines that begin to send
	// to it at the same time choose one lane. It is held while locks of package dispatch are taken.
	choosing sync.Mutex
}

// A rule is a Rule that has been checked.
type rule struct {
	pattern *resource.List
	lane    dispatch.Lane
}

// newRules checks the rules of a context with the given transports.
func newRules(all []Rule, transports []subsys.Transport) (*Rules, error) {
	rs := new(Rules)
	for _, r := range all {
		lane, err := LaneOver(r.Over, transports)
		if err != nil {
			return nil, err
		}
		p, err := NewPattern(r.Match, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", dispatch.ErrRule, err)
		}
		rs.each = append(rs.each, rule{p, lane})
		rs.hasMatches = rs.hasMatches || len(r.Match) > 0
	}
	return rs, nil
}

// LaneOver returns the lane over the named transports, which must be among those of a context. TLS
// is accepted in any case, because the terms of a cluster may add it.
func LaneOver(names []string, transports []subsys.Transport) (dispatch.Lane, error) {
	lane, err := dispatch.NewLane(names...)
	if err != nil {
		return "", err
	}
	for _, name := range lane.Transports() {
		if name != "tls" && !slices.ContainsFunc(transports, func(t subsys.Transport) bool { return t.Name() == name }) {
			return "", fmt.Errorf("%w: the context has no transport %q", dispatch.ErrRule, name)
		}
	}
	return lane, nil
}

// pick returns the lane to a target. it may be nil if no rule depends on attributes.
func (rs *Rules) pick(it *resource.Record) dispatch.Lane {
	for _, r := range rs.each {
		if r.pattern.Len() == 0 || resource.Matches(&it.Attrs, r.pattern) && resource.Meets(it.Owner, &it.Attrs, r.pattern) {
			return r.lane
		}
	}
	return ""
}
