// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

const (
	defaultWait = 30 * time.Second
	messageTag  = 1 // of all messages, so that they keep their order
	monitorTag  = 2
)

// The kinds of messages. A message is the kind in a byte, the index of the edge in 4 bytes, and
// what the kind says.
const (
	kindHello  = 1 + iota // window in 8 bytes: the sender is ready
	kindBatch             // items
	kindEnd               // number of items in 8 bytes
	kindCredit            // number of items that the consumer has taken, in 8 bytes
	kindClosed            // the consumer has ended
	kindFailed            // the run has failed: group, stage and cause, each behind its length in 4 bytes
)

const headerLen = 5

// A remote has the edges of one group that lead to others. Each node with such an edge has a
// resource, which sends and receives the messages of all its edges.
type remote struct {
	r     *run
	c     *rocl.Context
	hash  string
	edges []*remoteEdge // by the index in the plan; nil if the edge is local
	nodes map[*plan.Node]*rocl.Resource
	wg    sync.WaitGroup
	ctx   context.Context // of the receiving goroutines

	endReceive, endSearch context.CancelFunc

	mu sync.Mutex // guards the edges' to until they are ready
}

// A remoteEdge is one end of an edge between two groups.
type remoteEdge struct {
	e         *plan.Edge
	me        *plan.Node // the end in this group
	peer      *plan.Node // the other end
	self      *rocl.Resource
	ready     chan struct{} // closed when to is known
	to        rocl.GID      // the peer's resource
	isOver    bool          // the receiving goroutine's: the channel has ended, or its consumer has
	hasCredit bool
	credit    *credit                    // of an edge that leaves; else nil
	window    int                        // of an edge that leaves
	put       func(payload []byte) error // of an edge that enters: decodes a batch and puts it into the inbox
	end       func(count uint64) error
	setGrain  func(window int)
}

func newRemote(r *run, c *rocl.Context) *remote {
	return &remote{r: r, c: c, hash: r.plan.Hash(), edges: make([]*remoteEdge, len(r.plan.Edges)), nodes: map[*plan.Node]*rocl.Resource{}}
}

// add adds an edge.
func (m *remote) add(e *plan.Edge, me, peer *plan.Node) *remoteEdge {
	x := &remoteEdge{e: e, me: me, peer: peer, ready: make(chan struct{})}
	m.edges[e.Index] = x
	m.nodes[me] = nil
	return x
}

// start registers the resources and begins to look for those of the other groups.
func (m *remote) start() error {
	m.ctx, m.endReceive = context.WithCancel(context.WithoutCancel(m.r.ctx))
	for n := range m.nodes {
		a := m.attributes(n)
		a["hash"] = m.hash
		res, err := m.c.Register(m.r.ctx, a)
		if err != nil {
			return err
		}
		m.nodes[n] = res
	}
	for _, x := range m.edges {
		if x != nil {
			x.self = m.nodes[x.me]
		}
	}
	for _, res := range m.nodes {
		m.wg.Go(func() { m.receive(res) })
	}
	var search context.Context
	search, m.endSearch = context.WithCancel(m.r.ctx)
	for _, x := range m.edges {
		if x != nil {
			m.wg.Go(func() {
				if err := m.find(search, x); err != nil && search.Err() == nil {
					m.r.fail(nil, err)
				}
			})
		}
	}
	return nil
}

// attributes returns by what the resource of a node is found.
func (m *remote) attributes(n *plan.Node) rocl.Attrs {
	return rocl.Attrs{"type": "dataflow", "graph": m.r.plan.Name, "run": m.r.cfg.Run, "group": n.Group, "node": strconv.Itoa(n.Index)}
}

// find waits for the peer of an edge. The sender of an edge looks for the receiver, which learns of
// the sender by its first message.
func (m *remote) find(ctx context.Context, x *remoteEdge) error {
	wait, cancel := context.WithTimeout(ctx, m.r.cfg.Wait)
	defer cancel()
	if x.credit == nil {
		select {
		case <-x.ready:
		case <-wait.Done():
			return fmt.Errorf("%w: group %s, stage %s, has not started", ErrLost, x.peer.Group, x.peer.Name)
		}
		_, err := x.self.Monitor(m.ctx, x.to, monitorTag)
		return err
	}
	found, err := m.c.Await(wait, m.attributes(x.peer), 1)
	if err != nil {
		return fmt.Errorf("%w: group %s, stage %s, has not started: %w", ErrLost, x.peer.Group, x.peer.Name, err)
	}
	m.learn(x, found[0].ID)
	if hash, _ := found[0].Attrs.Get("hash"); string(hash) != m.hash {
		close(x.ready)
		return fmt.Errorf("%w: group %s has %s, group %s has %s", ErrHash, m.r.group, m.hash, x.peer.Group, hash)
	}
	if err := m.send(ctx, x, kindHello, binary.LittleEndian.AppendUint64(nil, uint64(x.window))); err != nil {
		return err
	}
	_, err = x.self.Monitor(m.ctx, x.to, monitorTag)
	close(x.ready)
	return err
}

