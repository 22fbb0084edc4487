// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/rocl-go/rocl"
)

// An infoStore has the entries of the message box that a task's threads own, and Persistent ones
// that it has taken over from tasks that have ended. Of each Persistent entry another task's
// infoStore has a copy.
//
// An entry is a resource of its infoStore's context. All that changes it goes through that
// infoStore. An entry that moves, because another task replaces it or its task exits, is
// registered by the new infoStore before the old one withdraws it, so that there is always one to
// find.
type infoStore struct {
	p *pod

	mu       sync.Mutex
	held     map[TID]*heldInfo   // by the entry's resource
	copies   map[infoKey]*copyOf // of entries that other tasks keep
	watching bool                // watch runs
	closing  bool                // the task exits
}

// An infoKey names an entry: the message box has one entry for each name and index.
type infoKey struct {
	name  string
	index int
}

// infoContent is an entry with its message, as tasks pass it on.
type infoContent struct {
	InfoEntry
	Data []byte
}

func (c *infoContent) key() infoKey { return infoKey{c.Name, c.Index} }

// A heldInfo is an entry that this task keeps.
type heldInfo struct {
	infoContent
	r    *rocl.Resource
	copy TID        // the pod that has a copy; zero: none has
	mu   sync.Mutex // held while the entry is being changed; taken before that of the infoStore
	gone bool       // it has been deleted, or another task keeps it
}

// A copyOf is a copy of an entry that another pod keeps.
type copyOf struct {
	infoContent
	store TID
}

// What an infoStore is asked.
const (
	infoRead    = iota // return the message of entry ID
	infoTake           // return it, and delete the entry, for By
	infoDelete         // delete the entry, for By
	infoReplace        // have the pod To keep Content in place of the entry, for By
	infoHold           // keep Content
	infoCopy           // keep a copy of Content, which From keeps
	infoForget         // forget the copy
)

// podInfo is the tag of requests to a pod's infoStore.
const podInfo = 64

type infoRequest struct {
	Op       int
	ID       TID
	By       TID // a thread
	To, From TID // pods
	Content  *infoContent
}

type infoAnswer struct {
	Error string // the text of one of infoErrors, or of another error
	Owner TID
	Data  []byte
}

// infoErrors are the errors that an asker recognises.
var infoErrors = []error{ErrNoEntry, ErrDenied, ErrExited, ErrBadParam}

func (t *Task) newInfoStore(p *pod) *infoStore {
	return &infoStore{p: p, held: map[TID]*heldInfo{}, copies: map[infoKey]*copyOf{}}
}

// ask asks the infoStore of a pod, which may be this one.
func (k *infoStore) ask(ctx context.Context, pod TID, q infoRequest) (a infoAnswer, err error) {
	if pod == k.p.r.ID() {
		a = k.answer(ctx, q)
	} else if a, err = ask[infoAnswer](ctx, k.p.t, pod, podInfo, q); err != nil {
		return a, err
	}
	if a.Error == "" {
		return a, nil
	}
	for _, e := range infoErrors {
		if a.Error == e.Error() {
			return a, e
		}
	}
	return a, &textError{text: a.Error}
}

// answer does what a task asks.
func (k *infoStore) answer(ctx context.Context, q infoRequest) (a infoAnswer) {
	var err error
	switch {
	case q.Op == infoRead || q.Op == infoTake || q.Op == infoDelete || q.Op == infoReplace && q.Content != nil:
		a, err = k.change(ctx, q)
	case q.Content == nil || q.Content.Index < 0 || q.Content.Flags&^putFlags != 0:
		err = ErrBadParam
	case q.Op == infoHold:
		err = k.hold(ctx, *q.Content, false)
	case q.Op == infoCopy:
		err = k.copy(*q.Content, q.From)
	case q.Op == infoForget:
		k.mu.Lock()
		if c := k.copies[q.Content.key()]; c != nil && c.store == q.From {
			delete(k.copies, q.Content.key())
		}
		k.mu.Unlock()
	default:
		err = ErrBadParam
	}
	if err != nil {
		a.Error = err.Error()
		for _, e := range infoErrors {
			if errors.Is(err, e) {
				a.Error = e.Error()
			}
		}
	}
	return a
}

// change reads or changes an entry that is kept here.
func (k *infoStore) change(ctx context.Context, q infoRequest) (a infoAnswer, err error) {
	k.mu.Lock()
	h := k.held[q.ID]
	k.mu.Unlock()
	if h == nil {
		return a, ErrNoEntry
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.gone:
		return a, ErrNoEntry
	case q.Op != infoRead && h.Flags&OverWritable == 0 && h.Owner != q.By:
		return a, ErrDenied
	}
	a.Owner = h.Owner
	switch q.Op {
	case infoRead, infoTake:
		a.Data = h.Data
	case infoReplace:
		if q.To == k.p.r.ID() {
			return a, k.replaceLocked(ctx, h, *q.Content)
		}
		if _, err := k.ask(ctx, q.To, infoRequest{Op: infoHold, Content: q.Content}); err != nil {
			return a, err
		}
	}
	if q.Op != infoRead {
		k.dropLocked(ctx, h)
	}
	return a, nil
}

