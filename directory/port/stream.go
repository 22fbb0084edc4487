package port

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rocl-go/rocl/resource"
)

const (
	helloTime  = 2 * time.Second // for a stranger to show who he is
	maxPending = 256             // strangers at a time
)

// TLS is how streams are sealed, memberlist's among them; without it they are
// not. Each function shakes hands over a stream, which stays the port's if that
// fails, and returns what is said inside.
type TLS struct {
	Client, Server func(context.Context, net.Conn) (net.Conn, error)
}

func (p *Port) accept() {
	defer p.busy.Done()
	pending := make(chan struct{}, maxPending)
	for {
		nc, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.log.Warn("port: accepting", "err", err)
			select { // descriptors ran out: only time mends that
			case <-time.After(20 * time.Millisecond):
			case <-p.life.Done():
				return
			}
			continue
		}
		select {
		case pending <- struct{}{}:
		default:
			p.count.StreamsRefused.Add(1)
			nc.Close()
			continue
		}
		p.busy.Add(1)
		go func() {
			defer p.busy.Done()
			stop := context.AfterFunc(p.life, func() { nc.Close() })
			c, ours, err := p.greet(nc)
			<-pending
			switch {
			case err != nil:
				p.count.StreamsRefused.Add(1)
				p.log.Info("port: stream refused", "remote", nc.RemoteAddr(), "err", err)
				nc.Close()
			case ours:
				p.count.Streams.Add(1)
				p.serve(c)
			default:
				select {
				case p.streams <- c:
					stop() // it is memberlist's now, and has its own deadline
					return
				case <-p.life.Done():
					nc.Close()
				}
			}
			stop()
		}()
	}
}

// greet finds out whose a stream is, and lets him prove that he may.
func (p *Port) greet(nc net.Conn) (c net.Conn, ours bool, err error) {
	var first [1]byte
	_ = nc.SetDeadline(time.Now().Add(helloTime))
	c = nc
	if p.cfg.TLS.Server != nil { // before anything is said by us or believed
		if c, err = p.cfg.TLS.Server(p.life, nc); err != nil {
			return nil, false, err
		}
	}
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return nil, false, err
	}
	_ = nc.SetDeadline(time.Time{})
	return &peeked{c, first[:]}, first[0] != gossipByte, nil
}

// peeked gives back what was read to see whose it is.
type peeked struct {
	net.Conn
	first []byte
}

func (c *peeked) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// Dial opens a stream to a member.
func (p *Port) Dial(ctx context.Context, node resource.NodeID) (net.Conn, error) {
	to := p.peer(node)
	if to == nil {
		return nil, fmt.Errorf("%w: %012x", ErrUnknown, uint64(node))
	}
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	c, err := p.connect(ctx, hostPort(to.addr))
	if err != nil {
		return nil, fmt.Errorf("port: dialling %012x: %w", uint64(node), err)
	}
	return c, nil
}

// connect opens a stream to an address, sealed if streams are.
func (p *Port) connect(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil || p.cfg.TLS.Client == nil {
		return nc, err
	}
	c, err := p.cfg.TLS.Client(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// A stream with what is too large for a datagram begins with
//
//	largeByte | zero × 3 | length u32 | sender u64 | its epoch u64 | the receiver's u64
const (
	largeByte = 'L'
	largeHead = 32
	largeTime = 10 * time.Second
)

// serve hands a stream to whom it is for.
func (p *Port) serve(c net.Conn) {
	var first [1]byte
	_ = c.SetReadDeadline(time.Now().Add(helloTime))
	if _, err := io.ReadFull(c, first[:]); err != nil {
		c.Close()
		return
	}
	if first[0] != largeByte {
		_ = c.SetReadDeadline(time.Time{})
		p.cfg.Stream(&peeked{c, first[:]})
		return
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(largeTime))
	var head [largeHead]byte
	if _, err := io.ReadFull(c, head[1:]); err != nil {
		return
	}
	n := binary.LittleEndian.Uint32(head[4:])
	from := p.peer(resource.NodeID(binary.LittleEndian.Uint64(head[8:])))
	if n > MaxLarge || from == nil || from.epoch != binary.LittleEndian.Uint64(head[16:]) || p.epoch != binary.LittleEndian.Uint64(head[24:]) {
		p.count.Foreign.Add(1)
		return
	}
	var b bytes.Buffer // grows as the bytes come: an announced length alone costs nothing
	if got, err := io.CopyN(&b, c, int64(n)); got < int64(n) {
		p.log.Debug("port: stream", "from", from.addr, "err", err)
		return
	}
	if p.life.Err() == nil {
		p.received(b.Len() + largeHead)
		p.cfg.Receive(from.node, nil, b.Bytes())
	}
}

func (p *Port) sendLarge(to *peer, payload []byte) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if len(payload) > MaxLarge || p.life.Err() != nil {
		return
	}
	b := binary.LittleEndian.AppendUint32([]byte{largeByte, 0, 0, 0}, uint32(len(payload)))
	for _, v := range []uint64{uint64(p.cfg.Self), p.epoch, to.epoch} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, payload...)
	p.busy.Add(1)
	go func() {
		defer p.busy.Done()
		select {
		case p.large <- struct{}{}:
			defer func() { <-p.large }()
		case <-p.life.Done():
			return
		}
		c, err := p.Dial(p.life, to.node)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(largeTime))
			stop := context.AfterFunc(p.life, func() { c.Close() })
			_, err = c.Write(b)
			stop()
			c.Close()
		}
		if err != nil {
			p.log.Debug("port: sending", "to", to.addr, "err", err)
			return
		}
		p.count.Sent.Add(1)
		p.count.SentBytes.Add(uint64(len(b)))
	}()
}
