// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
)

// A stream is a way to move large messages over a bare TCP connection. The machine decides which
// one is the fastest, so bw tries all of them and compares with the fastest.
type stream struct {
	isPolled bool
	buffers  int // bytes of the socket's buffers; 0: the kernel's default
}

func (s stream) String() string {
	how, size := "blocking", "the kernel's"
	if s.isPolled {
		how = "polled"
	}
	if s.buffers > 0 {
		size = strconv.Itoa(s.buffers>>10) + " KiB"
	}
	return fmt.Sprintf("%s, with socket buffers of %s", how, size)
}

// what returns what is measured with the stream, if it is the fastest of streams.
func (s stream) what() string { return "the best of eight bare Go loops: " + s.String() }

var streams = func() (all []stream) {
	for _, size := range []int{0, 256 << 10, 1 << 20, 4 << 20} {
		all = append(all, stream{false, size}, stream{true, size})
	}
	return all
}()

// bulkBlock is how many bytes the bare loops read at once.
const bulkBlock = 1 << 20

// prepare sets up a separate connection for a stream. Closing its result closes the connection.
func (s stream) prepare(nc *net.TCPConn) (io.ReadWriteCloser, error) {
	if s.buffers > 0 {
		if err := nc.SetReadBuffer(s.buffers); err != nil {
			return nil, err
		}
		if err := nc.SetWriteBuffer(s.buffers); err != nil {
			return nil, err
		}
	}
	if !s.isPolled {
		return nc, nil
	}
	p, err := newPolled(nc)
	if err != nil {
		return nil, err
	}
	return &bothClosed{p, nc}, nil
}

// bothClosed is a polled socket and the connection of which it is a duplicate. Close closes both.
type bothClosed struct {
	*polled
	nc *net.TCPConn
}

func (b *bothClosed) Close() error {
	err := b.nc.Close()
	if e := b.polled.Close(); err == nil {
		err = e
	}
	return err
}

// sendBulk writes b count times, and waits for one byte.
func sendBulk(rw io.ReadWriter, b []byte, count int) error {
	for range count {
		if _, err := rw.Write(b); err != nil {
			return err
		}
	}
	var ack [1]byte
	_, err := io.ReadFull(rw, ack[:])
	return err
}

// recvBulk reads count messages of size bytes, and writes one byte. It fills memory again and
// again, a block at a time.
func recvBulk(rw io.ReadWriter, memory []byte, size, count int) error {
	at, block := 0, min(bulkBlock, len(memory))
	for range count {
		for left := size; left > 0; {
			if at+block > len(memory) {
				at = 0
			}
			n, err := rw.Read(memory[at : at+min(left, block)])
			if err != nil {
				return err
			}
			left -= n
			at += n
		}
	}
	_, err := rw.Write([]byte{1})
	return err
}

// What the receiver of a bare loop reads into.
const (
	intoBlock  = "recv-block"  // always the same block
	intoMemory = "recv-memory" // memory as long as a message
)

// moved returns how many bytes a second a stream moves, with count messages b over a separate
// connection.
func (p *pair) moved(s stream, into string, b []byte, count int) (float64, error) {
	kind := 0
	if s.isPolled {
		kind = 1
	}
	if err := p.begin(into, count, kind, s.buffers); err != nil {
		return 0, err
	}
	var d net.Dialer
	nc, err := d.DialContext(p.ctx, "tcp", p.bulk)
	if err != nil {
		return 0, err
	}
	tc := nc.(*net.TCPConn)
	stop := context.AfterFunc(p.ctx, func() { hangUp(tc) })
	defer stop()
	rw, err := s.prepare(tc)
	if err != nil {
		tc.Close()
		return 0, err
	}
	defer rw.Close()
	start := time.Now()
	if err := sendBulk(rw, b, count); err != nil {
		return 0, err
	}
	rate := float64(len(b)) * float64(count) / time.Since(start).Seconds()
	return rate, p.wait()
}

// bestStream tries each stream once and returns the fastest.
func (p *pair) bestStream(b []byte, count int) (best stream, err error) {
	most := 0.0
	for _, s := range streams {
		rate, err := p.moved(s, intoBlock, b, count)
		if err != nil {
			return best, err
		}
		if rate > most {
			best, most = s, rate
		}
	}
	return best, nil
}

func bwTCP(p *pair, o *options) (*Result, error) {
	big := make([]byte, max(o.size, 1))
	for i := range big {
		big[i] = byte(i)
	}
	best, err := p.bestStream(big, max(o.count/4, 1))
	if err != nil {
		return nil, err
	}
	var bare, ours []float64
	for range o.rounds + 1 {
		rate, err := p.moved(best, intoBlock, big, o.count)
		if err != nil {
			return nil, err
		}
		bare = append(bare, rate)
		if rate, err = p.poured("recv", o, nil); err != nil {
			return nil, err
		}
		ours = append(ours, rate)
	}
	r := &Result{Bench: "bw", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "bytes/s",
		What: best.what(), Rate: median(ours[1:]), Raw: median(bare[1:]), Target: 0.9, AtLeast: true,
		Extra: "the receiver of both reads no byte of a message; each message of the library's is received into a buffer of its own, those of the bare loop into the same block"}
	r.Ratio = r.Rate / r.Raw
	return r, nil
}

// poured returns how many bytes a second the library moves. The sender copies each message from
// source, if that is not nil.
func (p *pair) poured(task string, o *options, source []byte) (float64, error) {
	if err := p.begin(task, o.count); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := pour(p.ctx, p.c, p.me, p.peer, o.size, o.count, source); err != nil {
		return 0, err
	}
	if err := p.ack([]*rocl.Resource{p.me}); err != nil {
		return 0, err
	}
	rate := float64(o.size) * float64(o.count) / time.Since(start).Seconds()
	return rate, p.wait()
}

// bwShared measures bw over shared memory: the sender writes every byte, and the receiver reads
// every byte.
func bwShared(p *pair, o *options) (*Result, error) {
	source, to := make([]byte, o.size), make([]byte, o.size)
	for i := range source {
		source[i] = byte(i)
	}
	var bare, ours []float64
	for range o.rounds + 1 {
		bare = append(bare, copyRate(to, source, o.count))
		rate, err := p.poured("recv-read", o, source)
		if err != nil {
			return nil, err
		}
		ours = append(ours, rate)
		if p.ctx.Err() != nil {
			return nil, context.Cause(p.ctx)
		}
	}
	r := &Result{Bench: "bw", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "bytes/s",
		What: "memcpy, of one goroutine", Rate: median(ours[1:]), Raw: median(bare[1:]),
		Extra: "the sender writes every byte, and the receiver reads every byte"}
	r.Ratio = r.Rate / r.Raw
	return r, nil
}
