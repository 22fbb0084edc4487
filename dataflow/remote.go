// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/dataflow/internal/frames"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// The kinds of messages. The tag of a message is its kind, and above it the index of the edge in 32
// bits. Above that, package frames puts the origins of items. All
// messages of an edge go from one resource to another, so they keep their order.
const (
	kindStatus = iota // a call that asks for the Status of the group
	kindHello         // the sender is ready: its window in 8 bytes, and 1 if it asks for exact credit
	kindOne           // an item
	kindMany          // items
	kindEnd           // number of items in 8 bytes
	kindCredit        // number of items that the consumer has taken, in 8 bytes
	kindClosed        // the consumer has ended
	kindFailed        // the run has failed: group, stage and cause, each behind its length in 4 bytes
	kindGone          // of a monitor
	kindSample        // an item that follows is sampled
)

const (
	defaultWait  = 30 * time.Second
	defaultGrace = 5 * time.Second
	// telling is how long a group that has failed tells others, also those that have yet to start.
	telling      = 2 * time.Second
	resourceType = "dataflow"
	// wholeGroup is the attribute "node" of the resource that stands for a group. Its attribute
	// "state" is stateReady when the resources of the nodes are registered.
	wholeGroup = "all"
	stateReady = "ready"
)

func tagOf(kind uint64, e *plan.Edge) uint64 { return kind | uint64(e.Index)<<8 }

// A remote has the edges of one group that lead to others. Each node with such an edge has a
// resource, which sends and receives the messages of all its edges, and a reception.
type remote struct {
	r     *run
	c     *rocl.Context
	hash  string
	edges []*remoteEdge // by the index in the plan; nil if the edge is local
	nodes map[*plan.Node]*reception
	whole *rocl.Resource // stands for the group
	wg    sync.WaitGroup
	told  chan struct{} // closed when the other groups have been told of a failure
	tells atomic.Bool

	ctx        context.Context // of the receiving goroutines
	endReceive context.CancelFunc
	search     context.Context // of the goroutines that look for other groups
	endSearch  context.CancelFunc
}

// A remoteEdge is one end of an edge between two groups.
type remoteEdge struct {
	e     *plan.Edge
	me    *plan.Node // the end in this group
	peer  *plan.Node // the other end
	self  *rocl.Resource
	ready chan struct{} // closed when to is known and monitored
	over  chan struct{} // closed when the channel has ended, or its consumer has
	gone  chan struct{} // closed when the peer has ended: nothing comes any more
	items atomic.Uint64 // that were sent, or have come

	mu        mutex
	to        rocl.GID // the peer's resource
	isWatched bool

	// Of an edge that leaves.
	credit *credit // else nil
	window int
	exact  bool // the policy needs to know at once what the consumer takes

	// Of an edge that enters.
	origins  []atomic.Uint64                         // of the items that have come, by the sender's input, from 1; nil if it has one
	take     func(m *rocl.Message, isOne bool) error // puts the items into the inbox
	end      func(count uint64) error
	setGrain func(window int, exact bool)
	samples  *samples
}

func newRemote(r *run, c *rocl.Context) *remote {
	m := &remote{r: r, c: c, hash: r.plan.Hash(), edges: make([]*remoteEdge, len(r.plan.Edges)), nodes: map[*plan.Node]*reception{}, told: make(chan struct{})}
	m.ctx, m.endReceive = context.WithCancel(context.Background())
	m.search, m.endSearch = context.WithCancel(context.Background())
	return m
}

// add adds an edge.
func (m *remote) add(e *plan.Edge, me, peer *plan.Node) *remoteEdge {
	x := &remoteEdge{e: e, me: me, peer: peer, mu: newMutex(), ready: make(chan struct{}), over: make(chan struct{}), gone: make(chan struct{})}
	m.edges[e.Index] = x
	if m.nodes[me] == nil {
		m.nodes[me] = newReception(m)
	}
	return x
}

