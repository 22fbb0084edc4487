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
// contexts. See rocl.WithRules.
type Rule struct {
	Match resource.Match // attributes of the target; none: every target
	Over  []string       // transports, best first, as in [Over]; none: as without rules
}

// Over sets the transports by which other contexts reach the resource that is being registered,
// best first. See rocl.Over.
func Over(transports ...string) RegisterOption {
	return func(c *registerConfig) { c.over = append([]string{}, transports...) }
}

// rules are the rules of a context. They do not change.
type rules struct {
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
func newRules(all []Rule, transports []subsys.Transport) (*rules, error) {
	rs := new(rules)
	for _, r := range all {
		lane, err := laneOver(r.Over, transports)
		if err != nil {
			return nil, err
		}
		p, _, err := newPattern(r.Match, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", dispatch.ErrRule, err)
		}
		rs.each = append(rs.each, rule{p, lane})
		rs.hasMatches = rs.hasMatches || len(r.Match) > 0
	}
	return rs, nil
}

// laneOver returns the lane over the named transports, which must be among those of a context. TLS
// is accepted in any case, because the terms of a cluster may add it.
func laneOver(names []string, transports []subsys.Transport) (dispatch.Lane, error) {
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
func (rs *rules) pick(it *resource.Record) dispatch.Lane {
	for _, r := range rs.each {
		if r.pattern.Len() == 0 || resource.Matches(&it.Attrs, r.pattern) && resource.Meets(it.Owner, &it.Attrs, r.pattern) {
			return r.lane
		}
	}
	return ""
}

// wanted returns the attributes of a target that say which lane leads to it. needed is false if the
// lane does not depend on attributes; no names stand for all attributes.
func (c *Context) wanted(to resource.GID) (names []string, needed bool) {
	switch {
	case to.Serial()&dispatch.Routed != 0:
		return []string{AttrOver}, true
	case c.rules.hasMatches:
		return nil, true
	}
	return []string{AttrKind}, false
}

// flowOf returns the flow to a resource of the context owner, and keeps it in the cache. it has the
// attributes of the resource that wanted names; nil if none are needed.
func (c *Context) flowOf(owner, to resource.GID, it *resource.Record) (*dispatch.Flow, error) {
	f, err := c.choose(owner, to, it)
	if err != nil {
		return nil, err
	}
	c.cache.mu.Lock()
	c.cache.addLocked(to, f)
	c.cache.mu.Unlock()
	return f, nil
}

// choose returns the flow to a resource over the lane that leads to it.
func (c *Context) choose(owner, to resource.GID, it *resource.Record) (*dispatch.Flow, error) {
	switch {
	case owner == c.self:
		return c.disp.Flow(owner, to.Serial())
	case to.Serial()&dispatch.Routed != 0:
		lane, err := dispatch.ParseLane(it.Attrs.GetString(AttrOver))
		if err != nil {
			return nil, fmt.Errorf("%s of the target: %w", AttrOver, err)
		}
		return c.disp.FlowOver(owner, to.Serial(), lane)
	case len(c.rules.each) == 0:
		return c.disp.Flow(owner, to.Serial())
	}
	c.rules.choosing.Lock()
	defer c.rules.choosing.Unlock()
	lane, isKnown := c.disp.LaneTo(owner, to.Serial()) // its attributes may have changed since
	if !isKnown {
		lane = c.rules.pick(it)
	}
	return c.disp.FlowOver(owner, to.Serial(), lane)
}

// addOver adds the attribute that says over which transports the resource is reached.
func addOver(l *resource.List, lane dispatch.Lane) error {
	if lane == "" {
		return nil
	}
	return l.AddString(AttrOver, string(lane))
}
