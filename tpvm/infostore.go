// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// An infoStore keeps the entries of the message box that a task's threads own, and the Persistent
// entries that it has taken over from tasks that have ended. The infoStore of another task has a
// copy of each Persistent entry.
//
// An entry is a resource of its infoStore's context. All changes to the entry go through that
// infoStore. An entry moves when another task replaces it or its task exits. Then the new infoStore
// registers it before the old one withdraws it, so that a search always finds one.
//
// A goroutine for each Persistent entry gives another pod a copy of it, and makes pods forget
// copies that are no longer needed. It tries again until it has succeeded. No lock is held
// meanwhile. A pod that does not answer may still make its copy when it goes on. Such a pod is
// told to forget the copy.
//
// An entry has an identity, which stays when the entry moves, is replaced or is taken over. Its
// name and index do not identify it: while a pod takes it over, they are free for another entry.
//
// The store that keeps an entry may be killed while a task takes it. So the copy is forgotten only
// when the task has the entry. Until then the pod with the copy knows the pod of the task, and asks
// that before it takes the entry over. The answer to the task may also be lost: its call ends
// early, or the connection is cut. So the store asks the pod of the task too, and keeps the entry
// again if the task has not got it.
type infoStore struct {
	p       *pod
	timeout time.Duration // of a request to another pod's infoStore

	mu        sync.Mutex
	held      map[TID]*heldInfo // by the resources of the entries
	copies    map[TID]*copyOf   // of entries that other tasks keep, by the identity
	taking    map[TID]int       // calls under way that take an entry, by its identity
	took      []TID             // identities of the latest entries that calls of this task have taken
	forgotten map[TID]uint64    // by pod: the latest version that it has made this store forget
	version   uint64            // of the last request to keep or to forget a copy
	slow      map[TID]bool      // the pods that have not answered in time
	watching  bool              // the goroutine of watchLocked runs
	closing   bool              // the task is exiting
}

const (
	infoTimeout  = 2 * time.Second // the default of infoStore.timeout
	infoRate     = 4 << 20         // bytes of content for which a request gets one more second
	firstRetry   = 100 * time.Millisecond
	longestRetry = 10 * time.Second
)

// An infoKey names an entry: the message box has one entry for each name and index.
type infoKey struct {
	name  string
	index int
}

// infoContent is an entry with its message, in the form in which tasks pass it on.
type infoContent struct {
	InfoEntry
	Ident TID // the identity of the entry
	Data  []byte
}

func (c *infoContent) key() infoKey { return infoKey{c.Name, c.Index} }

// A heldInfo is an entry that this task keeps.
type heldInfo struct {
	infoContent
	at      infoKey // guarded by the mu of the infoStore
	r       *rocl.Resource
	mu      sync.Mutex // held while the entry is being changed; locked before that of the infoStore
	gone    bool       // the entry has been deleted, or another task keeps it
	taker   TID        // the pod of the task that has taken the entry, and may not have got it yet
	changes uint64     // number of changes of the content

	// About the copies; guarded by the mu of the infoStore.
	copy    TID           // the pod that has the copy; zero: none
	copied  uint64        // the number of changes that the copy has
	asked   map[TID]bool  // the pods that may have a copy, the pod copy included
	round   chan struct{} // closed when the pods have been asked once more; nil: no goroutine waits for that
	syncing bool          // the goroutine of sync runs
	wake    chan struct{} // ends a pause of sync; has room for one
}

// A copyOf is a copy of an entry that another pod keeps.
type copyOf struct {
	infoContent
	store   TID
	version uint64
	taker   TID // see heldInfo
}

// mostTook is how many entries a task remembers to have taken.
const mostTook = 1 << 14