// start registers the resources and begins to look for those of the other groups.
func (m *remote) start() (err error) {
	a := m.attributes(m.r.group)
	a["node"], a["hash"] = wholeGroup, m.hash
	if m.whole, err = m.c.Register(m.r.ctx, a, rocl.Unique("type", "graph", "run", "group", "node")); err != nil {
		return fmt.Errorf("group %s of run %q: %w", m.r.group, m.r.cfg.Run, err)
	}
	if len(m.nodes) == 0 { // the group has no edge to another: somebody answers for it
		m.nodes[m.r.plan.Nodes[slices.IndexFunc(m.r.plan.Nodes, m.r.isMine)]] = newReception(m)
	}
	status := "json" // the first one answers for the group
	for _, n := range m.r.plan.Nodes {
		at := m.nodes[n]
		if at == nil {
			continue
		}
		a := m.attributes(n.Group)
		a["node"], a["hash"], a["of"] = strconv.Itoa(n.Index), m.hash, m.whole.ID().String()
		if status != "" {
			a["status"], status = status, ""
		}
		if at.res, err = m.c.Register(m.r.ctx, a); err != nil {
			return err
		}
	}
	peers := map[string][]*remoteEdge{}
	for _, x := range m.edges {
		if x != nil {
			x.self = m.nodes[x.me].res
			peers[x.peer.Group] = append(peers[x.peer.Group], x)
		}
	}
	for _, at := range m.nodes {
		m.wg.Go(func() {
			if err := at.reserve(m.ctx); err != nil {
				m.r.fail(nil, err)
			}
		})
	}
	if err := m.whole.Set(m.r.ctx, "state", stateReady); err != nil {
		return err
	}
	for group, xs := range peers {
		m.wg.Go(func() {
			if err := m.meet(group, xs); err != nil && m.search.Err() == nil {
				m.r.failWith(&RunError{Graph: m.r.plan.Name, Group: group, Err: err})
			}
		})
	}
	return nil
}

// attributes returns what the resources of a group have in common.
func (m *remote) attributes(group string) rocl.Attrs {
	return rocl.Attrs{"type": resourceType, "graph": m.r.plan.Name, "run": m.r.cfg.Run, "group": group}
}

// meet waits for another group, and for the peers of the edges to it.
func (m *remote) meet(group string, xs []*remoteEdge) error {
	wait, cancel := context.WithTimeout(m.search, m.r.cfg.Wait)
	defer cancel()
	a := m.attributes(group)
	a["node"], a["state"] = wholeGroup, stateReady
	found, err := m.c.Await(wait, a, 1)
	if err != nil {
		if context.Cause(wait) != context.DeadlineExceeded {
			return err
		}
		return m.missing(xs, err)
	}
	if hash, _ := found[0].Attrs.Get("hash"); string(hash) != m.hash {
		return fmt.Errorf("%w: group %s has %s, group %s has %s", ErrHash, m.r.group, m.hash, group, hash)
	}
	nodes := map[string]rocl.GID{}
	for f, err := range m.c.FindAll(wait, rocl.Attrs{"type": resourceType, "of": found[0].ID.String()}) {
		if err != nil {
			return err
		}
		node, _ := f.Attrs.Get("node")
		nodes[string(node)] = f.ID
	}
	for _, x := range xs {
		if err := m.connect(x, nodes[strconv.Itoa(x.peer.Index)]); err != nil {
			return err
		}
	}
	return nil
}

// missing returns an error if a group has not started in time. A group that has begun to send, and
// ended since, is not missing.
func (m *remote) missing(xs []*remoteEdge, cause error) error {
	for _, x := range xs {
		select {
		case <-x.ready:
		default:
			return fmt.Errorf("%w: it has not started within %v: %w", ErrLost, m.r.cfg.Wait, cause)
		}
	}
	return nil
}

// connect notes the resource of an edge's peer, watches it, and tells a consumer that this group is
// ready. The peer of an edge that enters may have sent all its items and ended before, and its
// resource is not found then: the first message tells who it was.
func (m *remote) connect(x *remoteEdge, to rocl.GID) error {
	if to.IsZero() {
		if x.credit == nil {
			return nil
		}
		return ErrLost
	}
	if err := m.watch(x, to); err != nil || x.credit == nil {
		return err
	}
	hello := binary.LittleEndian.AppendUint64(nil, uint64(x.window))
	if x.exact {
		hello = append(hello, 1)
	}
	if err := m.send(m.search, x, kindHello, hello); err != nil {
		return m.lost(x, err)
	}
	close(x.ready)
	return nil
}

// watch notes the resource of a peer, and asks to be told of its end.
func (m *remote) watch(x *remoteEdge, to rocl.GID) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.isWatched {
		return nil
	}
	x.to, x.isWatched = to, true
	_, err := x.self.Monitor(m.ctx, to, tagOf(kindGone, x.e))
	return err
}

