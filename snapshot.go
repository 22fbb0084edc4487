// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/version"
)

// A Snapshot is what a context has, and what goes on in it, at one moment: its messages, receives,
// sends, calls and links. It is the answer of [Context.Snapshot] and [Context.SnapshotOf], and JSON
// of the commands. A reader must expect fields that it does not know, and must not trust the values
// of a foreign context.
type Snapshot struct {
	Version   int                     `json:"version"` // SnapshotVersion
	Context   GID                     `json:"context"`
	PID       int                     `json:"pid"`
	Program   string                  `json:"program"` // the name of the executable, without its folder
	Rocl      string                  `json:"rocl"`    // the version of this module
	Started   time.Time               `json:"started"` // when the context was opened
	Taken     time.Time               `json:"taken"`
	Stats     Stats                   `json:"stats,omitzero"`  // zero in a summary
	Resources []ResourceSnapshot      `json:"resources"`       // the most interesting first: those that senders wait for, then by waiting messages
	Sends     []dispatch.SendSnapshot `json:"sends,omitempty"` // those that snapshots have seen first come first
	Calls     []dispatch.CallSnapshot `json:"calls,omitempty"` // the oldest first
	Links     []dispatch.LinkSnapshot `json:"links"`           // the most interesting first: those that dial, then by what is not acknowledged
	Memory    uint64                  `json:"memory"`          // bytes that the context has mapped for messages and buffers; Stats.Buffers has more
	Cut       map[string]int          `json:"cut,omitempty"`   // how many entries were left out of "resources", "sends", "calls", "links", and of "receivers", "senders" and "handlers" of resources
}

// SnapshotVersion is the version of Snapshot. It changes if a field changes its meaning.
const SnapshotVersion = 1

// Limits of a Snapshot.
const (
	mostName     = 64 // characters of a name
	mostHandlers = 64 // of a resource
)

// A ResourceSnapshot is a resource and its mailbox at one moment.
type ResourceSnapshot struct {
	dispatch.MailboxSnapshot
	Name     string            `json:"name"`               // a short form of the attributes
	Handlers []HandlerSnapshot `json:"handlers,omitempty"` // of Handle, and of layers such as package rpc
}

// A HandlerSnapshot is what the handlers of one kind of message do at one moment.
type HandlerSnapshot struct {
	Name    string        `json:"name"`    // of the call; "" for Resource.Handle
	Running int           `json:"running"` // handlers that run now
	Oldest  time.Duration `json:"oldest"`  // nanoseconds that the first of them has run; 0: none runs, or it is not timed
	Ended   uint64        `json:"ended"`   // handlers that have returned; if none does while some run, they stand still
	Errors  uint64        `json:"errors"`  // of them, with an error or a panic

	// A histogram of how long handlers took, if they are timed. Took[i] counts those that took at
	// most 1.024 µs · 2^i and longer than those before. Took[23], the last, counts all longer ones.
	Took  []uint64      `json:"took,omitempty"`
	Total time.Duration `json:"total,omitempty"` // nanoseconds of all that are counted, added
}

// An Activity tells snapshots what a layer above this package does with a resource: see
// [Resource.SetActivity]. A function that is nil tells nothing. The functions are called by any
// goroutine, also at the same time, without locks. They must not wait. A panic of theirs ends the
// program.
type Activity struct {
	Handlers func() []HandlerSnapshot // for the messages to the resource
	CallName func(tag uint64) string  // the name of a call with a tag that the resource makes; "": it has none
}

// SetActivity makes snapshots of the context include what a layer above does with the resource, in
// place of what an earlier SetActivity said. Package rpc uses it, and so may any program with
// handlers of its own. It costs nothing until a snapshot is taken.
func (r *Resource) SetActivity(a Activity) {
	r.activity.Store(&a)
	r.showActivity()
}

// showActivity makes snapshots look at the activity of the resource, until the resource is deleted.
func (r *Resource) showActivity() {
	r.c.active.Store(r.id, r)
	if r.deleting.Load() {
		r.c.active.Delete(r.id)
	}
}

// handlers returns what Handle, and the layer above, do with the resource.
func (r *Resource) handlers() (all []HandlerSnapshot) {
	if ended := r.handled.ended.Load(); r.handled.isUsed.Load() { // ended first: the difference is never negative
		all = append(all, HandlerSnapshot{Running: int(r.handled.begun.Load() - ended), Ended: ended, Errors: r.handled.panics.Load()})
	}
	if a := r.activity.Load(); a != nil && a.Handlers != nil {
		all = append(all, a.Handlers()...)
	}
	return all
}