// The requests to an infoStore.
const (
	infoRead    = iota // return the message of entry ID
	infoTake           // return it, and delete the entry, for By, of the pod To
	infoDelete         // delete the entry, for By
	infoReplace        // make the pod To keep Content in place of the entry, for By
	infoAdd            // keep Content
	infoCopy           // keep a copy of Content, which From keeps
	infoForget         // forget the copy
	infoTaken          // the pod To takes the entry, whose copy is kept until infoForget
	infoTook           // fail unless a task has taken the entry with the identity ID
)

// podInfo is the tag of requests to a pod's infoStore.
const podInfo = 64

// An infoRequest is a request to an infoStore. Op says which fields it uses.
type infoRequest struct {
	Op       int
	ID       TID
	By       TID // a thread
	To, From TID // pods
	Version  uint64
	Content  *infoContent
}

// An infoAnswer is the reply to an infoRequest.
type infoAnswer struct {
	Owner TID
	Data  []byte
}

// errOldInfo is returned for a copy that may be older than a request to forget it.
var errOldInfo = errors.New("tpvm: the copy of the message box entry may be out of date")

// errTaking is the reply to infoTook while a call waits for the entry.
var errTaking = errors.New("tpvm: the message box entry is being taken")

func (t *Task) newInfoStore(p *pod, timeout time.Duration) *infoStore {
	return &infoStore{
		p: p, timeout: timeout, held: map[TID]*heldInfo{}, copies: map[TID]*copyOf{}, taking: map[TID]int{}, forgotten: map[TID]uint64{}, slow: map[TID]bool{},
	}
}

// ask sends a request to the infoStore of a pod, which may be this one.
func (k *infoStore) ask(ctx context.Context, pod TID, q infoRequest) (infoAnswer, error) {
	return askPod(ctx, k.p.t, pod, podInfo, q, func(ctx context.Context, q infoRequest) (infoAnswer, error) {
		a, done, err := k.answer(ctx, q)
		if done != nil {
			done()
		}
		return a, err
	})
}

// errLatePod is returned when a pod does not answer in time.
var errLatePod = errors.New("tpvm: the pod did not answer in time")

// askSoon is ask that gives up after the timeout, or later if the request has much content. It
// records in slow whether the pod has answered.
func (k *infoStore) askSoon(ctx context.Context, pod TID, q infoRequest) error {
	timeout := k.timeout
	if q.Content != nil {
		timeout += time.Duration(len(q.Content.Data)) * time.Second / infoRate
	}
	soon, cancel := context.WithTimeoutCause(ctx, timeout, errLatePod)
	defer cancel()
	_, err := k.ask(soon, pod, q)
	if ctx.Err() == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if delete(k.slow, pod); err != nil && soon.Err() != nil {
			k.slow[pod] = true
		}
	}
	return err
}

// answer carries out a request of a task. If done is not nil, the caller calls it when the task has
// the answer.
func (k *infoStore) answer(ctx context.Context, q infoRequest) (a infoAnswer, done func(), err error) {
	switch {
	case q.Op == infoRead || q.Op == infoTake || q.Op == infoDelete || q.Op == infoReplace && q.Content != nil:
		a, done, err = k.change(ctx, q)
	case q.Op == infoTook:
		err = k.hasTaken(q.ID)
	case q.Content == nil || q.Content.Index < 0 || q.Content.Flags&^putFlags != 0:
		err = ErrBadParam
	case q.Op == infoAdd:
		err = k.addEntry(ctx, *q.Content, q.ID, false)
	case q.Op == infoCopy:
		if err = k.copy(*q.Content, q.From, q.Version); err == nil {
			k.lostIfGone(k.p.t.ended, q.From) // the request may have come after the news of the end
		}
	case q.Op == infoForget:
		k.forget(q.Content.Ident, q.From, q.Version)
	case q.Op == infoTaken:
		err = k.taken(q.Content.Ident, q.From, q.Version, q.To)
	default:
		err = ErrBadParam
	}
	return a, done, err
}

