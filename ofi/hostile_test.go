// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// A forger is a peer that makes the handshake, and then sends what it likes.
type forger struct {
	control net.Conn
	ep      *fabric.Endpoint
	at      fabric.Address
	number  uint64 // of the connection in messages to the other end
	mem     []byte
}

func forge(t *testing.T, provider, to string) *forger {
	t.Helper()
	host := "127.0.0.1"
	if provider == "shm" {
		host = ""
	}
	f := &forger{ep: try.Get(fabric.Open(provider, host, 16))(t), mem: try.Get(fabric.Map(1 << 16))(t)}
	t.Cleanup(func() {
		f.ep.Close()
		fabric.Unmap(f.mem)
	})
	f.control = try.Get(net.Dial("tcp", strings.TrimPrefix(to, ofi.New(provider).Name()+"://")))(t)
	t.Cleanup(func() { f.control.Close() })
	var far []byte
	f.number, far = greet(t, f.control, provider, f.ep.Name())
	f.at = try.Get(f.ep.Insert(far))(t)
	return f
}

// greeting returns what the dialling side says first.
func greeting(provider string, name []byte) []byte {
	b := append([]byte("rocl-ofi"), 1, byte(len(provider)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
	b = binary.LittleEndian.AppendUint64(b, 77)
	return append(append(b, provider...), name...)
}

// greet makes the handshake of an endpoint with a name. It returns the number of the connection in
// messages to the other end, and the name of the other endpoint.
func greet(t *testing.T, c net.Conn, provider string, name []byte) (number uint64, far []byte) {
	t.Helper()
	try.Get(c.Write(greeting(provider, name)))(t)
	reply := make([]byte, 20)
	try.OK(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	try.Get(io.ReadFull(c, reply))(t)
	far = make([]byte, int(reply[9])+int(binary.LittleEndian.Uint16(reply[10:])))
	try.Get(io.ReadFull(c, far))(t)
	return binary.LittleEndian.Uint64(reply[12:]), far[reply[9]:]
}

// poll makes progress.
func (f *forger) poll() {
	var c [4]fabric.Completion
	_, _ = f.ep.Poll(c[:])
}

// post begins to send a message, and ignores whether that succeeds.
func (f *forger) post(conn uint64, seq uint32, records []byte) {
	_ = f.ep.Send(1, f.mem[:f.put(conn, seq, 0, 0, records)], 0, f.at)
}

// send sends a message with the given head and records.
func (f *forger) send(t *testing.T, conn uint64, seq, consumed, reads uint32, records []byte) {
	t.Helper()
	f.raw(t, f.put(conn, seq, consumed, reads, records))
}

// put writes a message, and returns its length.
func (f *forger) put(conn uint64, seq, consumed, reads uint32, records []byte) int {
	b := binary.LittleEndian.AppendUint64(f.mem[:0], conn)
	for _, v := range []uint32{seq, consumed, reads, 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return len(append(b, records...))
}

// raw sends the first n bytes of the memory.
func (f *forger) raw(t *testing.T, n int) {
	t.Helper()
	var c [4]fabric.Completion
	isSent := false
	eventually.True(t, "the message is sent", func() bool {
		if !isSent {
			err := f.ep.Send(1, f.mem[:n], 0, f.at)
			if isSent = err == nil; !isSent && !errors.Is(err, fabric.ErrAgain) {
				t.Fatal(err)
			}
		}
		k, _ := f.ep.Poll(c[:])
		return isSent && k > 0
	})
}

// A peer that has made the handshake and then breaks the protocol ends its own connection. Messages
// that belong to no connection are dropped.
func TestForgedMessages(t *testing.T) {
	record := func(f func(*subsys.Header), more ...byte) []byte {
		h := subsys.Header{Type: 16}
		f(&h)
		b := make([]byte, subsys.HeaderLen)
		h.Put(b)
		return append(b, more...)
	}
	good := record(func(*subsys.Header) {})
	large := record(func(h *subsys.Header) { h.Len = 1 << 20 }, make([]byte, 16)...)
	large[6] = 1
	overEach(t, func(t *testing.T, provider string) {
		if provider != "tcp;ofi_rxm" && provider != "shm" {
			t.Skip("what a connection makes of a message does not depend on the provider")
		}
		e := try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, e.close()) }()
		for name, c := range map[string]struct {
			seq, consumed, reads uint32
			records              []byte
			want                 error
		}{
			"a number ahead of the window": {32, 0, 0, good, subsys.ErrProtocol},
			"a number that was":            {^uint32(0), 0, 0, good, subsys.ErrProtocol},
			"consumed more than was sent":  {0, 1, 0, good, subsys.ErrProtocol},
			"read more than was sent":      {0, 0, 1, nil, subsys.ErrProtocol},
			"a cut header":                 {0, 0, 0, good[:31], subsys.ErrProtocol},
			"a cut payload":                {0, 0, 0, record(func(h *subsys.Header) { h.Len = 10 }, 1, 2, 3), subsys.ErrProtocol},
			"a large length":               {0, 0, 0, record(func(h *subsys.Header) { h.Len = 1<<32 - 1 }, 1), subsys.ErrProtocol},
			"a cut locator":                {0, 0, 0, large[:40], subsys.ErrProtocol},
			"a key of no region":           {0, 0, 0, large, subsys.ErrPeerClosed},
		} {
			f := forge(t, provider, e.port.Addr())
			s := eventually.Value(t, "a connection", e.accepted)
			f.send(t, f.number^1, 0, 0, 0, good) // to no connection
			f.mem[0] = 1
			f.raw(t, 5)
			f.send(t, f.number, c.seq, c.consumed, c.reads, c.records)
			stop := make(chan struct{})
			go func() { // the provider may need the progress of both ends to report a failure
				defer close(stop)
				_, _ = io.Copy(io.Discard, f.control)
				f.control.Close()
			}()
			err := eventually.Value(t, "the end", s.down)
			<-stop
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			if s.frames.Load() > 0 {
				t.Errorf("%s: was delivered", name)
			}
		}
	})
}