// attrs returns the attributes of an entry that this task keeps.
func (k *infoStore) attrs(c *infoContent) rocl.Attrs {
	a := k.p.t.attrs(typeInfo, rocl.Attrs{
		attrName: c.Name, attrIndex: strconv.Itoa(c.Index), attrOwner: noOwner, attrFlags: strconv.Itoa(int(c.Flags)),
	})
	if !c.Owner.IsZero() {
		a[attrOwner] = c.Owner.String()
	}
	if len(c.Data) <= smallInfo {
		a[attrInfo] = string(c.Data)
	}
	return a
}

// hold keeps an entry. If it is to be the only one of its name and index, hold fails with
// rocl.ErrExists where there is another.
func (k *infoStore) hold(ctx context.Context, c infoContent, only bool) error {
	h := &heldInfo{infoContent: c}
	h.mu.Lock()
	defer h.mu.Unlock()
	k.mu.Lock()
	closing := k.closing
	k.mu.Unlock()
	if closing {
		return ErrExited
	}
	var opts []rocl.RegisterOption
	if only {
		opts = append(opts, rocl.Unique(attrType, attrVM, attrName, attrIndex))
	}
	var err error
	if h.r, err = k.p.t.c.Register(ctx, k.attrs(&c), opts...); err != nil {
		return err
	}
	k.mu.Lock()
	if k.closing {
		k.mu.Unlock()
		return errors.Join(ErrExited, h.r.Close())
	}
	k.held[h.r.ID()] = h
	delete(k.copies, c.key())
	k.mu.Unlock()
	k.secureLocked(ctx, h)
	return nil
}

// replaceLocked replaces an entry that is kept here. The lock of h must be held.
func (k *infoStore) replaceLocked(ctx context.Context, h *heldInfo, c infoContent) error {
	if h.Flags&Persistent != 0 && c.Flags&Persistent == 0 {
		k.forgetLocked(ctx, h)
	}
	if err := h.r.Update(ctx, k.attrs(&c)); err != nil {
		return err
	}
	h.infoContent = c
	k.secureLocked(ctx, h)
	return nil
}

// dropLocked withdraws an entry. The lock of h must be held.
func (k *infoStore) dropLocked(ctx context.Context, h *heldInfo) {
	k.forgetLocked(ctx, h)
	h.gone = true
	k.mu.Lock()
	delete(k.held, h.r.ID())
	k.mu.Unlock()
	_ = h.r.Close()
}

// forgetLocked has the copy of an entry forgotten. The lock of h must be held.
func (k *infoStore) forgetLocked(ctx context.Context, h *heldInfo) {
	if h.copy.IsZero() {
		return
	}
	c := h.infoContent
	c.Data = nil
	_, _ = k.ask(ctx, h.copy, infoRequest{Op: infoForget, From: k.p.r.ID(), Content: &c})
	h.copy = TID{}
}

// secureLocked gives another pod a copy of an entry, if it is Persistent. The lock of h must be
// held.
func (k *infoStore) secureLocked(ctx context.Context, h *heldInfo) {
	if h.Flags&Persistent == 0 {
		return
	}
	k.watch()
	q := infoRequest{Op: infoCopy, From: k.p.r.ID(), Content: &h.infoContent}
	for _, pod := range k.others(ctx, h.copy) {
		if _, err := k.ask(ctx, pod, q); err == nil {
			h.copy = pod
			return
		}
	}
	h.copy = TID{} // watch tells of the next pod
}

// others returns the other pods of the virtual machine: the pod first, if it still runs, then the
// pods of other processes, then those of this process.
func (k *infoStore) others(ctx context.Context, first TID) []TID {
	type pod struct {
		id   TID
		rank int
	}
	var ps []pod
	own := k.p.r.ID()
	pid := strconv.Itoa(os.Getpid())
	for f, err := range k.p.t.c.FindAll(ctx, k.p.t.match(typePod, nil), rocl.Want(attrPID, attrHost)) {
		if err != nil {
			break
		}
		p := pod{id: f.ID}
		switch {
		case f.ID == own:
			continue
		case f.ID == first:
		case attr(f, attrPID) != pid || attr(f, attrHost) != k.p.t.host:
			p.rank = 1
		default:
			p.rank = 2
		}
		ps = append(ps, p)
	}
	slices.SortStableFunc(ps, func(a, b pod) int { return a.rank - b.rank })
	ids := make([]TID, len(ps))
	for i := range ps {
		ids[i] = ps[i].id
	}
	return ids
}