// send sends a small message to the peer of an edge that is found.
func (m *remote) send(ctx context.Context, x *remoteEdge, kind uint64, p []byte) error {
	return x.self.SendBytes(ctx, x.to, tagOf(kind, x.e), p)
}

// lost returns the error of a message that could not be sent, and nil if the consumer has ended
// well. The peer's end is told behind its last message, which may say that, so lost waits for it.
func (m *remote) lost(x *remoteEdge, err error) error {
	if !rocl.IsEnd(err) {
		return err
	}
	select {
	case <-x.over:
		return nil
	case <-m.r.ctx.Done():
		return context.Cause(m.r.ctx)
	}
}

// peerOf returns the resource of an edge's peer, as far as it is known.
func (m *remote) peerOf(x *remoteEdge) rocl.GID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.to
}

// await waits until the peer of an edge is found.
func (m *remote) await(x *remoteEdge) error {
	select {
	case <-x.ready:
		return nil
	default:
	}
	select {
	case <-x.ready:
		return nil
	case <-m.r.ctx.Done():
		return context.Cause(m.r.ctx)
	}
}

// ended notes that a node has ended, and waits for messages no more.
func (m *remote) ended(n *plan.Node) {
	if m == nil {
		return
	}
	if at := m.nodes[n]; at != nil {
		at.end()
	}
}

// handle does what a message says. A message comes from another process and may be anything.
func (m *remote) handle(at *reception, msg *rocl.Message) {
	kind, index := msg.Tag()&0xff, msg.Tag()>>8&(1<<32-1)
	if kind == kindStatus {
		m.replyStatus(at, msg)
		return
	}
	if kind == kindFailed {
		m.r.failWith(decodeFailure(m.r.plan.Name, msg.Bytes()))
		return
	}
	if index >= uint64(len(m.edges)) || m.edges[index] == nil {
		m.r.fail(nil, fmt.Errorf("dataflow: %v has sent a message with tag %d", msg.From(), msg.Tag()))
		return
	}
	x := m.edges[index]
	err := m.handleFor(x, kind, msg)
	if err != nil {
		m.r.failWith(&RunError{Graph: m.r.plan.Name, Group: x.peer.Group, Stage: x.peer.Name, Err: err})
	}
}

// handleFor does what a message for an edge says.
func (m *remote) handleFor(x *remoteEdge, kind uint64, msg *rocl.Message) error {
	switch {
	case kind == kindGone && msg.IsGone():
		close(x.gone) // each monitor tells once
		if !x.isOver() {
			return fmt.Errorf("%w: %w", ErrLost, msg.GoneErr())
		}
	case x.credit != nil && kind == kindCredit:
		x.credit.give(number(msg.Bytes()))
	case x.credit != nil && kind == kindClosed:
		x.credit.close()
		x.setOver()
	case x.credit == nil && kind == kindHello:
		if err := m.watch(x, msg.From()); err != nil {
			return err
		}
		if msg.From() != x.to || isClosed(x.ready) {
			return fmt.Errorf("dataflow: a second sender, %v", msg.From())
		}
		x.setGrain(int(min(number(msg.Bytes()), 1<<30)), msg.Len() > 8)
		close(x.ready)
	case x.credit == nil && !x.isOver() && (kind == kindOne || kind == kindMany):
		return x.take(msg, kind == kindOne)
	case x.credit == nil && !x.isOver() && kind == kindSample:
		return m.handleSample(x, msg.Bytes())
	case x.credit == nil && kind == kindEnd:
		err := x.end(number(msg.Bytes()))
		x.setOver()
		return err
	default:
		return fmt.Errorf("dataflow: a message of kind %d from %v", kind, msg.From())
	}
	return nil
}