// Snapshot returns what the context has now, and what waits in it. It takes locks for moments only:
// messages go on meanwhile. It is meant to be called some times a second at most.
func (c *Context) Snapshot() Snapshot {
	d := c.disp.Snapshot()
	s := Snapshot{
		Version: SnapshotVersion, Context: c.self, PID: os.Getpid(), Program: icontext.Program(), Rocl: version.String(), Started: c.opened, Taken: time.Now(),
		Stats: c.Stats(), Sends: d.Sends, Calls: d.Calls, Links: d.Links, Cut: d.Cut,
		Resources: make([]ResourceSnapshot, len(d.Mailboxes)),
	}
	s.Memory = uint64(s.Stats.Buffers.Mapped)
	for i, m := range d.Mailboxes {
		attrs := c.dir.Attrs(m.Resource)
		r := ResourceSnapshot{MailboxSnapshot: m, Name: nameOf(&attrs)}
		if a := c.activeResource(m.Resource); a != nil {
			r.Handlers = a.handlers()
			s.Cut["handlers"] += max(len(r.Handlers)-mostHandlers, 0)
			r.Handlers = r.Handlers[:min(len(r.Handlers), mostHandlers)]
		}
		s.Resources[i] = r
	}
	for i := range s.Calls {
		call := &s.Calls[i]
		if r := c.activeResource(call.From); r != nil {
			if a := r.activity.Load(); a != nil && a.CallName != nil {
				call.Name = a.CallName(call.Tag)
			}
		}
	}
	maps.DeleteFunc(s.Cut, func(_ string, n int) bool { return n == 0 })
	display.Clean(&s)
	return s
}

// activeResource returns a resource that has an activity, or nil.
func (c *Context) activeResource(id GID) *Resource {
	r, _ := c.active.Load(id)
	of, _ := r.(*Resource)
	return of
}

// SnapshotOf returns the snapshot of another context of this context's node, as [Context.Snapshot]
// does there. It asks that context, and waits for the answer until ctx ends. So a process that has
// been stopped ends it by ctx only, and so does a process with an older version of the library. The
// answer has at most 1 MiB: Cut says what is not in it. Numbers are not negative, and texts are
// short and safe to show, whatever the other context says. SnapshotOf fails with ErrIdentifiers as
// [Context.Register] does.
func (c *Context) SnapshotOf(ctx context.Context, id GID) (Snapshot, error) {
	return c.snapshotOf(ctx, id, icontext.MaxSnapshot)
}

// snapshotOf is SnapshotOf with an answer of at most most bytes.
func (c *Context) snapshotOf(ctx context.Context, id GID, most int) (Snapshot, error) {
	if id = id.Context(); id == c.self {
		s := c.Snapshot()
		_, err := s.encode(most)
		return s, err
	}
	var s Snapshot
	serial, box, err := c.newMailbox(0, 0, false)
	if err == nil {
		defer box.Close()
		err = c.questions.SnapshotOf(ctx, id, most, serial, box, &s)
	}
	switch {
	case err != nil:
	case s.Version != SnapshotVersion:
		err = fmt.Errorf("its version is %d, not %d", s.Version, SnapshotVersion)
	case s.Context != id:
		err = fmt.Errorf("it is that of %v", s.Context)
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("rocl: ask context %v for its snapshot: %w", id, err)
	}
	display.Clean(&s)
	return s, nil
}

// snapshotJSON returns the snapshot as JSON of at most most bytes.
func (c *Context) snapshotJSON(most int) ([]byte, error) {
	s := c.Snapshot()
	return s.encode(most)
}

// encode returns the snapshot as JSON of at most most bytes, some thousands, and leaves out what is
// too much.
func (s *Snapshot) encode(most int) ([]byte, error) {
	for {
		b, err := json.Marshal(s)
		if err != nil || len(b) <= most || len(s.Resources)+len(s.Sends)+len(s.Calls)+len(s.Links) == 0 {
			return b, err
		}
		part := 0.9 * float64(most) / float64(len(b))
		s.keep(func(n int) int { return int(part * float64(n)) })
	}
}

// keep shortens each list with n entries to most(n).
func (s *Snapshot) keep(most func(n int) int) {
	if s.Cut == nil {
		s.Cut = map[string]int{}
	}
	s.Resources = shorten(s.Cut, "resources", s.Resources, most(len(s.Resources)))
	s.Sends = shorten(s.Cut, "sends", s.Sends, most(len(s.Sends)))
	s.Calls = shorten(s.Cut, "calls", s.Calls, most(len(s.Calls)))
	s.Links = shorten(s.Cut, "links", s.Links, most(len(s.Links)))
}

// shorten returns the first most entries of a list, and notes in cut how many others there are.
func shorten[T any](cut map[string]int, name string, all []T, most int) []T {
	if most >= len(all) {
		return all
	}
	cut[name] += len(all) - most
	clear(all[most:]) // for the collector
	return all[:most]
}

// nameOf returns a short form of attributes, without those of the library.
func nameOf(l *List) string {
	var b strings.Builder
	for k, v := range l.All() {
		if strings.HasPrefix(k, "rocl.") {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(quote(k))
		b.WriteByte('=')
		b.WriteString(quote(string(v[:min(len(v), mostName)])))
		if b.Len() > 4*mostName {
			break
		}
	}
	s := []rune(b.String())
	if len(s) > mostName {
		s = append(s[:mostName-1], '…')
	}
	return string(s)
}

// quote returns s, in quotes if a name or a value with these characters would be unclear.
func quote(s string) string { return display.QuoteIf(strings.ContainsAny(s, ` ="`), s) }
