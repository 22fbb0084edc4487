// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

const (
	mboxFlags       = 0x3ff // the flags, below the index of PvmMboxDirectIndex
	mboxIndexShift  = 10
	noResetClass    = "###_PVM_NO_RESET_###"
	mboxEntryFlags  = tpvm.Persistent | tpvm.MultiInstance | tpvm.OverWritable | tpvm.FirstAvail
	mboxFirstAny    = -1 // the index of a call of PVM 3.3 that takes any entry
	mboxLookupFlags = tpvm.FirstAvail | tpvm.ReadAndDelete | tpvm.WaitForInfo
)

// A box is PVM's struct pvmmboxinfo: the entries of one name.
type box struct {
	name                   string
	indices, owners, flags []int
}

// putInfo stores the message of a buffer in the message box, and returns its index.
func (l *library) putInfo(ctx context.Context, name string, bufid, flags int) (int, error) {
	b, err := l.buffers.existing(bufid)
	if err != nil {
		return 0, err
	}
	if flags < 0 {
		return 0, badParam
	}
	m, err := b.packed()
	if err != nil {
		return 0, err
	}
	return l.put(ctx, name, flags>>mboxIndexShift, m, tpvm.InfoFlags(flags&mboxFlags))
}

func (l *library) put(ctx context.Context, name string, index int, m *pack.Buffer, flags tpvm.InfoFlags) (int, error) {
	if index > 0 {
		return l.task.PutInfoAt(ctx, name, index, m, flags&mboxEntryFlags)
	}
	return l.task.PutInfo(ctx, name, m, flags&mboxEntryFlags)
}

// recvInfo makes a message of the message box the active receive buffer.
func (l *library) recvInfo(ctx context.Context, name string, index, flags int) (int, error) {
	if index < 0 || flags < 0 {
		return 0, badParam
	}
	var m *tpvm.Message
	err := l.unlocked(func(t *tpvm.Task) (err error) {
		m, err = t.RecvInfo(context.Background(), name, index, tpvm.InfoFlags(flags)&mboxLookupFlags)
		return err
	})
	if err != nil {
		return 0, err
	}
	return l.buffers.received(&buffer{
		in: &m.Reader, msg: m, from: m.From(), info: minfo{len: len(m.Payload()), ctx: l.context, enc: int(m.Encoding())},
	}), nil
}

func (l *library) deleteInfo(ctx context.Context, name string, index int) error {
	if index < 0 {
		return badParam
	}
	return l.task.DelInfo(ctx, name, index)
}

// boxes returns the entries whose names match a pattern, in which an asterisk stands for any
// text. The pattern may match anywhere in a name.
func (l *library) boxes(ctx context.Context, pattern string) ([]box, error) {
	re, err := regexp.Compile(strings.ReplaceAll(strings.ReplaceAll(pattern, ".*", "*"), "*", ".*"))
	if err != nil {
		return nil, badParam
	}
	es, err := l.task.Infos(ctx, "*")
	if err != nil {
		return nil, err
	}
	var bs []box
	for _, e := range es {
		if !re.MatchString(e.Name) {
			continue
		}
		if len(bs) == 0 || bs[len(bs)-1].name != e.Name {
			bs = append(bs, box{name: e.Name})
		}
		owner, err := l.numbers.Number(ctx, e.Owner)
		if err != nil {
			return nil, err
		}
		b := &bs[len(bs)-1]
		b.indices, b.owners, b.flags = append(b.indices, e.Index), append(b.owners, owner), append(b.flags, int(e.Flags))
	}
	return bs, nil
}

// entries returns the entries of one name.
func (l *library) entries(ctx context.Context, name string) ([]tpvm.InfoEntry, error) {
	es, err := l.task.Infos(ctx, "^"+regexp.QuoteMeta(name)+"$")
	return es, err
}

// insert stores an int in the message box, as PVM 3.3 did: it never replaces an entry.
func (l *library) insert(ctx context.Context, name string, index, data int) (int, error) {
	if index < mboxFirstAny {
		return 0, badParam
	}
	m := pack.NewBuffer(pack.Default)
	if err := pack.PackOne(m, int32(data)); err != nil {
		return 0, err
	}
	es, err := l.entries(ctx, name)
	if err != nil {
		return 0, err
	}
	used := map[int]bool{}
	for _, e := range es {
		used[e.Index] = true
	}
	if index == mboxFirstAny {
		for index = 0; used[index]; {
			index++
		}
	}
	if used[index] {
		return 0, denied
	}
	return l.task.PutInfoAt(ctx, name, index, m, tpvm.Persistent|tpvm.MultiInstance)
}

// find returns the index and the int of an entry. index -1 stands for the first entry.
func (l *library) find(ctx context.Context, name string, index int) (int, int, error) {
	if index < mboxFirstAny {
		return 0, 0, badParam
	}
	es, err := l.entries(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	if index == mboxFirstAny && len(es) > 0 {
		index = es[0].Index
	}
	if !slices.ContainsFunc(es, func(e tpvm.InfoEntry) bool { return e.Index == index }) {
		return 0, 0, notFound
	}
	m, err := l.task.RecvInfo(ctx, name, index, 0)
	if err != nil {
		return 0, 0, err
	}
	defer m.Release()
	v, err := pack.UnpackOne[int32](&m.Reader)
	return index, int(v), err
}

// setNoReset records in the message box whether a reset spares the task.
func (l *library) setNoReset(ctx context.Context, on bool) error {
	es, err := l.entries(ctx, noResetClass)
	if err != nil {
		return err
	}
	own := slices.IndexFunc(es, func(e tpvm.InfoEntry) bool { return e.Owner == l.task.ID() })
	switch {
	case on && own < 0:
		m := pack.NewBuffer(pack.Default)
		if err := pack.PackOne(m, int32(l.tid)); err != nil {
			return err
		}
		_, err = l.task.PutInfo(ctx, noResetClass, m, tpvm.MultiInstance)
	case !on && own >= 0:
		err = l.task.DelInfo(ctx, noResetClass, es[own].Index)
	}
	return err
}

// noResets returns the numbers of the tasks that a reset spares.
func (l *library) noResets(ctx context.Context) ([]int, error) {
	es, err := l.entries(ctx, noResetClass)
	if err != nil {
		return nil, err
	}
	var ids []tpvm.TID
	for _, e := range es {
		ids = append(ids, e.Owner)
	}
	return l.toNumbers(ctx, ids)
}