// copy keeps a copy of an entry.
func (k *infoStore) copy(c infoContent, from TID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return ErrExited
	}
	k.copies[c.key()] = &copyOf{infoContent: c, store: from}
	k.watchLocked()
	return nil
}

func (k *infoStore) watch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watchLocked()
}

// watchLocked starts the watch of pods that end and begin, unless it runs. The lock of k must be
// held.
func (k *infoStore) watchLocked() {
	if k.watching || k.closing {
		return
	}
	k.watching = true
	t := k.p.t
	t.work.Go(func() {
		for e, err := range t.c.Watch(t.ended, t.match(typePod, nil), rocl.Want(attrPID)) {
			if err != nil {
				if t.ended.Err() == nil {
					t.log.Warn("tpvm: message box: the tasks cannot be watched", "err", err)
				}
				return
			}
			switch e.Kind {
			case rocl.Synced:
				k.reconcile(t.ended)
			case rocl.Appeared:
				k.secureAll(t.ended, TID{})
			case rocl.Gone:
				k.lost(t.ended, e.ID)
			}
		}
	})
}

// reconcile takes over the entries whose task has ended, whenever that was.
func (k *infoStore) reconcile(ctx context.Context) {
	k.mu.Lock()
	var stores []TID
	for _, c := range k.copies {
		stores = append(stores, c.store)
	}
	k.mu.Unlock()
	for _, id := range stores {
		if _, err := k.p.t.c.Lookup(ctx, id, attrType); errors.Is(err, rocl.ErrNotFound) {
			k.lost(ctx, id)
		}
	}
	k.secureAll(ctx, TID{})
}

// lost takes over the entries of a pod that has ended. Where that pod had copies of this task's
// entries, other pods get them.
func (k *infoStore) lost(ctx context.Context, pod TID) {
	k.mu.Lock()
	var cs []infoContent
	for key, c := range k.copies {
		if c.store == pod {
			cs = append(cs, c.infoContent)
			delete(k.copies, key)
		}
	}
	k.mu.Unlock()
	for _, c := range cs {
		c.Owner = TID{}
		if err := k.hold(ctx, c, true); err != nil && !errors.Is(err, rocl.ErrExists) && ctx.Err() == nil {
			k.p.t.log.Warn("tpvm: message box: entry lost", "name", c.Name, "index", c.Index, "err", err)
		}
	}
	k.secureAll(ctx, pod)
}

// secureAll gives another pod a copy of each entry whose copy the given pod has had. With the zero
// TID it does so for the entries of which no pod has a copy.
func (k *infoStore) secureAll(ctx context.Context, pod TID) {
	for _, h := range k.all() {
		h.mu.Lock()
		if !h.gone && h.Flags&Persistent != 0 && h.copy == pod {
			h.copy = TID{}
			k.secureLocked(ctx, h)
		}
		h.mu.Unlock()
	}
}

func (k *infoStore) all() (hs []*heldInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.held {
		hs = append(hs, h)
	}
	return hs
}

// ownerEnded deletes the entries of a thread that has ended, or leaves them without an owner.
func (k *infoStore) ownerEnded(ctx context.Context, id TID) {
	for _, h := range k.all() {
		h.mu.Lock()
		if !h.gone && h.Owner == id {
			if c := h.infoContent; c.Flags&Persistent != 0 {
				c.Owner = TID{}
				_ = k.replaceLocked(ctx, h, c)
			} else {
				k.dropLocked(ctx, h)
			}
		}
		h.mu.Unlock()
	}
}

// handOver has other tasks keep the Persistent entries, since this one exits.
func (k *infoStore) handOver(ctx context.Context) {
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	for _, h := range k.all() {
		h.mu.Lock()
		if c := h.infoContent; !h.gone && c.Flags&Persistent != 0 {
			c.Owner = TID{}
			for _, pod := range k.others(ctx, h.copy) {
				if _, err := k.ask(ctx, pod, infoRequest{Op: infoHold, Content: &c}); err != nil {
					continue
				}
				if pod == h.copy { // which it is no more
					h.copy = TID{}
				}
				k.dropLocked(ctx, h)
				break
			}
		}
		h.mu.Unlock()
	}
}

// close withdraws what is left.
func (k *infoStore) close() {
	for _, h := range k.all() {
		h.mu.Lock()
		if !h.gone {
			h.gone = true
			_ = h.r.Close()
		}
		h.mu.Unlock()
	}
}
