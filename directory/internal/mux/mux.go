// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// MaxPayload is what one datagram carries, in bytes. With every head, the datagram fits into one
// frame of any Ethernet.
const MaxPayload = 1232

// MaxLarge limits one payload, in bytes. A payload above MaxPayload goes by a stream.
const MaxLarge = 4 << 20

// Errors of this package.
var (
	ErrUnknown = errors.New("mux: the node is not a known member")
	ErrClosed  = errors.New("mux: the port is closed")
)

// Config has the settings of a port. Self, Receive and Stream are required. Receive may be called
// concurrently; its arguments are lent for the call.
type Config struct {
	Self resource.NodeID
	// Bind is where the port listens: see SplitBind. 0.0.0.0 and [::] are every address.
	Bind string
	// Toward returns HOST:PORT of members to join, and of the group. If Bind does not name one
	// address, other members are told the source address of the route there. The error means that
	// some are not known. Toward may be nil.
	Toward  func(ctx context.Context) ([]string, error)
	Cluster string   // the name of the cluster
	Keys    [][]byte // of the cluster: the first seals, all open
	// Group is HOST:PORT of a multicast group or a broadcast address for casts. It may be empty.
	Group string
	TLS   TLS // how streams are sealed
	// Receive gets a payload. at is where the sender awaits an answer; nil means at its port.
	Receive func(from resource.NodeID, at *net.UDPAddr, p []byte)
	// Stream gets a stream of another member, in a goroutine of its own. It must close the
	// connection.
	Stream func(net.Conn)
	// Beacon is called when a beacon says that a member is at addr. It may be nil.
	Beacon func(node resource.NodeID, addr *net.UDPAddr)
	// Hello is called when another member at addr says hello, and when its answer comes too late
	// for Hello. It may be nil.
	Hello func(node resource.NodeID, addr *net.UDPAddr)
	// Answer is called when a member has answered a hello of this port from an address. It may be
	// nil.
	Answer  func(node resource.NodeID, from *net.UDPAddr)
	Spin    time.Duration // how long the keeper reads on after an answer, before it parks
	Logger  *slog.Logger
	Opening context.Context // bounds Open, which may look Bind's name up; nil: no bound
	// Network opens the sockets, for simulations. Bind is then an address in it, Group is empty,
	// and Ask may not be called. Nil means the kernel's network.
	Network Network

	largeTime time.Duration // for a large payload to go or to come; 0: defaultLargeTime; for tests
}

// A Network opens the sockets of a port.
type Network interface {
	Listen(addr string) (net.Listener, error)
	ListenPacket(addr string) (net.PacketConn, error)
	DialContext(ctx context.Context, addr string) (net.Conn, error)
}

// A Mux is open until Close. Its methods may be called concurrently.
type Mux struct {
	cfg   Config
	log   *slog.Logger
	often *ratelog.Logger // for lines that strangers can cause
	epoch uint64
	keys  atomic.Pointer[keys]
	count Counters

	ln      net.Listener
	main    *socket
	group   *socket // nil without a group
	groupTo *net.UDPAddr
	adv     *net.UDPAddr

	poller *subsys.Poller
	asking sync.Mutex // held while a goroutine reads in Ask; guards askers
	askers []*asker

	polling  atomic.Bool   // a goroutine reads the answers in Ask
	answered atomic.Uint64 // answers sent to sockets of askers

	casts   atomic.Uint64
	castOut seals
	beacons seals

	gossipers          gossipers
	hellos             hellos
	helloOut, hellosIn seals

	// mu guards peers, past and base. It is also held while lifetime ends, and while a large
	// payload begins.
	mu    sync.RWMutex
	peers map[resource.NodeID]*peer
	past  pastIncarnations // those that were parted from
	base  uint64           // above all counters used towards them

	large    chan struct{} // one slot for each stream under way with a large payload
	packets  chan *memberlist.Packet
	streams  chan net.Conn
	waiting  *subsys.Handshakes
	lifetime context.Context
	end      context.CancelFunc
	busy     sync.WaitGroup
	once     sync.Once // guards close
}

