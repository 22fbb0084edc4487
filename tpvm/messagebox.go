// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// InfoFlags are options of PutInfo and RecvInfo. The numbers are those of PVM.
type InfoFlags uint32

// The flags of the message box. The first three belong to an entry, and are given to PutInfo. The
// other flags are given to RecvInfo.
const (
	// Persistent keeps the entry when its owner has ended; see PutInfo.
	Persistent InfoFlags = 1 << iota
	// MultiInstance permits several entries of one name, each with its own index.
	MultiInstance
	// OverWritable permits other tasks and threads to replace and to delete the entry.
	OverWritable
	// FirstAvail receives the entry with the lowest index that is not less than the given one.
	FirstAvail
	// ReadAndDelete deletes the entry that is received. If several receivers ask for it, one gets
	// it.
	ReadAndDelete
	// WaitForInfo waits until there is such an entry.
	WaitForInfo

	putFlags  = Persistent | MultiInstance | OverWritable | FirstAvail // the last one is only listed, as with PVM
	recvFlags = FirstAvail | ReadAndDelete | WaitForInfo
)

// smallInfo is the size in bytes up to which a message is an attribute of its entry, in the
// directory. A larger one is fetched from the task that keeps the entry.
const smallInfo = 16 << 10

// MaxInfo is the size in bytes of the largest message in the message box.
const MaxInfo = 64 << 20

// Attributes of an entry, besides the name.
const (
	attrIndex = "index"
	attrOwner = "owner"
	attrFlags = "flags"
	attrInfo  = "message"
	attrIdent = "entry" // the identity of an entry that has moved
)

// An InfoEntry describes an entry of the message box.
type InfoEntry struct {
	Name  string
	Index int
	Owner TID // zero: the owner has ended
	Flags InfoFlags
}

// foundInfo is an entry that was found in the directory.
type foundInfo struct {
	InfoEntry
	id, pod TID // of the entry's resource, and of the pod that keeps it
	first   TID // the identity, if that is not id
	data    []byte
	hasData bool
}

// foundInfoOf returns the entry of a resource. ok is false if its attributes are invalid.
func foundInfoOf(f rocl.Found) (i foundInfo, ok bool) {
	n, err := strconv.Atoi(attr(f, attrIndex))
	flags, err2 := strconv.ParseUint(attr(f, attrFlags), 10, 32)
	owner, err3 := rocl.ParseGID(attr(f, attrOwner))
	pod, err4 := rocl.ParseGID(attr(f, attrPod))
	i = foundInfo{InfoEntry: InfoEntry{Name: attr(f, attrName), Index: n, Owner: owner, Flags: InfoFlags(flags)}, id: f.ID, pod: pod}
	if attr(f, attrOwner) == noOwner {
		i.Owner, err3 = TID{}, nil
	}
	i.data, i.hasData = f.Attrs.Get(attrInfo)
	var err5 error
	if s, is := f.Attrs.Get(attrIdent); is {
		i.first, err5 = rocl.ParseGID(string(s))
	}
	return i, errors.Join(err, err2, err3, err4, err5) == nil && n >= 0
}

// ident returns the identity of the entry.
func (i *foundInfo) ident() TID {
	if i.first.IsZero() {
		return i.id
	}
	return i.first
}

// noOwner is the value of attrOwner if the owner has ended.
const noOwner = "none"

// infos returns the entries that match m, sorted by name and index. While an entry moves from one
// task to another, there may be two of it; infos returns one. partial is not nil if a node did not
// answer; see absent.
func (t *Task) infos(ctx context.Context, m rocl.Match, opts ...rocl.FindOption) (is []foundInfo, partial, err error) {
	opts = append(opts, rocl.Want(attrName, attrIndex, attrOwner, attrFlags, attrPod, attrIdent))
	for f, err := range t.findNoting(ctx, &partial, t.match(typeInfo, m), opts...) {
		if err != nil {
			return nil, nil, err
		}
		if i, ok := foundInfoOf(f); ok {
			is = append(is, i)
		}
	}
	slices.SortStableFunc(is, func(a, b foundInfo) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Index, b.Index))
	})
	return slices.CompactFunc(is, func(a, b foundInfo) bool { return a.Name == b.Name && a.Index == b.Index }), partial, nil
}