// learn notes the resource of a peer.
func (m *remote) learn(x *remoteEdge, id rocl.GID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x.to = id
}

// send sends a small message to the peer of an edge that is found.
func (m *remote) send(ctx context.Context, x *remoteEdge, kind byte, rest []byte) error {
	p := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(x.e.Index))
	return x.self.SendBytes(ctx, x.to, messageTag, append(p, rest...))
}

// peerOf returns the resource of an edge's peer, as far as it is known.
func (m *remote) peerOf(x *remoteEdge) rocl.GID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return x.to
}

// await waits until the peer of an edge is found.
func (m *remote) await(x *remoteEdge) error {
	select {
	case <-x.ready:
		return nil
	case <-m.r.ctx.Done():
		return context.Cause(m.r.ctx)
	}
}

// receive takes the messages to a node until the run ends.
func (m *remote) receive(res *rocl.Resource) {
	for {
		msg, err := res.Recv(m.ctx)
		if err != nil {
			if m.ctx.Err() == nil {
				m.r.fail(nil, err)
			}
			return
		}
		if msg.IsGone() {
			m.gone(res, msg.From())
		} else if err := m.handle(msg); err != nil {
			m.r.fail(nil, err)
		}
		msg.Release()
	}
}

// gone ends the run if a peer has ended before its edges.
func (m *remote) gone(res *rocl.Resource, id rocl.GID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.edges {
		if x != nil && x.self == res && x.to == id && !x.isOver {
			m.r.failWith(&RunError{Graph: m.r.plan.Name, Group: x.peer.Group, Stage: x.peer.Name, Err: ErrLost})
		}
	}
}

// handle does what a message says. A message comes from another process and may be anything.
func (m *remote) handle(msg *rocl.Message) error {
	p := msg.Bytes()
	if len(p) < headerLen {
		return errors.New("dataflow: a message is too short")
	}
	if p[0] == kindFailed {
		m.r.failWith(decodeFailure(m.r.plan.Name, p[headerLen:]))
		return nil
	}
	k := binary.LittleEndian.Uint32(p[1:])
	if int(k) >= len(m.edges) || m.edges[k] == nil {
		return fmt.Errorf("dataflow: a message for edge %d", k)
	}
	x, rest := m.edges[k], p[headerLen:]
	number := func() uint64 {
		if len(rest) != 8 {
			return 0
		}
		return binary.LittleEndian.Uint64(rest)
	}
	switch kind := p[0]; {
	case x.credit != nil && kind == kindCredit:
		x.credit.give(number())
	case x.credit != nil && kind == kindClosed:
		x.isOver = true
		x.credit.close()
	case x.credit == nil && kind == kindHello:
		if x.to.IsZero() {
			m.learn(x, msg.From())
			x.setGrain(int(min(number(), 1<<30)))
			close(x.ready)
		}
	case x.credit == nil && kind == kindBatch:
		return x.put(rest)
	case x.credit == nil && kind == kindEnd:
		x.isOver = true
		return x.end(number())
	default:
		return fmt.Errorf("dataflow: a message of kind %d for edge %d", kind, k)
	}
	return nil
}

// stop ends the edges: it tells the other groups of a failure, waits until what was sent has
// arrived, and deletes the resources.
func (m *remote) stop() {
	if f := m.r.failure(); f != nil {
		told := map[rocl.GID]bool{}
		for _, x := range m.edges {
			select {
			case <-ready(x):
				if !told[x.to] {
					told[x.to] = true
					ctx, cancel := context.WithTimeout(m.ctx, time.Second)
					_ = m.send(ctx, x, kindFailed, encodeFailure(f))
					cancel()
				}
			default:
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), 5*time.Second)
	defer cancel()
	if m.endSearch != nil {
		m.endSearch()
	}
	for _, res := range m.nodes {
		if res != nil {
			_ = res.Flush(ctx)
		}
	}
	m.endReceive()
	m.wg.Wait()
	for _, res := range m.nodes {
		if res != nil {
			_ = res.Delete(ctx)
		}
	}
}

// ready returns the channel that tells when the peer is found.
func ready(x *remoteEdge) chan struct{} {
	if x == nil {
		return nil
	}
	return x.ready
}

// causes are the errors that a failure keeps as it crosses to another group.
var causes = []error{ErrLost, ErrHash, ErrCount, ErrPanic, codec.ErrValue}

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
	c.tell(kindCredit, binary.LittleEndian.AppendUint64(nil, taken))
}