// Counters count what a port has done.
type Counters struct {
	Sent, SentBytes         atomic.Uint64 // datagrams and large payloads, without gossip, hellos and beacons
	Received, ReceivedBytes atomic.Uint64 // the same, received: those that open and are new
	Foreign                 atomic.Uint64 // of unknown senders, or forged
	Replayed                atomic.Uint64

	GossipSent, GossipSentBytes         atomic.Uint64 // memberlist's datagrams
	GossipReceived, GossipReceivedBytes atomic.Uint64

	GossipDropped           atomic.Uint64 // memberlist was too slow for them
	Streams, StreamsRefused atomic.Uint64
}

// Stats are the figures of Counters at one time.
type Stats struct {
	Sent, SentBytes                     uint64
	Received, ReceivedBytes             uint64
	GossipSent, GossipSentBytes         uint64
	GossipReceived, GossipReceivedBytes uint64
	Foreign, Replayed, GossipDropped    uint64
	Streams, StreamsRefused             uint64
	Members                             int // members that are known
	Gossipers                           int // members that gossip goes to and comes from
}

// Stats returns the present figures.
func (x *Mux) Stats() Stats {
	n := &x.count
	x.mu.RLock()
	members := len(x.peers)
	x.mu.RUnlock()
	x.gossipers.mu.RLock()
	gossipers := len(x.gossipers.of)
	x.gossipers.mu.RUnlock()
	return Stats{
		n.Sent.Load(), n.SentBytes.Load(), n.Received.Load(), n.ReceivedBytes.Load(),
		n.GossipSent.Load(), n.GossipSentBytes.Load(), n.GossipReceived.Load(), n.GossipReceivedBytes.Load(),
		n.Foreign.Load(), n.Replayed.Load(), n.GossipDropped.Load(),
		n.Streams.Load(), n.StreamsRefused.Load(), members, gossipers,
	}
}

