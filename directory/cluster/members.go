package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/resource"
)

// awayTime is how long a member that said it would be back is waited for.
const awayTime = 5 * time.Second

// node is one that was met.
type node struct {
	addr  string
	alive bool
	away  *time.Timer // runs while the node is away
}

// gossip makes memberlist's member out of the port.
func (c *Cluster) gossip() error {
	m := memberlist.DefaultLANConfig()
	m.Name = fmt.Sprintf("%012x", uint64(c.cfg.Node))
	m.Transport = within{c.port.Gossip(), c.life}
	m.BindPort, m.AdvertisePort = c.port.Addr().Port, c.port.Addr().Port
	m.Label = "rocl " + c.cfg.Name
	m.Delegate, m.Events, m.Ping = delegate{c}, events{c}, probes{&c.count}
	m.EnableCompression = false // cost without gain
	m.ProbeInterval, m.ProbeTimeout = 500*time.Millisecond, 200*time.Millisecond
	m.SuspicionMult = 3
	m.PushPullInterval = 5 * time.Second // what gossip lost; memberlist takes longer where there are many
	m.DeadNodeReclaimTime = time.Nanosecond
	m.Logger = slog.NewLogLogger(quiet{c.log.Handler()}, slog.LevelDebug)
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
	var err error
	c.list, err = memberlist.Create(m)
	return err
}

func gossipKey(key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("rocl gossip"))
	return h.Sum(nil)
}

// rekey brings memberlist's keyring to the keys given.
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

// What a member tells of itself by gossip: version u8 | flags u8 | epoch u64.
const (
	metaVersion = 1
	metaLen     = 10
	metaAway    = 1 << 0
)

func (c *Cluster) meta() []byte {
	b := []byte{metaVersion, 0}
	if c.going.Load() {
		b[1] |= metaAway
	}
	return binary.LittleEndian.AppendUint64(b, c.port.Epoch())
}

func parseMeta(b []byte) (epoch uint64, flags byte, ok bool) {
	if len(b) < metaLen || b[0] != metaVersion {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b[2:]), b[1], true
}

func nodeID(n *memberlist.Node) (resource.NodeID, bool) {
	id, err := strconv.ParseUint(n.Name, 16, 48)
	return resource.NodeID(id), err == nil && len(n.Name) == 12 && id != 0
}

type events struct{ c *Cluster }

func (e events) NotifyJoin(n *memberlist.Node)   { e.c.seen(n, true) }
func (e events) NotifyUpdate(n *memberlist.Node) { e.c.seen(n, true) }
func (e events) NotifyLeave(n *memberlist.Node)  { e.c.seen(n, false) }

// seen works on what gossip says of a node.
func (c *Cluster) seen(n *memberlist.Node, alive bool) {
	id, ok := nodeID(n)
	epoch, flags, known := parseMeta(n.Meta)
	if !ok || !known {
		c.log.Info("cluster: not one of us", "node", n.Name, "addr", n.Address())
		return
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	m := c.nodes[id]
	if m == nil {
		m = &node{}
		c.nodes[id] = m
	}
	if m.away != nil {
		m.away.Stop()
		m.away = nil
	}
	was := m.alive
	m.alive = alive
	if id != c.cfg.Node {
		c.count.member(id, was, alive, n.State == memberlist.StateLeft)
	}
	if alive {
		m.addr = n.Address()
		if id != c.cfg.Node {
			c.port.Meet(id, epoch, &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
		}
	} else {
		c.port.Part(id)
		switch {
		case n.State != memberlist.StateLeft: // dead, or cut off: keepJoined tries again
		case flags&metaAway != 0 && c.life.Err() == nil:
			m.away = time.AfterFunc(awayTime, func() { c.notBack(id, m) })
		default:
			delete(c.nodes, id) // it said so
		}
	}
	c.relist()
	if was != alive || m.away != nil {
		c.mu.Lock()
		c.filters.met(id, alive)
		c.mu.Unlock()
		c.log.Info("cluster: member", "node", n.Name, "addr", n.Address(), "alive", alive, "away", m.away != nil)
	}
}

// notBack gives up waiting for a member that was away.
func (c *Cluster) notBack(id resource.NodeID, m *node) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if m.away != nil && c.nodes[id] == m {
		delete(c.nodes, id)
		c.relist()
	}
}

// relist makes the list of members anew.
func (c *Cluster) relist() {
	all := []resource.NodeID{c.cfg.Node}
	for id, m := range c.nodes {
		if id != c.cfg.Node && (m.alive || m.away != nil) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	c.members.Store(&all)
	close(c.changed)
	c.changed = make(chan struct{})
}

// news is closed when membership changes next.
func (c *Cluster) news() <-chan struct{} {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	return c.changed
}

// keepJoined joins those it was told of and those it has met, for as long as
// they are not seen alive.
func (c *Cluster) keepJoined() {
	defer c.busy.Done()
	wait := 100 * time.Millisecond
	var heard string
	for {
		var to []string
		if heard != "" {
			to = append(to, heard)
		}
		c.nmu.Lock()
		alone := true
		for id, m := range c.nodes {
			if !m.alive && m.away == nil {
				to = append(to, m.addr)
			}
			alone = alone && (!m.alive || id == c.cfg.Node)
		}
		c.nmu.Unlock()
		if alone {
			to = append(to, c.cfg.Join...)
			c.port.Beacon()
		}
		for _, addr := range to {
			c.look(addr)
		}
		t := time.NewTimer(wait)
		heard = ""
		select {
		case <-t.C:
			wait = min(wait*2, 2*time.Second)
		case heard = <-c.meet:
		case <-c.life.Done():
			t.Stop()
			return
		}
	}
}

// heardBeacon works on a member's telling that it is there.
func (c *Cluster) heardBeacon(id resource.NodeID, addr *net.UDPAddr) {
	c.nmu.Lock()
	m := c.nodes[id]
	known := m != nil && m.alive
	c.nmu.Unlock()
	if known {
		return
	}
	select {
	case c.meet <- addr.String():
	default:
	}
}

// quiet passes memberlist's lines on at level debug.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

type delegate struct{ c *Cluster }

func (d delegate) NodeMeta(int) []byte           { return d.c.meta() }
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}
func (delegate) NotifyMsg([]byte)                {}
