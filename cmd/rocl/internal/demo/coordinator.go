// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/rocl-go/rocl"
)

const (
	unitFiles = 64      // limit of the files of a unit
	unitBytes = 8 << 20 // limit of their bytes, without those of the last file
	ahead     = 2       // limit of the units that one crawler has at a time
)

// walk cuts the regular files under dir into units. Like grep -r it follows dir itself if that is a
// link, and no other link. bad names the folders that could not be entered.
func walk(dir string) (units []*work, files int, bad []string, err error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, 0, nil, err
	}
	var cur *work
	var size int64
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == root {
				return err
			}
			bad = append(bad, err.Error())
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if cur == nil || len(cur.unit.Paths) >= unitFiles || size >= unitBytes {
			cur = &work{unit: unit{ID: uint32(len(units))}}
			units = append(units, cur)
			size = 0
		}
		files++
		cur.unit.Paths = append(cur.unit.Paths, []byte(path))
		if fi, err := d.Info(); err == nil {
			size += fi.Size()
		}
		return nil
	})
	return units, files, bad, err
}

// work is a unit and its state.
type work struct {
	unit    unit     // its Indexer is empty while no crawler has the unit
	crawler rocl.GID // zero while no crawler has the unit
	indexer rocl.GID // the last indexer that was given the unit, zero at first
	result  *indexed
}

// coordinator gives the units to crawlers and indexers. When one of these ends, it gives out again
// the units that were lost.
type coordinator struct {
	c       *rocl.Context
	me      *rocl.Resource
	run     string
	rep     reporter
	units   []*work
	todo    []*work
	left    int // number of units without a result
	crawler map[rocl.GID]int
	indexer []rocl.GID
	front   rocl.GID
	turn    int
	redone  int
	found   map[rocl.GID]string // names of the processes that were reported
	lost    map[rocl.GID]bool   // processes that have ended
	msgs    uint64
	before  []rocl.GID // crawlers and indexers that were known when the watch began
	synced  bool       // the watch has yielded all processes that exist
	kill    func()     // kills an indexer when a third of the units is done; may be nil
}

func newCoordinator(c *rocl.Context, me *rocl.Resource, run string, rep reporter, units []*work) *coordinator {
	return &coordinator{
		c: c, me: me, run: run, rep: rep, units: units, todo: slices.Clone(units), left: len(units),
		crawler: map[rocl.GID]int{}, found: map[rocl.GID]string{}, lost: map[rocl.GID]bool{},
	}
}

// reporter shows the user what happens.
type reporter interface {
	printf(format string, args ...any)
	total(units int)
	step(done int, bytes uint64)
}

// index runs until every unit is in the index of an indexer that lives. The watch says which ones
// live.
func (co *coordinator) index(ctx context.Context) error {
	co.before = append(slices.Collect(maps.Keys(co.crawler)), co.indexer...)
	co.crawler, co.indexer, co.synced = map[rocl.GID]int{}, nil, false
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan rocl.Event)
	watched := make(chan error, 1)
	go func() {
		watched <- co.watch(ctx, events)
		close(events)
	}()
	messages := make(chan *rocl.Message)
	defer func() { // both goroutines have ended, so that a late report is not taken for an answer
		cancel()
		for range events {
		}
		for m := range messages {
			m.Release()
		}
	}()
	received := make(chan error, 1)
	go func() {
		defer close(messages)
		for m, err := range co.me.Messages(ctx) {
			if err != nil {
				received <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				m.Release()
				return
			}
		}
	}()
	co.rep.total(len(co.units))
	for co.left > 0 || !co.synced {
		if err := co.assign(ctx); err != nil {
			return err
		}
		select {
		case ev, ok := <-events:
			if !ok {
				return fmt.Errorf("watching the processes: %w", <-watched)
			}
			if err := co.event(ev); err != nil {
				return err
			}
		case m, ok := <-messages:
			if !ok {
				return fmt.Errorf("receiving: %w", errors.Join(ctx.Err(), drain(received)))
			}
			n, err := co.message(m)
			m.Release()
			if err != nil {
				return err
			}

			co.rep.step(len(co.units)-co.left, n)
			if co.kill != nil && co.left*3 <= len(co.units)*2 {
				co.kill()
				co.kill = nil
			}
		}
	}
	return nil
}

func drain(ch <-chan error) error {
	select {
	case err := <-ch:
		return err
	default:
		return nil
	}
}

