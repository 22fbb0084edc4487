// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/resource"
)

const (
	gossipTime = 100 * time.Millisecond // how often rumours are told

	labelMark = "rocl " // before the cluster's name, in the label of each packet

	sayAgain = 10 * time.Second // after which a problem that goes on is logged again
)

// What a member tells of itself by gossip: version u8 | flags u8 | epoch u64.
const (
	metaVersion = 1
	metaLen     = 10
	metaAway    = 1 << 0
	metaRoll    = 1 << 1 // it reads and answers what roll.go describes
)

// gossip starts memberlist on the port.
func (c *Cluster) gossip() error {
	m := memberlist.DefaultLANConfig()
	m.Name = name(c.cfg.Node)
	m.Transport = within{c.port.Gossip(), c.knockAndDial, c.life}
	m.BindPort, m.AdvertisePort = c.port.Addr().Port, c.port.Addr().Port
	m.Label = labelMark + c.cfg.Name
	m.Delegate, m.Events, m.Conflict, m.Merge, m.Ping = delegate{c}, events{c}, events{c}, events{c}, probes{&c.count}
	m.EnableCompression = false // costs time and gains nothing
	m.UDPBufferSize = mux.MaxPayload
	m.TCPTimeout = joinTime
	// A node that falls silent is suspected after the time of two or three probes. It is dead 0.9 s
	// after three other members have found the same, or 5.4 s if they have not: so chance losses
	// have time to be denied. Rumours are told often enough that no member misses one.
	m.ProbeInterval, m.ProbeTimeout = 180*time.Millisecond, 80*time.Millisecond
	m.SuspicionMult = 5
	m.GossipInterval, m.RetransmitMult = gossipTime, 8
	// Push/pull repairs what gossip lost. memberlist takes longer where there are many members.
	m.PushPullInterval = 5 * time.Second
	m.DeadNodeReclaimTime = 2 * time.Second // a node may come back at another address
	m.Logger = slog.NewLogLogger(&quiet{Handler: c.log.Handler()}, slog.LevelDebug)
	if len(c.cfg.Keys) > 0 {
		var of [][]byte
		for _, k := range c.cfg.Keys {
			of = append(of, gossipKey(k))
		}
		var err error
		if m.Keyring, err = memberlist.NewKeyring(of, of[0]); err != nil {
			return err
		}
		c.ring = m.Keyring
	}
	if c.cfg.gossip != nil {
		c.cfg.gossip(m)
	}
	var err error
	c.list, err = memberlist.Create(m)
	return err
}

// gossipKey derives memberlist's key from a key of the cluster.
func gossipKey(key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("rocl gossip"))
	return h.Sum(nil)
}

// rekey changes memberlist's keyring to the keys of. The first seals.
func (c *Cluster) rekey(of [][]byte) error {
	if len(c.cfg.Keys) == 0 || len(of) == 0 {
		return errors.New("a cluster has a key from its beginning to its end, or never")
	}
	ring := c.ring
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

// meta returns what this member tells of itself.
func (c *Cluster) meta() []byte {
	b := []byte{metaVersion, metaRoll}
	if c.going.Load() {
		b[1] |= metaAway
	}
	return binary.LittleEndian.AppendUint64(b, c.port.Epoch())
}

// parseMeta reads what a member tells of itself. ok is false for an unknown version.
func parseMeta(b []byte) (epoch uint64, flags byte, ok bool) {
	if len(b) < metaLen || b[0] != metaVersion {
		return 0, 0, false
	}
	return epochIn(b), b[1], true
}

// epochIn returns the epoch in what a member tells of itself. It has the same place in each
// version.
func epochIn(meta []byte) uint64 { return binary.LittleEndian.Uint64(meta[2:]) }

// name returns the name of a node for memberlist.
func name(n resource.NodeID) string { return fmt.Sprintf("%012x", uint64(n)) }

// nodeID returns the node number in a memberlist name, and reports whether the name has one.
func nodeID(n *memberlist.Node) (resource.NodeID, bool) {
	id, err := strconv.ParseUint(n.Name, 16, 48)
	return resource.NodeID(id), err == nil && id != 0 && n.Name == name(resource.NodeID(id))
}

// events handles what memberlist reports of members, in memberlist's goroutines.
type events struct{ c *Cluster }

func (e events) NotifyJoin(n *memberlist.Node) { e.c.seen(n, true) }

func (e events) NotifyUpdate(n *memberlist.Node) { e.c.seen(n, true) }

func (e events) NotifyLeave(n *memberlist.Node) { e.c.seen(n, false) }

// NotifyConflict is called when a node is said to be at another address than the one where it is
// known to live. A node that has moved is believed when its old address is dead. Otherwise two
// nodes have one number, and each member sees only one of them: NotifyConflict logs that.
func (e events) NotifyConflict(n, other *memberlist.Node) {
	what := n.Name + " " + n.Address() + " " + other.Address()
	e.c.nmu.Lock()
	said := e.c.conflict == what
	e.c.conflict = what
	e.c.nmu.Unlock()
	if !said {
		e.c.log.Warn("cluster: a node is in two places: it has moved a moment ago, or two nodes have one number (a copied .node file, a cloned machine)",
			"node", n.Name, "addr", n.Address(), "other", other.Address(), "this node", n.Name == name(e.c.cfg.Node))
	}
}

// NotifyMerge is called with what another member knows, when this member joins it or is joined. If
// that includes a former life of this member, memberlist denies that life. A member that knows the
// former life cannot open the denial. It is told over a stream, by joining again.
func (e events) NotifyMerge(all []*memberlist.Node) error {
	for _, n := range all {
		if n.Name == name(e.c.cfg.Node) && len(n.Meta) >= metaLen && epochIn(n.Meta) != e.c.port.Epoch() {
			e.c.former.Store(true)
		}
	}
	e.c.suspected(all)
	return nil
}

// quiet passes memberlist's lines on at level debug, except those that an operator looks for:
// gossip that does not open, or that is of another cluster. These are logged once per sayAgain,
// because any program can send such packets.
type quiet struct {
	slog.Handler
	mu   sync.Mutex
	said time.Time
}

func (q *quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelInfo)
}

func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	refused := ""
	switch {
	case strings.Contains(r.Message, "Decrypt packet failed"):
		refused = "cluster: gossip refused: with another key, or with none"
	case strings.Contains(r.Message, "unacceptable label"):
		refused = "cluster: gossip refused: of another cluster"
	}
	if refused != "" {
		q.mu.Lock()
		again := r.Time.Sub(q.said) > sayAgain
		if again {
			q.said = r.Time
		}
		q.mu.Unlock()
		if again {
			says := slog.NewRecord(r.Time, slog.LevelInfo, refused, r.PC)
			says.AddAttrs(slog.String("memberlist", r.Message))
			return q.Handler.Handle(ctx, says)
		}
	}
	if !q.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// delegate gives memberlist this member's metadata, and exchanges accounts (absent.go).
type delegate struct{ c *Cluster }

func (d delegate) NodeMeta(int) []byte { return d.c.meta() }

func (delegate) GetBroadcasts(int, int) [][]byte { return nil }

func (delegate) NotifyMsg([]byte) {}
