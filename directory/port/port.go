// SPDX-License-Identifier: Apache-2.0

package port

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
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
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// MaxPayload is what one datagram carries, in bytes: with every head it stays
// below what any Ethernet takes whole.
const MaxPayload = 1232

// MaxLarge is what is sent at a time at all, in bytes.
const MaxLarge = 4 << 20

// Errors of this package.
var (
	ErrUnknown = errors.New("port: not a member that is known")
	ErrClosed  = errors.New("port: closed")
)

// Config is what a port needs. Self, Receive and Stream are required. Receive
// may be called concurrently; what it is given is lent for the call.
type Config struct {
	Self    resource.NodeID
	Bind    string                                                // HOST:PORT
	Cluster string                                                // its name
	Keys    [][]byte                                              // of the cluster: the first seals, all open
	Group   string                                                // HOST:PORT of a multicast group or a broadcast address for casts; may be empty
	TLS     TLS                                                   // how streams are sealed
	Receive func(from resource.NodeID, at *net.UDPAddr, p []byte) // at: where an answer is awaited; nil: at the port
	Stream  func(net.Conn)                                        // has a goroutine of its own, and closes the conn
	Beacon  func(node resource.NodeID, addr *net.UDPAddr)         // somebody is there; may be nil
	Spin    time.Duration                                         // how long the keeper goes on reading after a datagram, before it parks
	Logger  *slog.Logger
	Opening context.Context // bounds Open, which may look Bind's name up; nil: nothing does
}

// A Port is open until Close. Its methods may be called concurrently.
type Port struct {
	cfg   Config
	log   *slog.Logger
	often *ratelog.Logger // for lines that strangers can cause
	epoch uint64
	keys  atomic.Pointer[keys]
	count Counters

	ln      *net.TCPListener
	main    *socket
	group   *socket // nil without a group
	groupTo *net.UDPAddr
	adv     *net.UDPAddr

	poller *subsys.Poller
	asking sync.Mutex // of who asks
	askers askers

	polling  atomic.Bool   // he reads the answers himself
	answered atomic.Uint64 // questions of others who do so

	casts   atomic.Uint64
	castOut seals
	beacons seals

	gossipers          gossipers
	hellos             hellos
	helloOut, hellosIn seals

	mu    sync.RWMutex
	peers map[resource.NodeID]*peer
	past  map[life]uint64 // the highest counter heard of those that were parted from
	base  uint64          // above all counters used towards them

	large   chan struct{} // streams under way with what is too large for a datagram
	packets chan *memberlist.Packet
	streams chan net.Conn
	waiting *subsys.Strangers
	life    context.Context
	end     context.CancelFunc
	busy    sync.WaitGroup
	once    sync.Once // Close
}

// Counters count what a port has done.
type Counters struct {
	Sent, SentBytes         atomic.Uint64 // datagrams of ours
	Received, ReceivedBytes atomic.Uint64 // likewise, that opened
	Foreign                 atomic.Uint64 // of senders unknown, or forged
	Replayed                atomic.Uint64

	GossipSent, GossipSentBytes         atomic.Uint64 // memberlist's datagrams
	GossipReceived, GossipReceivedBytes atomic.Uint64

	GossipDropped           atomic.Uint64 // memberlist was too slow for them
	Streams, StreamsRefused atomic.Uint64
}

