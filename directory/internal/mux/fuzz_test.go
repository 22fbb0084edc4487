// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// target returns a port whose incarnation is always the same, and which knows member 1. sealed
// seals as member 1 does.
func target(f *testing.F) (n *node, k *keys, sealed func(kind byte, n uint64, plain []byte) []byte) {
	n = try.Get(attempt(2, func(c *Config) {
		c.Cluster = "lab"
		keyed("a key of 16 byte")(c)
		c.Stream = func(c net.Conn) { _, _ = io.Copy(io.Discard, c); c.Close() }
	}))(f)
	f.Cleanup(func() { n.Close() })
	n.epoch = 0x2222
	n.Meet(1, 0x1111, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	k = n.keys.Load()
	return n, k, func(kind byte, c uint64, plain []byte) []byte {
		switch kind {
		case kindCast:
			return seal(nil, k.cipher(derive(k.bytes[0], "cast", 1, 0x1111)), kind, k.tags[0], 1, c, plain)
		case kindBeacon:
			return seal(nil, k.cipher(derive(k.bytes[0], "beacon")), kind, k.tags[0], 1, c, plain)
		}
		return seal(nil, k.cipher(derive(k.bytes[0], "one", 1, 0x1111, 2, 0x2222)), kind, k.tags[0], 1, c, plain)
	}
}

func someSeeds(sealed func(byte, uint64, []byte) []byte) (valid [][]byte) {
	return [][]byte{
		sealed(kindOne, 7, []byte("\x00hello")), sealed(kindOne, 8, binary.LittleEndian.AppendUint64([]byte{plainFloor}, 5)), sealed(kindOne, 9, []byte{plainAskFloor}),
		sealed(kindCast, 7, []byte("hello")), sealed(kindBeacon, 7, []byte{1, 2}), sealed(kindBeacon, 8, nil),
		sealed(kindLarge, 7, []byte{5, 0, 0, 0}), sealed(kindBody, 8, []byte("hello")),
	}
}

// FuzzDatagram gives a port any bytes as a datagram, and the same bytes sealed by a lying member,
// so that they pass the seal. Without the seal, nothing is received that a member has not sealed.
func FuzzDatagram(f *testing.F) {
	n, _, sealed := target(f)
	valid := someSeeds(sealed)
	for _, b := range valid {
		f.Add(b)
		for _, at := range []int{0, 1, 2, 4, 12, headLen, len(b) - 1} {
			changed := bytes.Clone(b)
			changed[at] ^= 0x10
			f.Add(changed)
		}
		f.Add(b[:len(b)-1])
		f.Add(append(bytes.Clone(b), 0))
	}
	f.Add([]byte{gossipByte, 4, 'r', 'o', 'c', 'l'})
	from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 99}
	count := uint64(0)
	f.Fuzz(func(t *testing.T, b []byte) {
		genuine := len(b) > 0 && b[0] == gossipByte
		for _, v := range valid {
			genuine = genuine || bytes.Equal(v, b)
		}
		c := &n.count
		foreign, heard := c.Foreign.Load(), c.Received.Load()
		n.datagram(bytes.Clone(b), from)
		ours := len(b) >= overhead && b[0] == magic && senderOf(b) == 2 // looks like the port's own cast
		if !genuine && !ours && c.Foreign.Load() != foreign+1 || !genuine && c.Received.Load() != heard {
			t.Fatalf("%x is believed", b)
		}
		drain(n.packets)
		if len(b) == 0 {
			return
		}
		count++
		n.datagram(sealed(b[0]%7, 1000+count, b[1:]), from)
		drain(n.got)
		drain(n.beacons)
	})
}

// FuzzStream gives a port any bytes as a stream, and the same bytes behind a head that a member has
// sealed.
func FuzzStream(f *testing.F) {
	n, _, sealed := target(f)
	count := uint64(0)
	valid := append(append([]byte{largeByte}, sealed(kindLarge, 7, []byte{5, 0, 0, 0})...), sealed(kindBody, 8, []byte("hello"))...)
	f.Add(valid)
	f.Add(valid[:1+largeHead])
	f.Add([]byte{gossipByte, 4, 'r', 'o', 'c', 'l'})
	f.Add([]byte("any other stream"))
	f.Add([]byte{0x16, 3, 1, 2, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	for _, at := range []int{1, 2, 3, 5, 13, 22, 40, 42, 60, len(valid) - 1} {
		b := bytes.Clone(valid)
		b[at] ^= 0x10
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		heard := n.count.Received.Load()
		greetWith(t, n, b)
		if n.count.Received.Load() != heard && !bytes.HasPrefix(b, valid) {
			t.Fatalf("%x is believed", b)
		}
		count += 10
		size := make([]byte, 4)
		copy(size, b)
		greetWith(t, n, append(append([]byte{largeByte}, sealed(kindLarge, 1000+count, size)...), b...))
		greetWith(t, n, bytes.Join([][]byte{{largeByte}, sealed(kindLarge, 1005+count, size), sealed(kindBody, 1006+count, b)}, nil))
		drain(n.got)
		if n.waiting.Len() > 0 {
			t.Fatal("a stranger is left")
		}
	})
}

func greetWith(t *testing.T, n *node, b []byte) {
	here, there := net.Pipe()
	_ = there.SetDeadline(time.Now().Add(testTimeout))
	go func() {
		_, _ = there.Write(b)
		there.Close()
	}()
	s := n.admitStranger(here)
	taken := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case c := <-n.streams:
			c.Close()
		case <-taken:
		}
	}()
	if err := n.greet(s); err != nil {
		s.Close()
	}
	close(taken)
	<-done
}