// change reads or changes an entry that this store keeps. For done see answer.
func (k *infoStore) change(ctx context.Context, q infoRequest) (a infoAnswer, done func(), err error) {
	k.mu.Lock()
	h := k.held[q.ID]
	k.mu.Unlock()
	if h == nil {
		return a, nil, ErrNoEntry
	}
	if a, err = k.changeHeld(ctx, h, q); err != nil || q.Op == infoRead {
		return a, nil, err
	}
	k.awaitPods(ctx, h)
	if q.Op == infoTake {
		done = func() { k.finishTake(h, q.To) }
	}
	return a, done, nil
}

// finishTake forgets the copies of an entry when a task of the pod to has taken it. If the task has
// not got the entry, finishTake keeps it again.
func (k *infoStore) finishTake(h *heldInfo, to TID) {
	ctx := k.p.t.ended
	h.mu.Lock()
	ident := h.ident()
	h.mu.Unlock()
	for wait := time.Millisecond; ; wait = min(2*wait, longestRetry) {
		var err error
		if to != k.p.r.ID() { // an answer within the task is not lost
			err = k.askSoon(ctx, to, infoRequest{Op: infoTook, ID: ident})
		}
		switch {
		case errors.Is(err, ErrNoEntry):
			if k.giveBack(ctx, h) {
				return
			}
		case err == nil || hasMoved(err):
			h.mu.Lock()
			h.taker = TID{}
			k.syncLocked(h)
			h.mu.Unlock()
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done(): // a pod with a copy asks the pod of the taker
			return
		}
	}
}

// giveBack keeps an entry again that a task has not got after all. It reports whether nothing is
// left to do.
func (k *infoStore) giveBack(ctx context.Context, h *heldInfo) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.infoContent
	c.Ident = h.ident()
	if !c.Owner.IsZero() {
		if _, err := k.p.t.c.Lookup(ctx, c.Owner, attrType); errors.Is(err, rocl.ErrNotFound) {
			c.Owner = TID{}
		} else if err != nil {
			return false
		}
	}
	var err error
	isDone := c.Owner.IsZero() && c.Flags&Persistent == 0 // deleted with its owner
	if !isDone {
		isDone = k.place(ctx, &copyOf{infoContent: c, store: k.p.r.ID()}, func(c infoContent) error {
			err = k.keepAgainLocked(ctx, h, c)
			return err
		})
	}
	if isDone && h.gone && !errors.Is(err, ErrExited) { // when this task has ended, the pod with the copy takes over
		h.taker = TID{}
		k.syncLocked(h)
	}
	return isDone
}

// keepAgainLocked registers an entry that was withdrawn. It fails with rocl.ErrExists if there is
// another entry of its name and index. The mu of h must be held.
func (k *infoStore) keepAgainLocked(ctx context.Context, h *heldInfo, c infoContent) error {
	r, err := k.p.t.c.Register(ctx, k.attrs(&c), rocl.Unique(attrType, attrVM, attrName, attrIndex))
	if err != nil {
		return err
	}
	k.mu.Lock()
	if k.closing {
		k.mu.Unlock()
		return errors.Join(ErrExited, r.Close())
	}
	h.at.index = c.Index
	k.held[r.ID()] = h
	k.mu.Unlock()
	h.infoContent, h.r, h.gone, h.taker = c, r, false, TID{}
	h.changes++ // so that the copy is renewed
	k.syncLocked(h)
	return nil
}

// changeHeld reads or changes the entry h. It holds the mu of h, also while another task takes the
// entry over.
func (k *infoStore) changeHeld(ctx context.Context, h *heldInfo, q infoRequest) (a infoAnswer, err error) {
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
	case infoRead:
		a.Data = h.Data
	case infoTake:
		a.Data = h.Data
		h.taker = q.To
	case infoReplace:
		q.Content.Ident = h.ident()
		if q.To == k.p.r.ID() {
			return a, k.replaceLocked(ctx, h, *q.Content)
		}
		if err := k.askSoon(ctx, q.To, infoRequest{Op: infoAdd, ID: h.r.ID(), Content: q.Content}); err != nil {
			return a, err
		}
	}
	if q.Op != infoRead {
		k.dropLocked(h)
	}
	return a, nil
}

