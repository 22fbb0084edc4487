// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// WaitChildren waits until the programs that the task has started have ended.
func (t *Task) WaitChildren() {
	for _, c := range t.pod.running() {
		<-c.exited
	}
}

// KillChildren kills the programs that the task has started.
func (t *Task) KillChildren() {
	for _, c := range t.pod.running() {
		_ = c.signal(syscall.SIGKILL)
	}
}

// InfoMessage returns the Message of the payload of an entry of the message box.
func InfoMessage(data []byte) (*Message, error) { return infoMessage(foundInfo{data: data}) }

// EncodeInfo returns the payload of an entry of the message box.
func EncodeInfo(b *pack.Buffer) ([]byte, error) { return encodeInfo(b) }

// HoldInfo keeps the task from answering requests about its entries of the message box until
// release is called.
func (t *Task) HoldInfo() (release func()) {
	k := t.pod.infos
	k.mu.Lock()
	return k.mu.Unlock
}

// ResourceID identifies the resource of a member.
func (g *Group) ResourceID() TID { return g.r.ID() }

// HoldGroup keeps the coordinator of a group, which is in the task, from answering until release is
// called.
func (t *Task) HoldGroup(name string) (release func()) {
	t.groupsMu.Lock()
	a := t.agents[name]
	t.groupsMu.Unlock()
	a.mu.Lock()
	c := a.here
	a.mu.Unlock()
	c.mu.Lock()
	return c.mu.Unlock
}

// HeldInfo reports whether the task keeps an entry of the message box with a name, and whether it
// has asked another task to keep a copy.
func (t *Task) HeldInfo(name string) (isHeld, isAsked bool) {
	k := t.pod.infos
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.held {
		if h.at.name == name {
			return true, len(h.asked) > 0
		}
	}
	return false, false
}

// HasForgottenInfo reports whether another task has asked the task to forget a copy of an entry.
func (t *Task) HasForgottenInfo() bool {
	k := t.pod.infos
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.forgotten) > 0
}

// InfoCopies returns the names of other tasks' entries of which the task keeps copies, sorted.
func (t *Task) InfoCopies() (names []string) {
	k := t.pod.infos
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.copies {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// TakeInfo makes the task give an entry of the message box to another task, as RecvInfo with
// ReadAndDelete does, up to the answer. got tells the other task whether the answer has come. sent
// tells the task that it has sent the answer.
func (t *Task) TakeInfo(ctx context.Context, name string, by *Task) (got func(has bool), sent func(), err error) {
	k, of := t.pod.infos, by.pod.infos
	for _, h := range k.all() {
		if h.at.name == name {
			ident := h.ident()
			of.beginTake(ident)
			_, sent, err := k.change(ctx, infoRequest{Op: infoTake, ID: h.r.ID(), By: by.ID(), To: by.pod.r.ID()})
			return func(has bool) { of.endTake(ident, has) }, sent, err
		}
	}
	return nil, nil, ErrNoEntry
}

// CopyInfo makes the task keep a copy of an entry, at the request of a pod.
func (t *Task) CopyInfo(ctx context.Context, name string, data []byte, pod, ident TID) error {
	c := &infoContent{InfoEntry: InfoEntry{Name: name, Flags: Persistent}, Ident: ident, Data: data}
	_, err := t.pod.infos.ask(ctx, t.pod.r.ID(), infoRequest{Op: infoCopy, Content: c, From: pod, Version: 1})
	return err
}

// WithInfoTimeout sets how long a request about the message box to another pod may take.
func WithInfoTimeout(d time.Duration) Option { return func(f *config) { f.infoTimeout = d } }

// WithFoundTime sets within which time the pod of an added host must be found.
func WithFoundTime(d time.Duration) Option { return func(f *config) { f.foundTime = d } }

// PodID returns the identifier of the task's pod.
func (t *Task) PodID() TID { return t.pod.r.ID() }

// AdoptInfo makes the task take over an entry of which it has a copy. It reports whether nothing is
// left to do.
func (t *Task) AdoptInfo(ctx context.Context, name string) bool {
	k := t.pod.infos
	k.mu.Lock()
	var found *copyOf
	for _, c := range k.copies {
		if c.Name == name {
			found = c
		}
	}
	k.mu.Unlock()
	return found == nil || k.adoptCopy(ctx, found)
}