// PutInfo stores the values of b in the message box of the virtual machine, under a name, for
// RecvInfo by any task or thread. The thread owns the entry, which is deleted when its owner has
// ended. The result is the entry's index: 0, or with MultiInstance the lowest free index.
//
// If the name has an entry already, PutInfo without MultiInstance replaces that if the thread owns
// it or it is OverWritable. Otherwise PutInfo fails with ErrDenied and ErrEntryExists.
//
// A Persistent entry stays when its owner has ended, and has no owner then. No daemon keeps it. The
// owner's task keeps the entry and a second task keeps a copy, in another process if there is one.
// If the owner's task ends, the second takes over and copies the entry to a third. The entry is
// lost when the last task exits, or when both processes die within milliseconds. PutInfo waits up
// to some seconds until the copy is made; after that the task goes on trying. Observers keep no
// copies. While the second task takes over from a killed one, RecvInfo does not find the entry. If
// another entry gets its index meanwhile, the entry gets the next free one. An OverWritable entry
// is replaced instead, if both are put without MultiInstance.
func (t *Thread) PutInfo(ctx context.Context, name string, b *pack.Buffer, flags InfoFlags) (index int, err error) {
	return t.PutInfoAt(ctx, name, 0, b, flags)
}

// PutInfoAt is PutInfo that begins at an index (PvmMboxDirectIndex). Without MultiInstance the
// entry gets that index. With MultiInstance it gets the lowest free index that is not less.
func (t *Thread) PutInfoAt(ctx context.Context, name string, index int, b *pack.Buffer, flags InfoFlags) (_ int, err error) {
	defer wrap(&err, "tpvm: put %q[%d] into the message box", name, index)
	if index < 0 || flags&^putFlags != 0 {
		return 0, badParam("a negative index, or flags %#x that PutInfo does not have", flags)
	}
	data, err := encodeInfo(b)
	if err != nil {
		return 0, err
	}
	return t.put(ctx, infoContent{InfoEntry: InfoEntry{Name: name, Index: index, Owner: t.ID(), Flags: flags}, Data: data})
}

// encodeInfo returns the payload of the message of b.
func encodeInfo(b *pack.Buffer) ([]byte, error) {
	if b == nil {
		return []byte{markBits}, nil
	}
	n := b.Size()
	if n > MaxInfo {
		return nil, rocl.ErrTooLarge
	}
	data := make([]byte, n+1)
	if _, err := b.Encode(data[:n]); err != nil {
		return nil, err
	}
	data[n] = trailer(b)
	return data, nil
}

// put registers an entry, or replaces the existing one, and returns its index. It tries again if
// the entry has been deleted or has moved meanwhile.
func (t *Thread) put(ctx context.Context, c infoContent) (int, error) {
	first := c.Index
	for {
		is, _, err := t.task.infos(ctx, rocl.Match{attrName: c.Name}, rocl.At(attrIndex, rocl.Ge, first))
		if err != nil {
			return 0, err
		}
		c.Index, c.Ident = first, TID{}
		var old *foundInfo
		for i := range is {
			if is[i].Index != c.Index {
				break
			}
			if c.Flags&MultiInstance == 0 {
				old = &is[i]
				break
			}
			c.Index++
		}
		if old == nil {
			err = t.task.pod.infos.addEntry(ctx, c, TID{}, true)
		} else if old.Flags&OverWritable == 0 && old.Owner != t.ID() {
			return 0, fmt.Errorf("%w: %w: the owner is %v", ErrDenied, ErrEntryExists, old.Owner)
		} else {
			_, err = t.askInfo(ctx, old, infoRequest{Op: infoReplace, ID: old.id, By: t.ID(), To: t.task.pod.r.ID(), Content: &c})
		}
		if err == nil {
			t.task.pod.infos.awaitPodsAt(ctx, c.key())
			return c.Index, nil
		}
		if err = retryIf(ctx, hasMoved(err) || errors.Is(err, rocl.ErrExists), err); err != nil {
			return 0, err
		}
	}
}

// RecvInfo returns the message of the entry with a name and an index. It fails with ErrNoEntry if
// there is none. The error matches rocl.ErrPartial too if a node did not answer, which may have the
// entry. With ReadAndDelete it fails with ErrDenied if the thread must not delete the entry. The
// Message is From the owner, with tag 0.
//
// If a ReadAndDelete fails because ctx ends or a connection is cut, the entry stays, or is back
// soon. If the thread's task is killed meanwhile, the entry may be lost with it.
func (t *Thread) RecvInfo(ctx context.Context, name string, index int, flags InfoFlags) (_ *Message, err error) {
	defer wrap(&err, "tpvm: receive %q[%d] from the message box", name, index)
	if index < 0 || flags&^recvFlags != 0 {
		return nil, badParam("a negative index, or flags %#x that RecvInfo does not have", flags)
	}
	m, at := rocl.Match{attrName: name, attrIndex: strconv.Itoa(index)}, []rocl.FindOption(nil)
	if flags&FirstAvail != 0 {
		m, at = rocl.Match{attrName: name}, []rocl.FindOption{rocl.At(attrIndex, rocl.Ge, index)}
	}
	for {
		is, partial, err := t.task.infos(ctx, m, at...)
		switch {
		case err != nil:
			return nil, err
		case len(is) > 0:
			i := is[0]
			if err = t.fetchInfo(ctx, &i, flags&ReadAndDelete != 0); err == nil {
				return infoMessage(i)
			}
			if err = retryIf(ctx, hasMoved(err), err); err != nil {
				return nil, err
			}
		case flags&WaitForInfo == 0:
			return nil, absent(ErrNoEntry, partial)
		default:
			if _, err := t.task.c.Await(ctx, t.task.match(typeInfo, m), 1, at...); err != nil {
				return nil, err
			}
		}
	}
}