// attrs returns the attributes of an entry that this store keeps.
func (k *infoStore) attrs(c *infoContent) rocl.Attrs {
	a := k.p.t.attrs(typeInfo, rocl.Attrs{
		attrName: c.Name, attrIndex: strconv.Itoa(c.Index), attrOwner: noOwner, attrFlags: strconv.Itoa(int(c.Flags)),
	})
	if !c.Owner.IsZero() {
		a[attrOwner] = c.Owner.String()
	}
	if !c.Ident.IsZero() {
		a[attrIdent] = c.Ident.String()
	}
	if len(c.Data) <= smallInfo {
		a[attrInfo] = string(c.Data)
	}
	return a
}

// addEntry registers and keeps an entry. With only, the entry must be the only one of its name and
// index: addEntry fails with rocl.ErrExists if there is another. Otherwise the entry replaces the
// entry old. Then addEntry fails with ErrNoEntry if the sender of the request has withdrawn old,
// because the request has come late.
func (k *infoStore) addEntry(ctx context.Context, c infoContent, old TID, only bool) error {
	h := &heldInfo{infoContent: c, at: c.key(), asked: map[TID]bool{}, wake: make(chan struct{}, 1)}
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
	if !only {
		if _, err := k.p.t.c.Lookup(ctx, old, attrType); errors.Is(err, rocl.ErrNotFound) {
			return errors.Join(ErrNoEntry, h.r.Close())
		}
	}
	k.mu.Lock()
	if k.closing {
		k.mu.Unlock()
		return errors.Join(ErrExited, h.r.Close())
	}
	k.held[h.r.ID()] = h
	delete(k.copies, h.ident())
	k.mu.Unlock()
	k.syncLocked(h)
	return nil
}

// ident returns the identity of the entry: that of the resource with which it began.
func (h *heldInfo) ident() TID {
	if h.Ident.IsZero() {
		return h.r.ID()
	}
	return h.Ident
}

// replaceLocked replaces an entry that this store keeps. The mu of h must be held.
func (k *infoStore) replaceLocked(ctx context.Context, h *heldInfo, c infoContent) error {
	if err := h.r.Update(ctx, k.attrs(&c)); err != nil {
		return err
	}
	h.infoContent = c
	h.changes++
	k.syncLocked(h)
	return nil
}

// dropLocked withdraws an entry. The mu of h must be held.
func (k *infoStore) dropLocked(h *heldInfo) {
	h.gone = true
	k.mu.Lock()
	delete(k.held, h.r.ID())
	k.mu.Unlock()
	_ = h.r.Close()
	k.syncLocked(h)
}

// awaitPods waits until the pods have been asked to do what the changes of an entry need. It waits
// at most twice the timeout for pods that do not answer.
func (k *infoStore) awaitPods(ctx context.Context, h *heldInfo) {
	h.mu.Lock()
	round := k.syncLocked(h)
	h.mu.Unlock()
	if round == nil {
		return
	}
	late := time.NewTimer(2 * k.timeout)
	defer late.Stop()
	select {
	case <-round:
	case <-late.C:
	case <-ctx.Done():
	case <-k.p.t.ended.Done():
	}
}

// awaitPodsAt calls awaitPods for the entry that is kept here under a name and index, if there is
// one.
func (k *infoStore) awaitPodsAt(ctx context.Context, at infoKey) {
	k.mu.Lock()
	var hs []*heldInfo
	for _, h := range k.held {
		if h.at == at {
			hs = append(hs, h)
		}
	}
	k.mu.Unlock()
	for _, h := range hs {
		k.awaitPods(ctx, h)
	}
}

