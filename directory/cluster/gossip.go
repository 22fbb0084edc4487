// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: Members
//
// A member's name is its number, 12 hexadecimal digits. Its meta is version 2 u8, flags u8 (bit 0:
// it will be back in a moment), epoch u64, random for each opening of the port, and the name of its
// machine, up to 64 bytes. Its answer to a probe has its clock, ns of Unix time u64, which is for
// people. At a push/pull, the user state is version 1 u8, flags u8 (bit 0: the sender may not know
// all yet), and entries for members that the other may not know: node u64, epoch u64, left u32,
// kind u8, port u16, IP 16 bytes. Kind 0: away, for left ms, at most 5,000; 1: met less than a
// second ago, or suspected; 2: alive and about to be away.

const (
	gossipTime = 100 * time.Millisecond // how often rumours are told

	labelMark = "rocl " // before the cluster's name, in the label of each packet

	sayAgain = 10 * time.Second // after which a problem that goes on is logged again

	mostConflicts = 1 << 12 // limit of gossip.conflicts
)

// What a member tells of itself by gossip.
const (
	metaVersion = 2
	metaLen     = 10
	metaAway    = 1 << 0
)

// gossip runs memberlist on the member's mux.
type gossip struct {
	*core
	members *memberTable
	joiner  *joiner
	list    *memberlist.Memberlist
	host    string              // the name of this machine
	ring    *memberlist.Keyring // nil without a key
	away    atomic.Bool         // another server will take this one's place

	mu        sync.Mutex        // guards conflicts
	conflicts map[string]string // the conflict that was logged last, two addresses, by the node's name
}

// start starts memberlist.
func (g *gossip) start() error {
	g.host = hostName(&g.cfg)
	m := memberlist.DefaultLANConfig()
	m.Name = name(g.cfg.Node)
	m.Transport = within{g.mux.Gossip(), g.knockAndDial, g.life}
	m.BindPort, m.AdvertisePort = g.mux.Addr().Port, g.mux.Addr().Port
	m.Label = labelMark + g.cfg.Name
	m.Delegate, m.Events, m.Conflict, m.Merge, m.Ping = delegate{g}, events{g}, events{g}, events{g}, probes{&g.count}
	m.EnableCompression = false // costs time and gains nothing
	m.UDPBufferSize = mux.MaxPayload
	m.TCPTimeout = joinTime
	// A node that falls silent is suspected after the time of two or three probes. It is dead 0.9 s
	// after three other members have found the same, or 5.4 s if they have not: so chance losses
	// have time to be denied. Where there are not three others, it is always 0.9 s. Rumours are
	// told often enough that no member misses one.
	m.ProbeInterval, m.ProbeTimeout = 180*time.Millisecond, 80*time.Millisecond
	m.SuspicionMult = 5
	m.GossipInterval, m.RetransmitMult = gossipTime, 8
	// Push/pull repairs what gossip lost. memberlist takes longer where there are many members.
	m.PushPullInterval = 5 * time.Second
	m.DeadNodeReclaimTime = 2 * time.Second // a node may come back at another address
	m.Logger = slog.NewLogLogger(quiet{g.log.Handler(), ratelog.New(g.log)}, slog.LevelDebug)
	if len(g.cfg.Keys) > 0 {
		var of [][]byte
		for _, k := range g.cfg.Keys {
			of = append(of, gossipKey(k))
		}
		var err error
		if m.Keyring, err = memberlist.NewKeyring(of, of[0]); err != nil {
			return err
		}
		g.ring = m.Keyring
	}
	if g.cfg.gossip != nil {
		g.cfg.gossip(m)
	}
	var err error
	g.list, err = memberlist.Create(m)
	return err
}

// canRekey returns an error if rekey cannot change memberlist's keyring to the keys of.
func (g *gossip) canRekey(of [][]byte) error {
	if g.ring == nil || len(of) == 0 {
		return errors.New("a cluster has a key from its beginning to its end, or never")
	}
	var err error
	for _, k := range of {
		err = errors.Join(err, memberlist.ValidateKey(gossipKey(k)))
	}
	return err
}

// rekey changes memberlist's keyring to the keys of. The first seals. canRekey must have returned
// nil for these keys: then no call of the keyring fails. An error would leave some keys changed.
func (g *gossip) rekey(of [][]byte) error {
	ring := g.ring
	var err error
	for _, k := range of {
		err = errors.Join(err, ring.AddKey(gossipKey(k)))
	}
	err = errors.Join(err, ring.UseKey(gossipKey(of[0])))
	for _, old := range slices.Clone(ring.GetKeys()) {
		if !slices.ContainsFunc(of, func(k []byte) bool { return hmac.Equal(gossipKey(k), old) }) {
			err = errors.Join(err, ring.RemoveKey(old))
		}
	}
	return err
}

