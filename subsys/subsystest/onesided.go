// SPDX-License-Identifier: Apache-2.0

package subsystest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/internal/harness"
)

// exposed returns the key of memory of a node, and what closes the exposure. The test is skipped if
// the transport has none.
func exposed(t *testing.T, n *node, mem []byte, access subsys.Access) (key []byte, end func()) {
	t.Helper()
	p, ok := n.Port.(subsys.Exposer)
	if !ok {
		t.Skip("the transport has no one-sided transfers")
	}
	x, err := p.Expose(mem, access)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	try.OK(t, err)
	if k := len(x.Key()); k == 0 || k > subsys.MostKey {
		t.Errorf("the key has %d bytes", k)
	}
	return bytes.Clone(x.Key()), x.Close
}

// An oneSidedEnd begins operations, and has what they gave to done.
type oneSidedEnd struct {
	subsys.OneSided
	done chan error
}

func (e *oneSidedEnd) wants(t *testing.T, n int) {
	t.Helper()
	for range n {
		try.OK(t, eventually.Value(t, "the end of an operation", e.done))
	}
}

// oneSided checks that each end reads and writes memory that the other exposes, several operations
// at a time, beside frames.
func oneSided(t *testing.T, o Options, d harness.Drive) {
	a, b, near, far := two(t, o, d)
	try.OK(t, near.send(frame(0, nil))) // the accepted end is started
	far.want(1)
	for _, c := range []struct {
		n *node
		s *sink
	}{{b, near}, {a, far}} {
		mem := make([]byte, 100_000)
		fill(mem, 1)
		key, end := exposed(t, c.n, mem, subsys.MayRead|subsys.MayWrite)
		e := oneSidedEnd{c.s.conn.(subsys.OneSided), make(chan error, 100)}
		done := func(err error) { e.done <- err }
		var all [][]byte
		for i := range 100 {
			all = append(all, make([]byte, 1+i*len(mem)/100))
			try.OK(t, e.ReadMemory(all[i], key, uint64(i), done))
		}
		e.wants(t, len(all))
		for i, p := range all {
			if !bytes.Equal(p, mem[i:][:len(p)]) {
				t.Fatalf("%d bytes at %d are wrong", len(p), i)
			}
		}
		want := make([]byte, len(mem))
		fill(want, 2)
		c.n.Hold.Lock() // the owner of the memory finds many writes at once
		for range 20 {
			for at := 0; at < len(want); at += 25_000 {
				try.OK(t, e.WriteMemory(want[at:at+25_000], key, uint64(at), done))
			}
		}
		c.n.Hold.Unlock()
		e.wants(t, 80)
		if !bytes.Equal(mem, want) {
			t.Error("the bytes are not there when the write has ended")
		}
		one := make([]byte, 2)
		for _, bad := range []struct {
			key []byte
			off uint64
		}{{key, uint64(len(mem)) - 1}, {key, uint64(len(mem))}, {key, 1<<64 - 1}, {key[:len(key)-1], 0}, {nil, 0}} {
			if err := e.ReadMemory(one, bad.key, bad.off, done); err == nil {
				t.Errorf("a read at %d with a key of %d bytes begins", bad.off, len(bad.key))
			}
		}
		end()
		end()
	}
	try.OK(t, near.send(frame(1, nil)))
	far.want(2)
}

// oneSidedRefused checks that nothing is done that is not allowed, and that each operation ends
// when the port is closed at the latest.
func oneSidedRefused(t *testing.T, o Options, d harness.Drive) {
	a, b, near, _ := two(t, o, d)
	mem, got, src := make([]byte, 3000), make([]byte, 1000), make([]byte, 1000)
	fill(src, 1)
	writable, _ := exposed(t, b, mem[:1000], subsys.MayWrite)
	readable, _ := exposed(t, b, mem[1000:2000], subsys.MayRead)
	both, end := exposed(t, b, mem[2000:], subsys.MayRead|subsys.MayWrite)
	fill(mem[:1000], 2)
	fill(mem[2000:], 2)
	want := bytes.Clone(mem)
	end()
	e := oneSidedEnd{near.conn.(subsys.OneSided), make(chan error, 4)}
	begun := 0
	for _, err := range []error{
		e.WriteMemory(src, readable, 0, func(err error) { e.done <- err }),
		e.ReadMemory(got, writable, 0, func(err error) { e.done <- err }),
		e.ReadMemory(got, both, 0, func(err error) { e.done <- err }),
		e.WriteMemory(src, both, 0, func(err error) { e.done <- err }),
	} {
		if err == nil { // else the connection has ended
			begun++
		}
	}
	a.close()
	for range begun {
		if eventually.Value(t, "the end of an operation", e.done) == nil {
			t.Error("an operation that is not allowed succeeds")
		}
	}
	if !bytes.Equal(mem, want) || !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("bytes were copied nevertheless")
	}
}
