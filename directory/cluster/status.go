// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// A Status is how a member sees its cluster, for an operator: it is the field Member of
// [directory.Status]. Lists are limited.
type Status struct {
	Error  string   `json:"error,omitempty"` // why the node is no member at present; then the rest is zero
	Addr   string   `json:"addr"`            // at which other members reach this one
	Keys   []string `json:"keys,omitempty"`  // the beginning of a hash of each key, the sealing one first
	Health int      `json:"health"`          // see Stats.Health
	// Refusing has addresses at which a program refuses this member, each with what is known of the
	// reason.
	Refusing []string `json:"refusing,omitempty"`
	// Unreached has members to join that have never been reached.
	Unreached []string `json:"unreached,omitempty"`
	// Strange has living members that are not understood, because their version is another one.
	Strange []string `json:"strange,omitempty"`
	// Contradiction tells of a member that is not at the address that it tells, or at two.
	Contradiction string         `json:"contradiction,omitempty"`
	Members       []MemberStatus `json:"members"` // the other members, by node
}

// A MemberStatus is how a member sees another one.
type MemberStatus struct {
	Node  resource.NodeID `json:"node"`
	Host  string          `json:"host,omitempty"` // the name of its machine, as it tells
	Addr  string          `json:"addr"`
	State string          `json:"state"` // "alive", "away" or "dead"
	// Silence is for how long it has answered no probe over UDP. The members are probed in turn.
	Silence time.Duration `json:"silence_ns,omitempty"`
	Ping    time.Duration `json:"ping_ns,omitempty"` // round trip of the last probe that it answered
	// Clock is its clock minus that of this member, as of the last probe that it answered.
	Clock time.Duration `json:"clock_ns,omitempty"`
}

const (
	mostStatus = 1 << 12 // limit of Status.Members
	maxHost    = 64      // bytes of the name of a machine that a member tells
)

// Status returns how this member sees its cluster. The result is a *Status.
func (c *Cluster) Status() any {
	stats := c.Stats()
	s := &Status{Addr: c.Addr(), Health: stats.Health, Refusing: stats.Refusing, Unreached: c.joiner.unreached(), Keys: c.gossip.keyNames()}
	now := time.Now()
	if err := c.members.contradiction(now); err != nil {
		s.Contradiction = strings.TrimPrefix(err.Error(), directory.ErrPartial.Error()+": ")
	}
	c.members.status(s)
	c.count.status(s, now)
	return s
}

// status fills in the members and their states.
func (t *memberTable) status(s *Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, addr := range t.strange {
		s.Strange = append(s.Strange, addr)
	}
	slices.Sort(s.Strange)
	s.Strange = s.Strange[:min(len(s.Strange), mostNamed)]
	for id, m := range t.nodes {
		if id == t.cfg.Node {
			continue
		}
		state := "dead"
		if m.isAlive {
			state = "alive"
		} else if m.away != nil {
			state = "away"
		}
		s.Members = append(s.Members, MemberStatus{Node: id, Host: m.host, Addr: m.addr, State: state})
	}
	slices.SortFunc(s.Members, func(a, b MemberStatus) int { return cmp.Compare(a.Node, b.Node) })
	s.Members = s.Members[:min(len(s.Members), mostStatus)]
}

// status fills in what the probes have shown.
func (n *counts) status(s *Status, now time.Time) {
	n.pulseMu.Lock()
	defer n.pulseMu.Unlock()
	for i := range s.Members {
		m := &s.Members[i]
		if p, ok := n.pulse[m.Node]; ok {
			m.Silence, m.Ping, m.Clock = now.Sub(p.at), p.ping, p.clock
		}
	}
}

// unreached returns the addresses to join at which no member was ever reached.
func (j *joiner) unreached() (addrs []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for addr, w := range j.wanting {
		if w.tried && !w.reached && !w.own {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs[:min(len(addrs), mostNamed)]
}

// keyNames returns a text for each key that tells keys apart, and from which the key cannot be had.
func (g *gossip) keyNames() (names []string) {
	if g.ring == nil {
		return nil
	}
	for _, k := range g.ring.GetKeys() {
		names = append(names, hex.EncodeToString(derive(k, "rocl name of a key")[:4]))
	}
	return names
}

// hostName returns the name of this machine, cut to what a member tells.
func hostName(cfg *Config) string {
	name := cfg.host
	if name == "" {
		name, _ = os.Hostname()
	}
	return name[:min(len(name), maxHost)]
}

// toldHost returns the name of a member's machine, "" if it does not tell.
func toldHost(n *memberlist.Node) string {
	if len(n.Meta) <= metaLen {
		return ""
	}
	b := n.Meta[metaLen:]
	return strings.ToValidUTF8(string(b[:min(len(b), maxHost)]), "?")
}

// clockPayload is what this member adds to its answer to a probe: its clock. It is only shown to
// people: no duration and no order depends on it.
func clockPayload() []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
}

// clockOf returns the difference between another member's clock and this one's, from the payload of
// an answer that has just come and took rtt. The difference is exact to half of rtt.
func clockOf(payload []byte, rtt time.Duration) time.Duration {
	if len(payload) != 8 {
		return 0
	}
	there := int64(binary.LittleEndian.Uint64(payload))
	here := time.Now().UnixNano() - int64(rtt/2)
	return time.Duration(there - here)
}