// syncLocked makes sync ask the pods once more. The channel that it returns is closed when sync has
// done so. It is nil if there is nothing to ask. The mu of h must be held.
func (k *infoStore) syncLocked(h *heldInfo) <-chan struct{} {
	wants := !h.gone && h.Flags&Persistent != 0
	if wants {
		k.watch()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !wants && len(h.asked) == 0 && !h.syncing {
		return nil
	}
	return k.wakeLocked(h)
}

// wakeLocked begins a round of sync. The mu of k must be held.
func (k *infoStore) wakeLocked(h *heldInfo) <-chan struct{} {
	if h.round == nil {
		h.round = make(chan struct{})
	}
	round := h.round
	if !h.syncing {
		h.syncing = true
		k.p.t.work.Go(func() { k.sync(h) })
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return round
}

// sync asks pods until one has an up-to-date copy of an entry and no other pod has one, or until
// the task exits.
func (k *infoStore) sync(h *heldInfo) {
	ctx := k.p.t.ended
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		k.mu.Lock()
		round := h.round
		h.round = nil
		select {
		case <-h.wake:
		default:
		}
		k.mu.Unlock()
		isDone := k.syncOnce(ctx, h)
		if round != nil {
			close(round)
		}
		k.mu.Lock()
		isDone = isDone && h.round == nil || ctx.Err() != nil
		h.syncing = !isDone
		k.mu.Unlock()
		if isDone {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-h.wake:
			wait = firstRetry
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// syncOnce asks each pod at most once. It reports whether there is nothing left to ask.
func (k *infoStore) syncOnce(ctx context.Context, h *heldInfo) bool {
	h.mu.Lock()
	c, changes, wants, taker := h.infoContent, h.changes, !h.gone && h.Flags&Persistent != 0, h.taker
	c.Ident = h.ident()
	h.mu.Unlock()
	hasCopy := true
	op := infoForget
	if !taker.IsZero() {
		op = infoTaken
	}
	if wants {
		hasCopy = k.secure(ctx, h, c, changes)
	}
	c.Data = nil
	k.mu.Lock()
	if !wants {
		h.copy = TID{}
	}
	var pods []TID
	for pod := range h.asked {
		if pod != h.copy {
			pods = append(pods, pod)
		}
	}
	k.mu.Unlock()
	isForgotten := true
	for _, pod := range pods {
		err := k.askSoon(ctx, pod, infoRequest{Op: op, From: k.p.r.ID(), To: taker, Version: k.nextVersion(), Content: &c})
		if op == infoTaken && (err == nil || hasMoved(err)) {
			continue
		}
		if err == nil || hasMoved(err) {
			k.mu.Lock()
			delete(h.asked, pod)
			k.mu.Unlock()
		} else {
			isForgotten = false
		}
	}
	return hasCopy && isForgotten
}

// secure gives another pod a copy of an entry, unless one has it. It reports whether there is no
// need to try again. If no pod can have a copy, the goroutine of watchLocked calls sync for the
// next pod that appears.
func (k *infoStore) secure(ctx context.Context, h *heldInfo, c infoContent, changes uint64) bool {
	k.mu.Lock()
	first, isCopied := h.copy, !h.copy.IsZero() && h.copied == changes
	k.mu.Unlock()
	if isCopied {
		return true
	}
	pods, err := k.otherPods(ctx, first)
	for _, pod := range pods {
		if k.give(ctx, h, c, changes, pod) {
			return true
		}
	}
	k.mu.Lock()
	h.copy = TID{}
	k.mu.Unlock()
	return len(pods) == 0 && err == nil
}

// give gives a pod a copy, and reports whether the pod has it.
func (k *infoStore) give(ctx context.Context, h *heldInfo, c infoContent, changes uint64, pod TID) bool {
	k.mu.Lock()
	h.asked[pod] = true
	k.mu.Unlock()
	err := errOldInfo
	for errors.Is(err, errOldInfo) && ctx.Err() == nil { // a later request for another entry has been faster
		err = k.askSoon(ctx, pod, infoRequest{Op: infoCopy, From: k.p.r.ID(), Version: k.nextVersion(), Content: &c})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil && h.asked[pod]: // otherwise the pod has ended meanwhile
		h.copy, h.copied = pod, changes
		return true
	case hasMoved(err):
		delete(h.asked, pod)
	}
	return false
}

func (k *infoStore) nextVersion() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	return k.version
}

// otherPods returns the other pods of the virtual machine that keep entries for other tasks: those
// of all tasks but observers. The order is: the pod first, if it still runs; the pods of other
// processes; the pods of this process; the pods that have not answered in time.
func (k *infoStore) otherPods(ctx context.Context, first TID) (ids []TID, err error) {
	rank := map[TID]int{}
	own := k.p.r.ID()
	pid := strconv.Itoa(os.Getpid())
	for f, err := range k.p.t.findAll(ctx, k.p.t.match(typePod, nil), rocl.Want(attrPID, attrHost, attrObserves)) {
		switch {
		case err != nil:
			return nil, err
		case f.ID == own || attr(f, attrObserves) == "yes":
			continue
		case k.isSlow(f.ID):
			rank[f.ID] = 3
		case f.ID == first:
			rank[f.ID] = 0
		case attr(f, attrPID) != pid || attr(f, attrHost) != k.p.t.host:
			rank[f.ID] = 1
		default:
			rank[f.ID] = 2
		}
		ids = append(ids, f.ID)
	}
	slices.SortStableFunc(ids, func(a, b TID) int { return rank[a] - rank[b] })
	return ids, nil
}

func (k *infoStore) isSlow(pod TID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.slow[pod]
}

// copy keeps a copy of an entry. It fails with errOldInfo if the pod from may have sent a request
// to forget the copy after it.
func (k *infoStore) copy(c infoContent, from TID, version uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.copies[c.Ident]
	switch {
	case k.closing:
		return ErrExited
	case version < k.forgotten[from], old != nil && old.store == from && version < old.version:
		return errOldInfo
	}
	k.copies[c.Ident] = &copyOf{infoContent: c, store: from, version: version}
	k.watchLocked()
	return nil
}

// forget forgets the copy of an entry, and makes copy refuse a copy that was sent earlier.
func (k *infoStore) forget(ident, from TID, version uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.copies[ident]
	if c != nil && c.store == from && c.version < version {
		delete(k.copies, ident)
	}
	k.forgotten[from] = max(version, k.forgotten[from])
}

// taken records in the copy of an entry which pod takes the entry.
func (k *infoStore) taken(ident, from TID, version uint64, by TID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.copies[ident]
	if c == nil || c.store != from || c.version >= version {
		return ErrNoEntry
	}
	now := *c // adoptCopy may be reading c
	now.taker, now.version = by, version
	k.copies[ident] = &now
	return nil
}

// beginTake records that a call is about to take an entry.
func (k *infoStore) beginTake(ident TID) {
	k.mu.Lock()
	k.taking[ident]++
	k.mu.Unlock()
}

// endTake records whether the call has got the entry.
func (k *infoStore) endTake(ident TID, has bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taking[ident]--; k.taking[ident] == 0 {
		delete(k.taking, ident)
	}
	if has {
		k.took = append(k.took, ident)
		if len(k.took) == 2*mostTook {
			k.took = slices.Delete(k.took, 0, mostTook)
		}
	}
}

// hasTaken returns nil if a call has taken an entry, errTaking if one may take it yet, and
// otherwise ErrNoEntry.
func (k *infoStore) hasTaken(ident TID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case slices.Contains(k.took, ident):
		return nil
	case k.taking[ident] > 0:
		return errTaking
	}
	return ErrNoEntry
}

func (k *infoStore) watch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watchLocked()
}

// watchLocked starts the goroutine that watches pods appear and end, unless it runs. The mu of k
// must be held.
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
				k.syncAll(TID{})
			case rocl.Gone:
				k.lost(t.ended, e.ID)
			}
		}
	})
}