// Open binds the port. Nothing is heard before Start.
func Open(cfg Config) (*Port, error) {
	p := &Port{cfg: cfg, log: cfg.Logger, peers: map[resource.NodeID]*peer{}, past: map[life]uint64{},
		gossipers: gossipers{of: map[resource.NodeID]*gossiper{}, at: map[string]*gossiper{}, past: map[life]uint64{}}, hellos: hellos{wait: map[uint64]chan struct{}{}},
		often: ratelog.New(cfg.Logger), large: make(chan struct{}, maxPending), waiting: subsys.NewStrangers(maxPending), packets: make(chan *memberlist.Packet, 1024), streams: make(chan net.Conn)}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	var b [8]byte
	_, _ = rand.Read(b[:])
	p.epoch = binary.LittleEndian.Uint64(b[:]) | 1 // not 0
	p.keys.Store(newKeys(cfg.Cluster, cfg.Keys))
	p.life, p.end = context.WithCancel(context.Background())
	if err := p.open(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Start begins to hear.
func (p *Port) Start() {
	p.busy.Add(2)
	go p.keep()
	go p.accept()
}

func (p *Port) open() error {
	host, _, err := net.SplitHostPort(p.cfg.Bind)
	if err != nil {
		return fmt.Errorf("port: binding: %w", err)
	}
	if p.poller, err = subsys.NewPoller(new(subsys.Counters)); err != nil {
		return err
	}
	opening := p.cfg.Opening
	if opening == nil {
		opening = context.Background()
	}
	// A port of the kernel's choice for TCP may be taken for UDP: try others.
	for try := 0; ; try++ {
		ln, err := new(net.ListenConfig).Listen(opening, network(host), p.cfg.Bind)
		if err != nil {
			return fmt.Errorf("port: listening: %w", err)
		}
		p.ln = ln.(*net.TCPListener)
		at := p.ln.Addr().(*net.TCPAddr)
		p.main, err = newSocket(&net.UDPAddr{IP: at.IP, Port: at.Port, Zone: at.Zone}, false)
		if err == nil {
			break
		}
		p.ln.Close()
		if _, port, _ := net.SplitHostPort(p.cfg.Bind); port != "0" || try >= 20 {
			return fmt.Errorf("port: binding %s: %w", at, err)
		}
	}
	if p.adv, err = advertised(host, p.ln.Addr().(*net.TCPAddr)); err != nil {
		return err
	}
	p.main.handle = p.datagram
	if err := p.poller.Add(p.main.fd, p.main); err != nil {
		return err
	}
	if p.cfg.Group == "" {
		return nil
	}
	if p.groupTo, err = net.ResolveUDPAddr("udp", p.cfg.Group); err != nil {
		return fmt.Errorf("port: joining the group: %w", err)
	}
	if p.group, err = p.main.join(p.groupTo, p.adv.IP); err != nil {
		return fmt.Errorf("port: joining the group %s: %w", p.groupTo, err)
	}
	p.group.handle = p.datagram
	return p.poller.Add(p.group.fd, p.group)
}

// Epoch is that of the port's life, which the others must know: see Meet.
func (p *Port) Epoch() uint64 { return p.epoch }

// Addr is where others reach the port.
func (p *Port) Addr() *net.UDPAddr { return p.adv }

// SetKeys replaces the keys of the cluster.
func (p *Port) SetKeys(of [][]byte) { p.keys.Store(newKeys(p.cfg.Cluster, of)) }

// Meet makes another member known: who it is, in which life, and where.
func (p *Port) Meet(node resource.NodeID, epoch uint64, addr *net.UDPAddr) {
	if node == p.cfg.Self {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.peers[node]; old != nil && old.epoch == epoch && old.addr.String() == addr.String() {
		return
	}
	p.part(node)
	to := &peer{life: life{node, epoch}, addr: addr}
	to.sent.Store(p.base)
	if top, was := p.past[to.life]; was {
		delete(p.past, to.life)
		to.seen.upTo(top)
	}
	p.peers[node] = to
}

// Part forgets a member.
func (p *Port) Part(node resource.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part(node)
}

const (
	mostPast = 1 << 16 // lives of members remembered that were parted from
	margin   = 1 << 20 // for what is being sent to one that is just parted from
)

// part forgets a member. It may be met again in the same life, and the key
// between us is the same then: no counter may be used twice, and none be
// believed twice. p.mu is held.
func (p *Port) part(node resource.NodeID) {
	old := p.peers[node]
	if old == nil {
		return
	}
	delete(p.peers, node)
	p.base = max(p.base, old.sent.Load()) + margin
	old.mu.Lock()
	defer old.mu.Unlock()
	old.parted = true
	if old.seen.top == 0 {
		return
	}
	for l := range p.past { // any: so many come of no accident
		if len(p.past) < mostPast {
			break
		}
		delete(p.past, l)
	}
	p.past[old.life] = old.seen.top
}

func (p *Port) peer(node resource.NodeID) *peer {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.peers[node]
}

// keep reads the sockets. It goes on for a while after it has answered somebody
// who polls, with the sockets out of the set, which makes what comes cheaper;
// then it parks. While somebody polls in this process it does not: two that spin
// here would take the processor from the one that is to answer.
func (p *Port) keep() {
	defer p.busy.Done()
	for {
		before := p.answered.Load()
		p.poller.Poll()
		if p.cfg.Spin > 0 && p.answered.Load() != before && !p.polling.Load() {
			p.spin()
		}
		for p.life.Err() == nil && p.poller.Settle() {
		}
		p.poller.Arm()
		if !p.poller.Park() {
			return
		}
	}
}

func (p *Port) spin() {
	all := []*socket{p.main}
	if p.group != nil {
		all = append(all, p.group)
	}
	for _, s := range all {
		p.poller.Remove(s.fd)
	}
	last, answered := time.Now(), p.answered.Load()
	for i := 1; !p.polling.Load(); i++ {
		for _, s := range all {
			s.Ready(subsys.Readable)
		}
		if i%soon != 0 {
			continue
		}
		if p.life.Err() != nil {
			break
		}
		p.poller.Poll() // who asked and did not wait is in the set still
		now := time.Now()
		if n := p.answered.Load(); n != answered {
			last, answered = now, n
		} else if now.Sub(last) > p.cfg.Spin {
			break
		}
	}
	for _, s := range all {
		if err := p.poller.Add(s.fd, s); err != nil { // it was there before
			p.log.Error("port: watching a socket again", "err", err)
		}
	}
}

// datagram works on what a socket has read.
func (p *Port) datagram(b []byte, from *net.UDPAddr) {
	switch {
	case len(b) >= overhead && b[0] == magic:
		p.ours(b, from)
	default:
		p.count.Foreign.Add(1)
	}
}

func (p *Port) ours(b []byte, from *net.UDPAddr) {
	k := p.keys.Load()
	if !k.each(b, func(b []byte, i int) bool { return p.opened(b, k, i, from) }) {
		p.count.Foreign.Add(1)
		if b[1] == kindHello {
			p.refused(from, senderOf(b))
		}
	}
}

// opened works on a datagram if it opens under the i-th key.
func (p *Port) opened(b []byte, k *keys, i int, from *net.UDPAddr) bool {
	sender, n := senderOf(b), counterOf(b)
	if b[1] == kindHello {
		return p.heardHello(b, k, i, from) // also of another node that has our number: it must not pass in silence
	}
	if sender == p.cfg.Self {
		return b[1] != kindOne // our own cast
	}
	if b[1] == kindBeacon {
		plain, ok := open(b, p.beacons.get(k, i, "beacon"))
		if ok && p.cfg.Beacon != nil {
			p.heardBeacon(sender, plain, from)
		}
		return ok
	}
	if b[1] == kindGossip {
		return p.heardGossip(b, k, i, from)
	}
	from1 := p.peer(sender)
	if from1 == nil {
		return false
	}
	switch b[1] {
	case kindOne:
		plain, ok := open(b, p.from(from1, k, i))
		if !ok || len(plain) == 0 {
			return false
		}
		if !from1.first(n) {
			p.count.Replayed.Add(1)
			return true
		}
		p.received(len(b))
		// Only what is sealed is sure: who sent it on as his own has no answer sent
		// to another machine.
		if from.Port == from1.addr.Port || !from.IP.Equal(from1.addr.IP) {
			from = nil
		}
		p.one(from1, from, plain[0], plain[1:])
		return true
	case kindCast:
		plain, ok := open(b, from1.cast.get(k, i, "cast", uint64(sender), from1.epoch))
		if !ok {
			return false
		}
		p.heardCast(from1, n, len(b), plain)
		return true
	}
	return false
}

// from and to are the ciphers of what is for one member alone.
func (p *Port) from(m *peer, k *keys, i int) cipher.AEAD {
	return m.in.get(k, i, "one", uint64(m.node), m.epoch, uint64(p.cfg.Self), p.epoch)
}

func (p *Port) to(m *peer, k *keys) cipher.AEAD {
	return m.out.get(k, 0, "one", uint64(p.cfg.Self), p.epoch, uint64(m.node), m.epoch)
}

func (p *Port) received(bytes int) {
	p.count.Received.Add(1)
	p.count.ReceivedBytes.Add(uint64(bytes))
}

// What a datagram from one to one begins with.
const (
	saysData  = iota // what the port's user sends
	saysFloor        // u64: take my casts from this number on
	asksFloor
)

func (p *Port) one(from *peer, at *net.UDPAddr, says byte, b []byte) {
	switch says {
	case saysData:
		p.cfg.Receive(from.node, at, b)
	case saysFloor:
		from.mu.Lock()
		defer from.mu.Unlock()
		if len(b) == 8 && from.castFrom == 0 {
			from.castFrom = binary.LittleEndian.Uint64(b)
		}
	case asksFloor:
		floor := binary.LittleEndian.AppendUint64(nil, p.casts.Load()+1)
		p.send(p.main, saysFloor, []Out{{To: from.node, Payload: floor}})
	}
}

// An Out is a datagram to be sent.
type Out struct {
	To      resource.NodeID
	At      *net.UDPAddr // where it is awaited; nil: at the member's port
	Payload []byte       // at most MaxLarge bytes, lent for the call
}

// Send sends datagrams, many with one system call, and what is larger by a stream
// of its own. What goes to a member that is not known, or is longer than
// MaxLarge, is dropped; so may be any other on its way.
func (p *Port) Send(out ...Out) { p.send(p.main, saysData, out) }

func (p *Port) send(by *socket, says byte, out []Out) { p.sendTo(by, nil, says, out) }

// sendTo is send, all to one peer if it is given.
func (p *Port) sendTo(by *socket, only *peer, says byte, out []Out) {
	k := p.keys.Load()
	w := writers.Get().(*writer)
	defer writers.Put(w)
	var large, copied []byte // the same goes to many, often
	for i := range out {
		to := only
		if to == nil {
			to = p.peer(out[i].To)
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
			p.sendLarge(to, copied)
			continue
		}
		w.plain = append(append(w.plain[:0], says), out[i].Payload...)
		at := out[i].At
		if at == nil {
			at = to.addr
		} else {
			p.answered.Add(1)
		}
		m := w.next(at)
		m.Buffers[0] = seal(m.Buffers[0][:0], p.to(to, k), kindOne, k.tags[0], p.cfg.Self, to.sent.Add(1), w.plain)
		if w.n == len(w.ms) {
			p.flush(w, by)
		}
	}
	p.flush(w, by)
}

func (p *Port) flush(w *writer, by *socket) {
	if w.n == 0 {
		return
	}
	n, bytes, err := w.flush(by)
	p.count.Sent.Add(uint64(n))
	p.count.SentBytes.Add(uint64(bytes))
	if err != nil && !errors.Is(err, syscall.EAGAIN) {
		p.log.Debug("port: sending", "err", err)
	}
}

// Close ends everything; Receive, Stream and Beacon are not called afterwards.
func (p *Port) Close() error {
	p.once.Do(p.close)
	return nil
}

func (p *Port) close() {
	p.mu.Lock() // nothing new begins
	p.end()
	p.mu.Unlock()
	if p.ln != nil {
		p.ln.Close()
	}
	if p.poller != nil {
		p.poller.EndPark()
	}
	p.busy.Wait()
	p.waiting.CutAll()
	p.shut()
}

func (p *Port) shut() {
	for _, s := range []*socket{p.main, p.group} {
		if s != nil {
			s.close()
		}
	}
	p.asking.Lock() // he who polls sees the end
	defer p.asking.Unlock()
	for _, k := range p.askers.all {
		k.close()
	}
	p.askers.all = nil
	if p.poller != nil {
		p.poller.Close()
	}
}

// hostPort is addr as memberlist writes it.
func hostPort(addr *net.UDPAddr) string {
	return net.JoinHostPort(addr.IP.String(), strconv.Itoa(addr.Port))
}