// number returns the number with which a payload begins.
func number(p []byte) uint64 {
	if len(p) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(p)
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (x *remoteEdge) isOver() bool { return isClosed(x.over) }

// setOver notes that the channel has ended, or its consumer has. The receiving goroutine calls it.
func (x *remoteEdge) setOver() {
	if !x.isOver() {
		close(x.over)
	}
}

// stop ends the edges: it waits until what was sent has arrived, tells the other groups of a
// failure, and deletes the resources.
func (m *remote) stop() {
	for _, x := range m.edges {
		if x == nil || x.credit == nil || m.r.failure() != nil || !isClosed(x.ready) {
			continue
		}
		if err := x.self.Flush(m.r.ctx, x.to); err != nil {
			if err = m.lost(x, err); err != nil {
				m.r.fail(nil, err) // if the peer is lost, the run has failed already
			}
		}
	}
	m.tellFailure()
	m.endSearch()
	ctx, cancel := context.WithTimeout(context.Background(), telling)
	defer cancel()
	if f := m.r.failure(); f != nil && f.Group != m.r.group {
		m.awaitRest(ctx, f.Group)
	}
	for _, at := range m.nodes {
		if at.res != nil {
			_ = at.res.Flush(ctx) // credits for senders that may have ended
		}
	}
	m.endReceive()
	m.wg.Wait()
	for _, at := range m.nodes {
		if at.res != nil {
			_ = at.res.Delete(ctx)
		}
	}
	if m.whole != nil {
		_ = m.whole.Delete(ctx)
	}
}

// awaitRest waits until nothing comes any more from a group that was lost or has failed.
func (m *remote) awaitRest(ctx context.Context, group string) {
	for _, x := range m.edges {
		if x != nil && x.peer.Group == group && isClosed(x.ready) {
			select {
			case <-x.gone:
			case <-ctx.Done():
			}
		}
	}
}

// edgesWith returns what crossed the edges between this group and another.
func (m *remote) edgesWith(group string) (es []LostEdge) {
	for _, x := range m.edges {
		if x == nil || x.peer.Group != group {
			continue
		}
		e := LostEdge{From: x.e.From.Name, To: x.e.To.Name, FromCh: x.e.FromCh, ToCh: x.e.ToCh, Back: x.e.IsBack, Sent: x.credit != nil, Items: x.items.Load()}
		if e.Sent {
			e.Taken = x.credit.taken.Load()
		}
		for i := 1; i < len(x.origins); i++ {
			e.Origins = append(e.Origins, x.origins[i].Load())
		}
		es = append(es, e)
	}
	return es
}

// tellFailure tells the other groups of a failure, by each edge: so the peer of an edge learns the
// failure before the end of this edge's resource. A group that has yet to start is waited for, but
// not for long.
func (m *remote) tellFailure() {
	f := m.r.failure()
	if f == nil {
		return
	}
	if m.tells.Swap(true) { // another goroutine tells
		<-m.told
		return
	}
	defer close(m.told)
	ctx, cancel := context.WithTimeout(m.ctx, telling)
	defer cancel()
	for _, x := range m.edges {
		if x == nil || x.self == nil || f.Group == x.peer.Group && errors.Is(f.Err, ErrLost) {
			continue
		}
		select {
		case <-x.ready:
			_ = m.send(ctx, x, kindFailed, encodeFailure(f))
		case <-ctx.Done():
		}
	}
}

// causes are the errors that a failure keeps as it crosses to another group.
var causes = []error{ErrLost, ErrHash, ErrCount, ErrPanic, ErrCodec, ErrStuck, codec.ErrValue, context.Canceled, context.DeadlineExceeded}

func encodeFailure(e *RunError) (p []byte) {
	for _, c := range causes {
		is := byte(0)
		if errors.Is(e.Err, c) {
			is = 1
		}
		p = append(p, is)
	}
	for _, s := range []string{e.Group, e.Stage, e.Err.Error()} {
		p = append(binary.LittleEndian.AppendUint32(p, uint32(len(s))), s...)
	}
	return p
}

func decodeFailure(graph string, p []byte) *RunError {
	var cause distantError
	for i := range min(len(p), len(causes)) {
		if p[i] != 0 {
			cause.is = append(cause.is, causes[i])
		}
	}
	p = p[min(len(p), len(causes)):]
	var texts [3]string
	for i := range texts {
		if len(p) < 4 || uint64(len(p)) < 4+uint64(binary.LittleEndian.Uint32(p)) {
			break
		}
		n := 4 + int(binary.LittleEndian.Uint32(p))
		texts[i], p = string(p[4:n]), p[n:]
	}
	cause.text = texts[2]
	return &RunError{Graph: graph, Group: texts[0], Stage: texts[1], Err: &cause}
}

// A distantError is the cause of a failure in another group.
type distantError struct {
	text string
	is   []error
}

func (e *distantError) Error() string   { return e.text }
func (e *distantError) Unwrap() []error { return e.is }

// A remoteCredit tells the sender of an edge that enters what the consumer has taken.
type remoteCredit struct {
	m *remote
	x *remoteEdge
}

func (c *remoteCredit) give(taken uint64) {
	if c.x.isOver() { // all has been sent: the sender may have ended
		return
	}
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], taken)
	c.tell(kindCredit, p[:])
}