// reconcile takes over the entries of tasks that have ended, whenever that was.
func (k *infoStore) reconcile(ctx context.Context) {
	k.mu.Lock()
	var stores []TID
	for _, c := range k.copies {
		stores = append(stores, c.store)
	}
	k.mu.Unlock()
	for _, id := range stores {
		k.lostIfGone(ctx, id)
	}
	k.syncAll(TID{})
}

// lostIfGone takes over the entries of a pod if that has ended.
func (k *infoStore) lostIfGone(ctx context.Context, pod TID) {
	if _, err := k.p.t.c.Lookup(ctx, pod, attrType); errors.Is(err, rocl.ErrNotFound) {
		k.lost(ctx, pod)
	}
}

// lost takes over the entries of a pod that has ended. If that pod had copies of this task's
// entries, other pods get copies.
func (k *infoStore) lost(ctx context.Context, pod TID) {
	k.mu.Lock()
	delete(k.forgotten, pod)
	delete(k.slow, pod)
	var cs []*copyOf
	for _, c := range k.copies {
		if c.store == pod {
			cs = append(cs, c)
		}
	}
	k.mu.Unlock()
	if len(cs) > 0 {
		k.p.t.work.Go(func() { k.adoptCopies(ctx, cs) })
	}
	k.syncAll(pod)
}