// keys returns the number of keys.
func (g *gossip) keys() int {
	if g.ring == nil {
		return 0
	}
	return len(g.ring.GetKeys())
}

// announceAway tells by gossip that another server is about to take this one's place. It only
// begins to tell.
func (g *gossip) announceAway() {
	g.away.Store(true)
	_ = g.list.UpdateNode(1)
}

// meta returns what this member tells of itself.
func (g *gossip) meta() []byte {
	b := []byte{metaVersion, 0}
	if g.away.Load() {
		b[1] |= metaAway
	}
	return append(binary.LittleEndian.AppendUint64(b, g.mux.Epoch()), g.host...)
}

// parseMeta reads what a member tells of itself. ok is false for an unknown version.
func parseMeta(b []byte) (epoch uint64, flags byte, ok bool) {
	if len(b) < metaLen || b[0] != metaVersion {
		return 0, 0, false
	}
	return epochIn(b), b[1], true
}

// epochIn returns the epoch in what a member tells of itself. It is at the same offset in
// each version.
func epochIn(meta []byte) uint64 { return binary.LittleEndian.Uint64(meta[2:]) }

// name returns the name of a node for memberlist.
func name(n resource.NodeID) string { return fmt.Sprintf("%012x", uint64(n)) }

// nodeID returns the node number in a memberlist name, and reports whether the name has one.
func nodeID(n *memberlist.Node) (resource.NodeID, bool) {
	id, err := strconv.ParseUint(n.Name, 16, 48)
	return resource.NodeID(id), err == nil && id != 0 && n.Name == name(resource.NodeID(id))
}

// events handles what memberlist reports of members, in memberlist's goroutines.
type events struct{ *gossip }

func (e events) NotifyJoin(n *memberlist.Node) { e.members.seen(n, true) }

func (e events) NotifyUpdate(n *memberlist.Node) { e.members.seen(n, true) }

func (e events) NotifyLeave(n *memberlist.Node) { e.members.seen(n, false) }

// NotifyConflict is called when a node is said to be at another address than the one where it is
// known to live. A node that has moved is believed when its old address is dead. Otherwise two
// nodes have one number, and each member sees only one of them: NotifyConflict logs that.
func (e events) NotifyConflict(n, other *memberlist.Node) {
	addrs := []string{n.Address(), other.Address()}
	slices.Sort(addrs) // each address may be the one that is known
	what := strings.Join(addrs, " ")
	e.members.twin(n.Name, what)
	e.mu.Lock()
	logged := e.conflicts[n.Name] == what
	if e.conflicts == nil || len(e.conflicts) >= mostConflicts {
		e.conflicts = map[string]string{}
	}
	e.conflicts[n.Name] = what
	e.mu.Unlock()
	if !logged {
		// Cause: as it says; searches answer `ErrPartial` meanwhile. Remedy: remove one `.node`
		// file, and restart that node.
		e.log.Warn("cluster: a node is in two places: it has moved a moment ago, or two nodes have one number (a copied .node file, a cloned machine)",
			"node", n.Name, "addr", n.Address(), "other", other.Address(), "this node", n.Name == name(e.cfg.Node))
	}
}

// NotifyMerge is called with what another member knows, when this member joins it or is joined. If
// that includes a former life of this member, memberlist denies that life. A member that knows the
// former life cannot open the denial. It is told over a stream, by joining again.
func (e events) NotifyMerge(all []*memberlist.Node) error {
	for _, n := range all {
		if n.Name == name(e.cfg.Node) && len(n.Meta) >= metaLen && epochIn(n.Meta) != e.mux.Epoch() {
			e.joiner.former.Store(true)
		}
	}
	e.members.suspected(all)
	return nil
}

// delegate gives memberlist this member's metadata, and exchanges accounts (absent.go).
type delegate struct{ *gossip }

func (d delegate) NodeMeta(int) []byte { return d.meta() }

func (delegate) GetBroadcasts(int, int) [][]byte { return nil }

func (delegate) NotifyMsg([]byte) {}

// LocalState returns this member's account. A member that ends does not note any more which members
// are away.
func (d delegate) LocalState(bool) []byte {
	return d.members.account(!d.joiner.complete.Load() || d.life.Err() != nil)
}

// MergeRemoteState handles another member's account.
func (d delegate) MergeRemoteState(b []byte, join bool) {
	entries, fresh, ok := parseAccount(b)
	if !ok {
		return
	}
	d.members.merge(entries)
	if join {
		d.joiner.heardAccount(fresh)
	}
}