func (c *remoteCredit) close() { c.tell(kindClosed, nil) }

// tell sends a message that the sender needs only while it lives: its end is reported otherwise.
func (c *remoteCredit) tell(kind uint64, p []byte) {
	if c.m.await(c.x) == nil {
		_ = c.m.send(c.m.r.ctx, c.x, kind, p)
	}
}

// acceptRemote implements receiver.
func (in *inbox[T]) acceptRemote(e *plan.Edge, m *remote) {
	x, ch := m.add(e, e.To, e.From), in.indexOf(e)
	in.accept(e, &remoteCredit{m, x}, 1)
	if in.distant++; in.distant == len(in.inputs) {
		in.reception = m.nodes[e.To]
	}
	x.setGrain = func(window int, exact bool) {
		in.inputs[ch].grain.Store(uint64(max(1, window/4)))
		in.inputs[ch].isLazy.Store(!exact)
	}
	x.end = func(count uint64) error { return in.end(ch, count) }
	x.samples = &in.inputs[ch].samples
	f := frames.New(codecOf[T](e))
	one := make([]T, 1)
	if n := origins(e.From); n > 0 {
		x.origins = make([]atomic.Uint64, n+1)
	}
	x.take = func(msg *rocl.Message, isOne bool) error {
		items := one
		p, err := frames.Origins(msg, isOne, x.origins)
		switch {
		case err != nil:
		case isOne:
			err = f.One(m.c, msg, &one[0])
		default:
			items, err = f.Many(p)
		}
		if err != nil {
			return fmt.Errorf("decode its items: %w", err)
		}
		x.items.Add(uint64(len(items)))
		isWoken := in.put(ch, items)
		clear(one) // for the garbage collector
		if isWoken {
			// The consumer takes this goroutine's processor. Otherwise it would wait for another
			// one, because this goroutine goes on to poll for messages.
			runtime.Gosched()
		}
		return nil
	}
}

// connectRemote implements sender.
func (o *outbox[T]) connectRemote(e *plan.Edge, m *remote) {
	out := o.outputOf(e)
	x := m.add(e, e.From, e.To)
	x.credit, x.window, x.exact = out.credit, o.window(e), o.forward > 1 && !e.IsBack
	if out.index < o.forward {
		if o.distant++; o.distant == o.forward {
			o.reception = m.nodes[e.From]
		}
	}
	f := frames.New(codecOf[T](e))
	out.wire = &remoteWire[T]{m, x, f}
	if origins(e.From) > 0 {
		out.origins = []uint16{}
	}
	if n := f.Fixed(); n != 0 {
		out.most = max(1, min(out.most, o.limits.bytes/n))
	} else {
		out.size = f.Size
	}
}

// origins returns how many inputs a node has, if its items carry from which of them they come, else
// 0.
func origins(n *plan.Node) int {
	if k := len(n.In) + len(n.InBack); k > 1 && k <= frames.MostOrigins {
		return k
	}
	return 0
}

// codecOf returns the codec of the node that sends on an edge, or nil.
func codecOf[T any](e *plan.Edge) rocl.Codec[T] {
	c, _ := e.From.Block.Data.(*block).opts.codec.(rocl.Codec[T])
	return c
}

// A remoteWire sends batches to another group.
type remoteWire[T any] struct {
	m *remote
	x *remoteEdge
	f *frames.Format[T]
}

func (w *remoteWire[T]) sentBytes() uint64 { return w.f.Sent() }

func (w *remoteWire[T]) put(items []T, origins []uint16) error {
	m, x := w.m, w.x
	if err := m.await(x); err != nil {
		frames.Discard(items)
		return err
	}
	if err := w.f.Send(m.r.ctx, x.self, x.to, tagOf(kindOne, x.e), tagOf(kindMany, x.e), items, origins); err != nil {
		return m.lost(x, err)
	}
	x.items.Add(uint64(len(items)))
	return nil
}

func (w *remoteWire[T]) end(count uint64) error {
	return w.tell(kindEnd, binary.LittleEndian.AppendUint64(nil, count))
}

// tell sends a small message.
func (w *remoteWire[T]) tell(kind uint64, p []byte) error {
	if err := w.m.await(w.x); err != nil {
		return err
	}
	if err := w.m.send(w.m.r.ctx, w.x, kind, p); err != nil {
		return w.m.lost(w.x, err)
	}
	return nil
}
