// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"net"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/internal/testkit/vectors"
	"github.com/rocl-go/rocl/resource"
)

// sent is a connection that keeps what is written to it.
type sent struct {
	net.Conn
	b []byte
}

func (s *sent) Write(p []byte) (int, error) {
	s.b = append(s.b, p...)
	return len(p), nil
}

// attrs returns a list of names and values.
func attrs(t *testing.T, pairs ...string) *resource.List {
	l := new(resource.List)
	for p := range slices.Chunk(pairs, 2) {
		try.OK(t, l.AddString(p[0], p[1]))
	}
	return l
}

// The messages of the directory must stay.
func TestVectors(t *testing.T) {
	var (
		me     = resource.MakeGID(1, 2, 0)
		one    = resource.MakeGID(1, 2, 3)
		token  = bytes.Repeat([]byte{7}, 32)
		worker = attrs(t, "type", "worker")
		empty  = new(resource.List)
		record = resource.Record{ID: one, Owner: me, Revision: 4, Attrs: *worker}
		terms  = attrs(t, "key", "0123456789abcdef0123456789abcdef", "cluster", "lab", "host", "10.0.0.1", "sealed", "")
		offers = attrs(t, "offers", "\x02\x00\x00\x00\x00\x00\x00\x00")
	)
	all := []vectors.Vector{vectors.Of("greeting", Greeting(KindRegistration), map[string]any{"kind": KindRegistration})}
	add := func(name string, typ byte, id uint64, body func(*Builder), fields map[string]any) {
		var b Builder
		b.Begin(typ, id)
		if body != nil {
			body(&b)
		}
		if fields == nil {
			fields = map[string]any{}
		}
		fields["type"], fields["id"] = typ, id
		all = append(all, vectors.Of(name, b.Finish(), fields))
	}
	tokenHex := hex.EncodeToString(token)
	add("join as a new context", MsgJoin, 1, func(b *Builder) { b.GID(resource.GID{}); b.Append(make([]byte, 32)); b.Append(empty.Wire()) }, nil)
	add("join again, and offer two resources", MsgJoin, 1, func(b *Builder) { b.GID(me); b.Append(token); b.Append(offers.Wire()) },
		map[string]any{"context": me, "token": tokenHex, "offers": 2})
	add("register", MsgRegister, 2, func(b *Builder) { b.GID(one); b.U64(0); b.Append(worker.Wire()) }, map[string]any{"identifier": one, "revision": 0, "list": worker.String()})
	add("update", MsgUpdate, 3, func(b *Builder) { b.GID(one); b.U64(1); b.Append(worker.Wire()) }, map[string]any{"identifier": one, "revision": 1, "list": worker.String()})
	add("delete", MsgDelete, 4, func(b *Builder) { b.GID(one) }, map[string]any{"identifier": one})
	add("leave", MsgLeave, 5, nil, nil)
	add("find", MsgFind, 1, func(b *Builder) { b.Append(worker.Wire()) }, map[string]any{"pattern": worker.String()})
	add("lookup", MsgLookup, 2, func(b *Builder) { b.GID(me); b.Append(empty.Wire()) }, map[string]any{"identifier": me})
	add("stop", MsgStop, 3, nil, nil)
	add("watch", MsgWatch, 1, func(b *Builder) { b.Append(worker.Wire()) }, map[string]any{"pattern": worker.String()})
	add("joined", MsgJoined, 1, func(b *Builder) { b.GID(me); b.Append(token); b.Append(terms.Wire()) }, map[string]any{"context": me, "token": tokenHex, "terms": terms.String()})
	add("done", MsgDone, 2, func(b *Builder) { b.U64(1) }, map[string]any{"revision": 1})
	add("answer", MsgAnswer, 1, func(b *Builder) { b.Record(&record, empty) }, map[string]any{"identifier": one, "owner": me, "revision": 4, "list": worker.String()})
	add("terms", MsgTerms, 0, func(b *Builder) { b.Append(terms.Wire()) }, map[string]any{"terms": terms.String()})
	add("trace", MsgTrace, 4, func(b *Builder) { b.Append([]byte{1}); b.Append(worker.Wire()) }, map[string]any{"strategy": 1, "pattern": worker.String()})
	add("index", MsgIndex, 1, func(b *Builder) { b.GID(me); b.Append(token) }, map[string]any{"context": me, "token": tokenHex})
	add("list", MsgList, 5, func(b *Builder) { b.Append(worker.Wire()) }, map[string]any{"pattern": worker.String()})
	add("more", MsgMore, 6, nil, nil)
	add("batch of one", MsgBatch, 5, func(b *Builder) { b.BatchRecord(&record, empty) }, map[string]any{"identifier": one, "owner": me, "revision": 4, "list": worker.String()})
	add("sum", MsgSum, 7, func(b *Builder) { b.U64(9) }, map[string]any{"node": 9})
	add("beat", MsgBeat, 0, nil, nil)
	var b Builder
	b.Event(1, &database.Event{Kind: database.Appeared, Record: record}, empty)
	all = append(all, vectors.Of("event", b.Finish(), map[string]any{"type": MsgEvent, "id": 1, "kind": 1, "identifier": one, "owner": me, "revision": 4, "list": worker.String()}))
	b.Event(1, &database.Event{Kind: database.Synced}, empty)
	all = append(all, vectors.Of("event synced", b.Finish(), map[string]any{"type": MsgEvent, "id": 1, "kind": 4}))
	c := sent{}
	try.OK(t, NewConn(&c).SendError(1, ErrNotFound))
	all = append(all, vectors.Of("error", c.b, map[string]any{"type": MsgError, "id": 1, "code": 1, "text": ErrNotFound.Error()}))
	c.b = nil
	try.OK(t, NewConn(&c).SendEnd(6, 3, []resource.NodeID{9}))
	all = append(all, vectors.Of("end", c.b, map[string]any{"type": MsgEnd, "id": 6, "covered": 3, "failed": []int{9}}))
	vectors.Check(t, "directory", all)
}
