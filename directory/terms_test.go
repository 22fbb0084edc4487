// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// Terms arrive unchanged, whatever else is in their list.
func TestTermsTravel(t *testing.T) {
	for _, want := range []Terms{
		{Keys: [][]byte{{1}}},
		{Keys: [][]byte{{1, 2, 3}, {}, {4}}, Member: true, Cluster: "blue", Host: "10.0.0.7", Sealed: true},
		{Keys: [][]byte{make([]byte, 32)}, Member: true},
		{Keys: [][]byte{{9}}, Host: "fd00::7"},
		{Keys: [][]byte{{9}}, Member: true, Sealed: true, Certificates: true},
	} {
		l := want.list()
		try.OK(t, l.AddString("of a later version", "x"))
		got, err := parseTerms(&l)
		if err != nil || !got.equal(&want) {
			t.Errorf("%+v came as %+v: %v", want, got, err)
		}
	}
	try.Fails(parseTerms(new(resource.List)))(t, ErrProtocol) // terms without a key
}

// Contexts are told new terms at once and in order, also between other answers. A context that
// stops reading delays no other one.
func TestTermsChange(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	own := s.id.LinkKey()
	heard := make(chan Terms, 1000)
	c := joined(t, path, WithTerms(func(t Terms) { heard <- t }))
	if got := <-heard; len(got.Keys) != 1 || string(got.Keys[0]) != string(own[:]) || got.Member || got.Host != "" || got.Sealed {
		t.Errorf("terms of a node in no cluster: %+v", got)
	}
	k := raw(t, DialSocket(path), wire.KindRegistration) // of a context that does not read
	k.Begin(wire.MsgJoin, 0)
	k.Append(make([]byte, 48))
	k.Append(new(resource.List).Wire())
	try.OK(t, k.Send())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 200 {
			try.Works(c.Register(t.Context(), c.Self().WithSerial(uint32(i+1)), list(t, resource.Attrs{"i": fmt.Sprint(i)})))(t)
		}
	})
	const last = 2000
	for i := 1; i <= last; i++ {
		var key [32]byte
		binary.BigEndian.PutUint32(key[:], uint32(i))
		s.SetLinkKeys(key, own)
	}
	wg.Wait()
	before := uint32(0)
	for before < last {
		k := (<-heard).Keys
		if len(k) != 2 || string(k[1]) != string(own[:]) {
			t.Fatalf("keys %x", k)
		}
		n := binary.BigEndian.Uint32(k[0])
		if n <= before {
			t.Fatalf("key %d after %d", n, before)
		}
		before = n
	}
	if got := c.Terms().Keys[0]; binary.BigEndian.Uint32(got) != last {
		t.Errorf("the client has key %x", got)
	}
	// Terms that have not changed are not told again.
	s.SetTerms(c.Terms())
	s.SetTerms(Terms{Keys: [][]byte{{1}}, Member: true, Cluster: "x", Host: "10.0.0.7", Sealed: true})
	if got := <-heard; got.Cluster != "x" || got.Host != "10.0.0.7" || !got.Sealed || !got.Member {
		t.Errorf("terms %+v", got)
	}
	// A context that joins later has the terms from the beginning.
	if late := joined(t, path).Terms(); late.Cluster != "x" || len(late.Keys) != 1 {
		t.Errorf("terms %+v", late)
	}
}