// adoptCopies keeps the entries of which this task has copies. It tries again until this task or
// another one keeps each of them.
func (k *infoStore) adoptCopies(ctx context.Context, cs []*copyOf) {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		cs = slices.DeleteFunc(cs, func(c *copyOf) bool { return k.adoptCopy(ctx, c) })
		if len(cs) == 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// adoptCopy takes over the entry of one copy, and reports whether nothing is left to do for it.
func (k *infoStore) adoptCopy(ctx context.Context, c *copyOf) bool {
	k.mu.Lock()
	isCopy := k.copies[c.Ident] == c
	k.mu.Unlock()
	if !isCopy { // another task keeps the entry, and has sent a copy; or another call adopts it
		return true
	}
	if !c.taker.IsZero() {
		err := k.askSoon(ctx, c.taker, infoRequest{Op: infoTook, ID: c.Ident})
		switch {
		case err == nil:
			return k.forgetCopy(c)
		case !hasMoved(err):
			return false
		}
	}
	return k.place(ctx, c, func(entry infoContent) error {
		entry.Owner = TID{}
		return k.addEntry(ctx, entry, TID{}, true)
	})
}

// place calls keep for the entry of a copy, which registers it. If another entry has its index,
// place calls keep with the next free one. It reports whether nothing is left to do.
func (k *infoStore) place(ctx context.Context, c *copyOf, keep func(infoContent) error) bool {
	entry := c.infoContent
	for {
		err := keep(entry)
		switch {
		case err == nil || errors.Is(err, ErrExited):
			return true
		case errors.Is(err, rocl.ErrExists):
			if isDone, index := k.placeOf(ctx, c, entry.Index); index < 0 {
				return isDone
			} else {
				entry.Index = index
			}
		default:
			if ctx.Err() == nil {
				k.p.t.log.Warn("tpvm: message box: an entry was not kept again yet", "name", c.Name, "index", c.Index, "err", err)
			}
			return false
		}
	}
}

// forgetCopy forgets a copy that is not needed any more.
func (k *infoStore) forgetCopy(c *copyOf) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.copies[c.Ident] == c {
		delete(k.copies, c.Ident)
	}
	return true
}