func (co *coordinator) watch(ctx context.Context, to chan<- rocl.Event) error {
	for ev, err := range co.c.Watch(ctx, rocl.Match{attrRun: co.run}) {
		if err != nil {
			return err
		}
		select {
		case to <- ev:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// event handles the event that a process has appeared or gone.
func (co *coordinator) event(ev rocl.Event) error {
	role, pid := ev.Attrs.GetString(attrRole), ev.Attrs.GetString("pid")
	switch {
	case co.lost[ev.ID]: // given up: other processes have its units, or will get them
	case ev.Kind == rocl.Appeared && role != "coordinator":
		if co.found[ev.ID] == "" {
			co.found[ev.ID] = fmt.Sprintf("%s %v (process %s)", role, ev.ID, pid)
			co.rep.printf("found %-8s {demo=%s, role=%s} as %v, process %s", role, co.run, role, ev.ID, pid)
		}
		switch role {
		case "crawler":
			co.crawler[ev.ID] = 0
		case "indexer":
			co.indexer = append(co.indexer, ev.ID)
		case "front":
			co.front = ev.ID
		}
	case ev.Kind == rocl.Gone && (role == "crawler" || role == "indexer"):
		return co.gone(ev.ID)
	case ev.Kind == rocl.Synced:
		co.synced = true
		for _, id := range co.before {
			if _, ok := co.crawler[id]; !ok && !slices.Contains(co.indexer, id) {
				co.bury(id)
			}
		}
		return co.enough()
	}
	return nil
}

// gone takes a process off the lists.
func (co *coordinator) gone(id rocl.GID) error {
	delete(co.crawler, id)
	co.indexer = slices.DeleteFunc(co.indexer, func(i rocl.GID) bool { return i == id })
	co.bury(id)
	if !co.synced {
		return nil // the watch may still yield other processes
	}
	return co.enough()
}

// bury gives out again the units that a process has lost by ending: a crawler the units that it
// had, an indexer all units in its index. The process is on no list any more.
func (co *coordinator) bury(id rocl.GID) {
	co.lost[id] = true
	n := co.again(func(w *work) bool { return w.indexer == id || w.crawler == id && w.result == nil })
	name := co.found[id]
	if name == "" { // the process ended before it was reported
		name = fmt.Sprintf("process %v", id)
	}
	co.rep.printf("%s is gone: %d units are done again by the others", name, n)
}

// enough returns an error if the remaining processes cannot go on.
func (co *coordinator) enough() error {
	switch {
	case len(co.crawler) == 0:
		return errors.New("no crawler is left")
	case len(co.indexer) == 0:
		return errors.New("no indexer is left")
	}
	return nil
}

// again marks the units that which selects, to be done once more, and returns how many.
func (co *coordinator) again(which func(*work) bool) (n int) {
	for _, w := range co.units {
		if w.unit.Indexer == "" || !which(w) {
			continue
		}
		if _, ok := co.crawler[w.crawler]; ok && w.result == nil {
			// Its crawler still has the unit. The report of that attempt will be ignored.
			co.crawler[w.crawler]--
		}
		if w.result != nil {
			co.left++
			w.result = nil
		}
		w.unit.Attempt++
		w.unit.Indexer, w.crawler = "", rocl.GID{}
		co.todo = append(co.todo, w)
		co.redone++
		n++
	}
	return n
}

// assign gives further units to the crawlers that have fewer than ahead.
func (co *coordinator) assign(ctx context.Context) error {
	for len(co.indexer) > 0 {
		var crawler rocl.GID
		least := ahead
		for id, n := range co.crawler {
			if n < least {
				crawler, least = id, n
			}
		}
		if least == ahead || len(co.todo) == 0 {
			return nil
		}
		w := co.todo[0]
		co.todo = co.todo[1:]
		// A unit that is done again because its crawler has ended may be in the index already,
		// while the report of that is under way. Its indexer notices that; another indexer would
		// count the files a second time.
		if !slices.Contains(co.indexer, w.indexer) {
			co.turn++
			w.indexer = co.indexer[co.turn%len(co.indexer)]
		}
		w.crawler = crawler
		w.unit.Indexer = w.indexer.String()
		err := sendJSON(ctx, co.me, crawler, tagUnit, &w.unit)
		if errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable) {
			// The watch will report the end too. Until then the crawler gets no further units.
			delete(co.crawler, crawler)
			co.again(func(o *work) bool { return o.crawler == crawler && o.result == nil })
			continue
		}
		if err != nil {
			return err
		}
		co.msgs++
		co.crawler[crawler]++
	}
	return nil
}

// message handles a report of a crawler or an indexer. bytes is the size of what was indexed.
func (co *coordinator) message(m *rocl.Message) (bytes uint64, err error) {
	co.msgs++
	switch m.Tag() {
	case tagSent:
		var s sent
		if err := json.Unmarshal(m.Bytes(), &s); err != nil {
			return 0, err
		}
		co.msgs += s.Messages
		if s.Err != "" && int(s.ID) < len(co.units) {
			co.again(func(w *work) bool { return w.unit.ID == s.ID && w.unit.Attempt == s.Attempt && w.result == nil })
		}
	case tagIndexed:
		var r indexed
		if err := json.Unmarshal(m.Bytes(), &r); err != nil {
			return 0, err
		}
		if int(r.ID) >= len(co.units) {
			return 0, nil
		}
		w := co.units[r.ID]
		if w.result != nil || w.unit.Attempt != r.Attempt || w.indexer != m.From() {
			return 0, nil // a report of an attempt that was given up
		}
		w.result = &r
		if _, ok := co.crawler[w.crawler]; ok {
			co.crawler[w.crawler]--
		}
		co.left--
		return r.Bytes, nil
	}
	return 0, nil
}

// query asks the front end for a word. If an indexer ends meanwhile, its units are indexed again
// first.
func (co *coordinator) query(ctx context.Context, word string) (answer, error) {
	for try := 0; ; try++ {
		t, err := question(ctx, co.me, co.front, ask{Word: word})
		if err == nil && t.Err == "" && t.Indexers == len(co.indexer) {
			return t, nil
		}
		if try == 3 || ctx.Err() != nil {
			if errors.Is(err, rocl.ErrGone) {
				return t, fmt.Errorf("the front end has died, and there is only one: start the demonstration again: %w", err)
			}
			if err == nil {
				err = errors.New(t.Err)
			}
			return t, fmt.Errorf("asking for %q: %w", word, err)
		}
		if err := co.index(ctx); err != nil {
			return t, err
		}
	}
}

// summary returns the sum of the results.
func (co *coordinator) summary() (r Result) {
	for _, w := range co.units {
		if w.result == nil {
			continue
		}
		r.Files += w.result.Files
		r.Binary += w.result.Binary
		r.Bytes += w.result.Bytes
		r.Skipped = append(r.Skipped, w.result.Skipped...)
	}
	r.Messages, r.Redone, r.Killed = co.msgs, co.redone, len(co.lost)
	return r
}