// hasMoved reports whether err says that an entry has been deleted, or has moved to another task,
// since it was found.
func hasMoved(err error) bool {
	return errors.Is(err, ErrNoEntry) || errors.Is(err, rocl.ErrNotFound) || errors.Is(err, rocl.ErrGone)
}

// retryIf returns err, unless may is set: then it waits for changes that have not reached the
// directory yet, and returns nil, so that the caller tries again.
func retryIf(ctx context.Context, may bool, err error) error {
	if !may {
		return err
	}
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fetchInfo fetches the message of an entry, and deletes the entry if andDelete is set.
func (t *Thread) fetchInfo(ctx context.Context, i *foundInfo, andDelete bool) error {
	op := infoRead
	if andDelete {
		if i.Flags&OverWritable == 0 && i.Owner != t.ID() {
			return fmt.Errorf("%w: the owner is %v", ErrDenied, i.Owner)
		}
		op = infoTake
	} else {
		f, err := t.task.c.Lookup(ctx, i.id)
		if err != nil {
			return err
		}
		now, ok := foundInfoOf(f)
		if !ok {
			return ErrNoEntry
		}
		if *i = now; i.hasData {
			i.data = slices.Clone(i.data)
			return nil
		}
	}
	k, ident := t.task.pod.infos, i.ident()
	if andDelete {
		k.beginTake(ident)
	}
	a, err := t.askInfo(ctx, i, infoRequest{Op: op, ID: i.id, By: t.ID(), To: t.task.pod.r.ID()})
	if andDelete {
		k.endTake(ident, err == nil)
	}
	if err == nil {
		i.Owner, i.data = a.Owner, a.Data
	}
	return err
}

// askInfo sends a request to the task that keeps an entry.
func (t *Thread) askInfo(ctx context.Context, i *foundInfo, q infoRequest) (infoAnswer, error) {
	return t.task.pod.infos.ask(ctx, i.pod, q)
}

// infoMessage returns the message of an entry, ready to unpack.
func infoMessage(i foundInfo) (*Message, error) {
	enc, typed, p, err := splitPayload(i.data)
	if err != nil {
		return nil, err
	}
	m := &Message{from: i.Owner}
	if err := m.Reader.Init(enc, typed, p); err != nil {
		return nil, err
	}
	m.len = m.Remaining()
	return m, nil
}

// DelInfo deletes the entry with a name and an index. It fails with ErrNoEntry if there is none.
// The error matches rocl.ErrPartial too if a node did not answer, which may have the entry. DelInfo
// fails with ErrDenied if another task or thread owns the entry and it is not OverWritable.
func (t *Thread) DelInfo(ctx context.Context, name string, index int) (err error) {
	defer wrap(&err, "tpvm: delete %q[%d] from the message box", name, index)
	if index < 0 {
		return ErrBadParam
	}
	for {
		is, partial, err := t.task.infos(ctx, rocl.Match{attrName: name, attrIndex: strconv.Itoa(index)})
		switch {
		case err != nil:
			return err
		case len(is) == 0:
			return absent(ErrNoEntry, partial)
		}
		_, err = t.askInfo(ctx, &is[0], infoRequest{Op: infoDelete, ID: is[0].id, By: t.ID()})
		if err == nil {
			return nil
		}
		if err = retryIf(ctx, hasMoved(err), err); err != nil {
			return err
		}
	}
}

// Infos returns the entries of the message box whose name a regular expression matches anywhere,
// sorted by name and index. "*" matches all names, as with PVM. Entries on nodes that do not answer
// are left out. If Infos has found none then, it fails with rocl.ErrPartial.
func (t *Thread) Infos(ctx context.Context, pattern string) (es []InfoEntry, err error) {
	defer wrap(&err, "tpvm: list the message box")
	if pattern == "*" {
		pattern = ""
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadParam, err)
	}
	is, partial, err := t.task.infos(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, i := range is {
		if re.MatchString(i.Name) {
			es = append(es, i.InfoEntry)
		}
	}
	if len(es) == 0 {
		return nil, partial
	}
	return es, nil
}