// placeOf decides about a copy whose entry cannot be registered at an index, because there is one.
// If that is another entry, which was put while nobody kept the entry of the copy, placeOf returns
// the next free index. Otherwise it returns a negative index. isDone is false then while the entry
// in the directory is the one of the pod that has ended, which the directory may withdraw later
// than the pod, or one that its pod does not keep yet.
func (k *infoStore) placeOf(ctx context.Context, c *copyOf, index int) (isDone bool, free int) {
	is, _, err := k.p.t.infos(ctx, rocl.Match{attrName: c.Name})
	if err != nil {
		return false, -1
	}
	free = index
	for _, i := range is {
		switch {
		case i.pod == c.store && i.ident() == c.Ident: // also if that pod answers: it is about to end
			return false, -1
		case i.ident() == c.Ident:
			err := k.askSoon(ctx, i.pod, infoRequest{Op: infoRead, ID: i.id})
			return err == nil && k.forgetCopy(c), -1
		case i.Index == c.Index && (c.Flags|i.Flags)&MultiInstance == 0 && c.Flags&OverWritable != 0: // it is replaced
			return k.forgetCopy(c), -1
		case i.Index == free:
			free++
		}
	}
	if free == index { // that entry has gone meanwhile, or is invalid
		return false, -1
	}
	return false, free
}

// syncAll gives another pod a copy of each entry whose copy was on the given pod, which has ended.
// With the zero TID it does so for the entries of which no pod has a copy.
func (k *infoStore) syncAll(pod TID) {
	for _, h := range k.all() {
		k.mu.Lock()
		delete(h.asked, pod)
		isLost := h.copy == pod
		if isLost {
			h.copy = TID{}
		}
		k.mu.Unlock()
		if isLost {
			h.mu.Lock()
			k.syncLocked(h)
			h.mu.Unlock()
		}
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

// ownerEnded deletes the entries of a thread that has ended, or, if they are Persistent, leaves
// them without an owner. The copies are not changed: the task that takes over leaves out the owner.
func (k *infoStore) ownerEnded(ctx context.Context, id TID) {
	for _, h := range k.all() {
		h.mu.Lock()
		if !h.gone && h.Owner == id {
			if h.Flags&Persistent == 0 {
				k.dropLocked(h)
			} else {
				h.Owner = TID{}
				_ = h.r.Update(ctx, k.attrs(&h.infoContent))
			}
		}
		h.mu.Unlock()
	}
}

// moveEntries makes other tasks keep the Persistent entries, since this task exits. A pod that does
// not answer is asked once.
func (k *infoStore) moveEntries(ctx context.Context) {
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	silent := map[TID]bool{}
	hs := k.all()
	for _, h := range hs {
		h.mu.Lock()
		if !h.gone && h.Flags&Persistent != 0 {
			k.moveEntryLocked(ctx, h, silent)
		}
		h.mu.Unlock()
	}
	soon, cancel := context.WithTimeoutCause(ctx, k.timeout, errLatePod)
	defer cancel()
	for _, h := range hs {
		if h.isGone() {
			k.awaitPods(soon, h)
		}
	}
}

// moveEntryLocked makes another task keep an entry. It adds the pods that do not answer to silent.
// The mu of h must be held.
func (k *infoStore) moveEntryLocked(ctx context.Context, h *heldInfo, silent map[TID]bool) {
	c := h.infoContent
	c.Owner, c.Ident = TID{}, h.ident()
	k.mu.Lock()
	first := h.copy
	k.mu.Unlock()
	pods, _ := k.otherPods(ctx, first)
	for _, pod := range pods {
		if silent[pod] {
			continue
		}
		if k.askSoon(ctx, pod, infoRequest{Op: infoAdd, ID: h.r.ID(), Content: &c}) == nil {
			k.dropLocked(h)
			return
		}
		silent[pod] = k.isSlow(pod)
	}
}

func (h *heldInfo) isGone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

// close withdraws the entries that are left.
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