func (c *remoteCredit) close() { c.tell(kindClosed, nil) }

// tell sends a message that the sender needs only while it lives: its end is reported otherwise.
func (c *remoteCredit) tell(kind byte, rest []byte) {
	if c.m.await(c.x) == nil {
		_ = c.m.send(c.m.r.ctx, c.x, kind, rest)
	}
}

// acceptRemote implements receiver.
func (in *inbox[T]) acceptRemote(e *plan.Edge, m *remote) {
	x, ch := m.add(e, e.To, e.From), in.indexOf(e)
	in.accept(e, &remoteCredit{m, x}, 1)
	x.setGrain = func(window int) { in.inputs[ch].grain.Store(uint64(max(1, window/4))) }
	x.end = func(count uint64) error { return in.end(ch, count) }
	own := codecOf[T](e)
	x.put = func(p []byte) error {
		items, err := decodeItems(p, own)
		if err != nil {
			return fmt.Errorf("items from stage %s of group %s: %w", e.From.Name, e.From.Group, err)
		}
		in.put(ch, items)
		return nil
	}
}

// connectRemote implements sender.
func (o *outbox[T]) connectRemote(e *plan.Edge, m *remote) {
	out := o.outputOf(e)
	x := m.add(e, e.From, e.To)
	x.credit, x.window = out.credit, o.window(e)
	out.wire = &remoteWire[T]{m: m, x: x, own: codecOf[T](e)}
	if codecOf[T](e) == nil {
		out.size = func(v T) int { return codec.Size(&v) }
	}
}

// codecOf returns the codec of the node that sends on an edge, or nil.
func codecOf[T any](e *plan.Edge) rocl.Codec[T] {
	c, _ := e.From.Block.Data.(*block).opts.codec.(rocl.Codec[T])
	return c
}

// A remoteWire sends batches to another group.
type remoteWire[T any] struct {
	m   *remote
	x   *remoteEdge
	own rocl.Codec[T]

	bytes atomic.Uint64 // that have left
}

func (w *remoteWire[T]) sentBytes() uint64 { return w.bytes.Load() }

func (w *remoteWire[T]) put(items []T) error {
	if err := w.m.await(w.x); err != nil {
		return err
	}
	p := binary.LittleEndian.AppendUint32([]byte{kindBatch}, uint32(w.x.e.Index))
	p, err := appendItems(p, items, w.own)
	if err != nil {
		return err
	}
	w.bytes.Add(uint64(len(p)))
	return w.x.self.SendBytes(w.m.r.ctx, w.x.to, messageTag, p)
}

func (w *remoteWire[T]) end(count uint64) error {
	if err := w.m.await(w.x); err != nil {
		return err
	}
	return w.m.send(w.m.r.ctx, w.x, kindEnd, binary.LittleEndian.AppendUint64(nil, count))
}

// appendItems encodes a batch: as a slice, or each item behind its length if there is a codec.
func appendItems[T any](p []byte, items []T, own rocl.Codec[T]) ([]byte, error) {
	if own == nil {
		return codec.Append(p, &items)
	}
	for _, v := range items {
		at := len(p)
		var err error
		if p, err = own.Append(append(p, 0, 0, 0, 0), v); err != nil {
			return nil, err
		}
		binary.LittleEndian.PutUint32(p[at:], uint32(len(p)-at-4))
	}
	return p, nil
}

// decodeItems decodes a batch.
func decodeItems[T any](p []byte, own rocl.Codec[T]) (items []T, err error) {
	if own == nil {
		return items, codec.Decode(p, &items)
	}
	for len(p) != 0 {
		if len(p) < 4 || uint64(len(p)) < 4+uint64(binary.LittleEndian.Uint32(p)) {
			return nil, fmt.Errorf("%w: an item is cut off", codec.ErrValue)
		}
		n := 4 + int(binary.LittleEndian.Uint32(p))
		v, err := own.Decode(p[4:n])
		if err != nil {
			return nil, err
		}
		items, p = append(items, v), p[n:]
	}
	return items, nil
}