// Open binds the port. The port hears nothing before Start.
func Open(cfg Config) (*Mux, error) {
	if cfg.largeTime <= 0 {
		cfg.largeTime = defaultLargeTime
	}
	x := &Mux{cfg: cfg, log: cfg.Logger, peers: map[resource.NodeID]*peer{}, past: pastIncarnations{},
		gossipers: gossipers{of: map[resource.NodeID]*session{}, at: map[string]*session{}, past: pastIncarnations{}}, hellos: hellos{wait: map[uint64]*greeting{}},
		often: ratelog.New(cfg.Logger), large: make(chan struct{}, maxPending), waiting: subsys.NewHandshakes(maxPending), packets: make(chan *memberlist.Packet, 1024), streams: make(chan net.Conn)}
	if x.log == nil {
		x.log = slog.New(slog.DiscardHandler)
	}
	x.epoch = random() | 1 // never 0
	x.keys.Store(newKeys(cfg.Cluster, cfg.Keys))
	x.lifetime, x.end = context.WithCancel(context.Background())
	if err := x.open(); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// Start starts the goroutines that read the sockets and accept streams.
func (x *Mux) Start() {
	x.busy.Go(x.readSockets)
	x.busy.Go(x.accept)
}

// open binds the TCP and UDP sockets and joins the group.
func (x *Mux) open() error {
	opening := x.cfg.Opening
	if opening == nil {
		opening = context.Background()
	}
	if x.cfg.Network != nil {
		return x.openIn(x.cfg.Network)
	}
	at, err := x.findPlace(opening)
	if err != nil {
		return err
	}
	if x.poller, err = subsys.NewPoller(new(subsys.Counters)); err != nil {
		return err
	}
	// The port that the kernel chooses for TCP may be taken for UDP: try another one.
	for try := 0; ; try++ {
		ln, err := new(net.ListenConfig).Listen(opening, at.network, at.at)
		if err != nil {
			return fmt.Errorf("mux: listening: %w", absent(err))
		}
		x.ln = ln
		addr := ln.Addr().(*net.TCPAddr)
		x.adv = &net.UDPAddr{IP: addr.IP, Port: addr.Port, Zone: addr.Zone}
		x.main, err = newSocket(x.adv, false)
		if err == nil {
			break
		}
		x.ln.Close()
		if _, port, _ := net.SplitHostPort(at.at); port != "0" || try >= 20 {
			return fmt.Errorf("mux: binding %s: %w", addr, absent(err))
		}
	}
	if at.advertised != nil {
		x.adv = &net.UDPAddr{IP: at.advertised, Port: x.adv.Port}
	}
	x.main.handle = x.datagram
	if err := x.poller.Add(x.main.fd, x.main); err != nil {
		return err
	}
	if x.cfg.Group == "" {
		return nil
	}
	if x.groupTo, err = net.ResolveUDPAddr("udp", x.cfg.Group); err != nil {
		return fmt.Errorf("mux: joining the group: %w", err)
	}
	if x.group, err = x.main.join(x.groupTo, x.adv.IP); err != nil {
		return fmt.Errorf("mux: joining the group %s: %w", x.groupTo, err)
	}
	x.group.handle = x.datagram
	return x.poller.Add(x.group.fd, x.group)
}

// openIn binds the sockets in a network that is not the kernel's.
func (x *Mux) openIn(n Network) (err error) {
	if x.ln, err = n.Listen(x.cfg.Bind); err != nil {
		return fmt.Errorf("mux: listening: %w", err)
	}
	addr := x.ln.Addr().(*net.TCPAddr)
	x.adv = &net.UDPAddr{IP: addr.IP, Port: addr.Port}
	pc, err := n.ListenPacket(x.adv.String())
	if err != nil {
		return fmt.Errorf("mux: binding %s: %w", addr, err)
	}
	x.main = &socket{at: x.adv, packets: pc, handle: x.datagram}
	return nil
}

// Epoch returns the epoch of the port's incarnation, which the other members must know: see Meet.
func (x *Mux) Epoch() uint64 { return x.epoch }

// Addr returns the address at which other members reach the port.
func (x *Mux) Addr() *net.UDPAddr { return x.adv }

// SetKeys replaces the keys of the cluster: the first seals, all open.
func (x *Mux) SetKeys(of [][]byte) { x.keys.Store(newKeys(x.cfg.Cluster, of)) }

// Meet makes another member known: its number, the epoch of its incarnation and its address. If
// another incarnation or address of the member was known, that is parted from.
func (x *Mux) Meet(node resource.NodeID, epoch uint64, addr *net.UDPAddr) {
	if node == x.cfg.Self {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.peers[node]; old != nil && old.epoch == epoch && old.addr.String() == addr.String() {
		return
	}
	x.partLocked(node)
	to := &peer{session: session{incarnation: incarnation{node, epoch}, addr: addr}}
	to.sent.Store(x.base)
	x.past.restore(to.incarnation, &to.seen)
	x.peers[node] = to
}

// Part forgets a member: its datagrams do not open, and none is sent to it, until Meet makes it
// known again.
func (x *Mux) Part(node resource.NodeID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.partLocked(node)
}

// margin is added to base for the datagrams under way to a member that is being parted from.
const margin = 1 << 20

// partLocked forgets a member. The member may be met again in the same incarnation, in which the
// key between the two is the same. No counter may then be used twice, and none be accepted twice.
// x.mu must be held.
func (x *Mux) partLocked(node resource.NodeID) {
	old := x.peers[node]
	if old == nil {
		return
	}
	delete(x.peers, node)
	x.base = max(x.base, old.sent.Load()) + margin
	old.end(x.past)
}

// peer returns the peer of a node, or nil if the node is not known.
func (x *Mux) peer(node resource.NodeID) *peer {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.peers[node]
}

// readSockets reads the sockets until the port closes. After it has answered a goroutine that
// polls, it reads on for a while (spin), and then parks. While a goroutine of this process polls,
// it does not spin: two spinning goroutines would take the processor from the one that is to
// answer.
func (x *Mux) readSockets() {
	if x.poller == nil {
		x.main.readPackets()
		return
	}
	for {
		before := x.answered.Load()
		x.poller.Poll()
		if x.cfg.Spin > 0 && x.answered.Load() != before && !x.polling.Load() {
			x.spin()
		}
		for x.lifetime.Err() == nil && x.poller.Drain() {
		}
		x.poller.Arm()
		if !x.poller.Park() {
			return
		}
	}
}

// spin reads the sockets until no question of a polling peer has been answered for cfg.Spin, or a
// goroutine of this process polls. The sockets are not in the Poller meanwhile, which makes reading
// cheaper.
func (x *Mux) spin() {
	all := []*socket{x.main}
	if x.group != nil {
		all = append(all, x.group)
	}
	for _, s := range all {
		x.poller.Remove(s.fd)
	}
	last, answered := time.Now(), x.answered.Load()
	for i := 1; !x.polling.Load(); i++ {
		for _, s := range all {
			s.Ready(subsys.Readable)
		}
		if i%soon != 0 {
			continue
		}
		if x.lifetime.Err() != nil {
			break
		}
		x.poller.Poll() // an asker that was left in the Poller may have an answer
		now := time.Now()
		if n := x.answered.Load(); n != answered {
			last, answered = now, n
		} else if now.Sub(last) > x.cfg.Spin {
			break
		}
	}
	for _, s := range all {
		if err := x.poller.Add(s.fd, s); err != nil { // it was in the set before
			// Cause: the kernel refused it after `--poll`. Remedy: restart the daemon; `--poll 0`.
			x.log.Error("mux: a socket cannot be watched again", "err", err)
		}
	}
}

// datagram handles a datagram that a socket has read. b is lent for the call.
func (x *Mux) datagram(b []byte, from *net.UDPAddr) {
	if len(b) < overhead || b[0] != magic {
		x.count.Foreign.Add(1)
		return
	}
	k := x.keys.Load()
	if !k.each(b, func(b []byte, i int) bool { return x.handleSealed(b, k, i, from) }) {
		x.count.Foreign.Add(1)
		if b[1] == kindHello {
			x.refused(from, senderOf(b))
		}
	}
}

// handleSealed handles a datagram, and reports whether it opens under the i-th key.
func (x *Mux) handleSealed(b []byte, k *keys, i int, from *net.UDPAddr) bool {
	id, n := senderOf(b), counterOf(b)
	if b[1] == kindHello {
		// A hello of another node with this node's number is handled too: that conflict must be
		// seen.
		return x.heardHello(b, k, i, from)
	}
	if id == x.cfg.Self {
		return b[1] != kindOne // this port's own cast or beacon
	}
	if b[1] == kindBeacon {
		plain, ok := open(b, x.beacons.get(k, i, "beacon"))
		if ok && x.cfg.Beacon != nil {
			x.heardBeacon(id, plain, from)
		}
		return ok
	}
	if b[1] == kindGossip {
		return x.heardGossip(b, k, i, from)
	}
	sender := x.peer(id)
	if sender == nil {
		return false
	}
	switch b[1] {
	case kindOne:
		plain, ok := open(b, x.opener(&sender.session, "one", k, i))
		if !ok || len(plain) == 0 {
			return false
		}
		if !sender.first(n) {
			x.count.Replayed.Add(1)
			return true
		}
		x.received(len(b))
		// Only the sealed part is certain. A host that passes a datagram on as its own must not
		// have the answer sent to another machine.
		if from.Port == sender.addr.Port || !from.IP.Equal(sender.addr.IP) {
			from = nil
		}
		x.handle(sender, from, plain[0], plain[1:])
		return true
	case kindCast:
		plain, ok := open(b, sender.cast.get(k, i, "cast", uint64(id), sender.epoch))
		if !ok {
			return false
		}
		x.heardCast(sender, n, len(b), plain)
		return true
	}
	return false
}

func (x *Mux) received(bytes int) {
	x.count.Received.Add(1)
	x.count.ReceivedBytes.Add(uint64(bytes))
}

// The first byte of a datagram's plain text, from one member to one.
const (
	plainData  = iota // a payload of the port's user
	plainFloor        // u64: take the sender's casts from this number on
	plainAskFloor
)

// handle handles a new datagram from one member to this one. b is lent for the call.
func (x *Mux) handle(from *peer, at *net.UDPAddr, kind byte, b []byte) {
	switch kind {
	case plainData:
		x.cfg.Receive(from.node, at, b)
	case plainFloor:
		from.mu.Lock()
		defer from.mu.Unlock()
		if len(b) == 8 && from.castFrom == 0 {
			from.castFrom = binary.LittleEndian.Uint64(b)
		}
	case plainAskFloor:
		floor := binary.LittleEndian.AppendUint64(nil, x.casts.Load()+1)
		x.send(x.main, plainFloor, []Out{{To: from.node, Payload: floor}})
	}
}

// An Out is a payload to be sent.
type Out struct {
	To      resource.NodeID
	At      *net.UDPAddr // where the receiver awaits it; nil: at the member's port
	Payload []byte       // at most MaxLarge bytes, lent for the call
}

// Send sends payloads: several datagrams with one system call, and each larger payload by a stream
// of its own. A payload to an unknown member, or of more than MaxLarge bytes, is dropped. Any other
// one may get lost on its way.
func (x *Mux) Send(out ...Out) { x.send(x.main, plainData, out) }

// send sends payloads, each with the first byte kind, through the socket by.
func (x *Mux) send(by *socket, kind byte, out []Out) { x.sendTo(by, nil, kind, out) }

// sendTo is send, but sends everything to only if that is not nil.
func (x *Mux) sendTo(by *socket, only *peer, kind byte, out []Out) {
	k := x.keys.Load()
	w := writers.Get().(*writer)
	defer writers.Put(w)
	var large, copied []byte // often the same payload goes to many members
	for i := range out {
		to := only
		if to == nil {
			to = x.peer(out[i].To)
		}
		if to == nil {
			continue
		}
		if b := out[i].Payload; len(b) > MaxLarge {
			continue
		} else if len(b) > MaxPayload {
			if len(b) != len(large) || &b[0] != &large[0] {
				large, copied = b, slices.Clone(b)
			}
			x.sendLarge(to, copied)
			continue
		}
		w.plain = append(append(w.plain[:0], kind), out[i].Payload...)
		at := out[i].At
		if at == nil {
			at = to.addr
		} else {
			x.answered.Add(1)
		}
		m := w.next(at)
		m.Buffers[0] = seal(m.Buffers[0][:0], x.sealer(&to.session, "one", k), kindOne, k.tags[0], x.cfg.Self, to.sent.Add(1), w.plain)
		if w.n == len(w.ms) {
			x.flush(w, by)
		}
	}
	x.flush(w, by)
}

// flush sends what w has gathered, and counts it.
func (x *Mux) flush(w *writer, by *socket) {
	if w.n == 0 {
		return
	}
	n, bytes, err := w.flush(by)
	x.count.Sent.Add(uint64(n))
	x.count.SentBytes.Add(uint64(bytes))
	if err != nil && !sockerr.Is(err, syscall.EAGAIN) {
		x.log.Debug("mux: sending", "err", err)
	}
}

// sendOne seals one datagram with counter n and the cipher that with returns, and sends it to an
// address. It returns the bytes that were sent.
func (x *Mux) sendOne(kind byte, n uint64, plain []byte, to *net.UDPAddr, with func(*keys) cipher.AEAD) (bytes int, err error) {
	k := x.keys.Load()
	w := writers.Get().(*writer)
	defer writers.Put(w)
	m := w.next(to)
	m.Buffers[0] = seal(m.Buffers[0][:0], with(k), kind, k.tags[0], x.cfg.Self, n, plain)
	_, bytes, err = w.flush(x.main)
	return bytes, err
}

// Close ends the port. Receive, Stream, Beacon and Answer are not called afterwards.
func (x *Mux) Close() error {
	x.once.Do(x.close)
	return nil
}

// close ends the port's goroutines, waits for them, and then closes the sockets.
func (x *Mux) close() {
	x.mu.Lock() // no stream or large payload begins any more
	x.end()
	x.mu.Unlock()
	if x.ln != nil {
		x.ln.Close()
	}
	if x.poller != nil {
		x.poller.EndPark()
	} else if x.main != nil {
		x.main.close()
	}
	x.busy.Wait()
	x.waiting.CloseAll()
	for _, s := range []*socket{x.main, x.group} {
		if s != nil {
			s.close()
		}
	}
	x.asking.Lock() // a goroutine in Ask sees the end
	defer x.asking.Unlock()
	for _, k := range x.askers {
		k.close()
	}
	x.askers = nil
	if x.poller != nil {
		x.poller.Close()
	}
}

// hostPort returns addr in the form that memberlist uses.
func hostPort(addr *net.UDPAddr) string {
	return net.JoinHostPort(addr.IP.String(), strconv.Itoa(addr.Port))
}
