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
	unitFiles = 64      // files of a unit at most
	unitBytes = 8 << 20 // and their bytes, but for the last
	ahead     = 2       // units a crawler has at a time
)

// walk cuts the regular files under dir into units. Like grep -r it follows
// dir itself if that is a link, and no other. What cannot be entered is named.
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

// work is a unit and what has become of it.
type work struct {
	unit    unit     // its Indexer is empty while nobody is at it
	crawler rocl.GID // zero while nobody is at it
	indexer rocl.GID // the last that was given it, zero at first
	result  *indexed
}

// coordinator shares the units among crawlers and indexers, and begins again
// what died with one of them.
type coordinator struct {
	c       *rocl.Context
	me      *rocl.Resource
	run     string
	rep     reporter
	units   []*work
	todo    []*work
	left    int // units without result
	crawler map[rocl.GID]int
	indexer []rocl.GID
	front   rocl.GID
	turn    int
	redone  int
	found   map[rocl.GID]string // processes that have been spoken of, by their names
	lost    map[rocl.GID]bool   // processes that are gone
	msgs    uint64
	before  []rocl.GID // crawlers and indexers there were when the watch began
	synced  bool       // the watch has told of all there are
	kill    func()     // kills an indexer, once a third is done; may be nil
}

func newCoordinator(c *rocl.Context, me *rocl.Resource, run string, rep reporter, units []*work) *coordinator {
	return &coordinator{
		c: c, me: me, run: run, rep: rep, units: units, todo: slices.Clone(units), left: len(units),
		crawler: map[rocl.GID]int{}, found: map[rocl.GID]string{}, lost: map[rocl.GID]bool{},
	}
}

// reporter tells a person what happens.
type reporter interface {
	say(format string, args ...any)
	total(units int)
	step(done int, bytes uint64)
}

// index runs until every unit is in the index of somebody who is there. The
// watch tells anew who that is.
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
	defer func() { // both have ended: no answer to a question is taken for a late report
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

// event notes who has come and who has gone.
func (co *coordinator) event(ev rocl.Event) error {
	role, pid := ev.Attrs.GetString(attrRole), ev.Attrs.GetString("pid")
	switch {
	case co.lost[ev.ID]: // given up: what it has is, or will be, with others
	case ev.Kind == rocl.Appeared && role != "coordinator":
		if co.found[ev.ID] == "" {
			co.found[ev.ID] = fmt.Sprintf("%s %v (process %s)", role, ev.ID, pid)
			co.rep.say("found %-8s {demo=%s, role=%s} as %v, process %s", role, co.run, role, ev.ID, pid)
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

// gone takes a process off the list.
func (co *coordinator) gone(id rocl.GID) error {
	delete(co.crawler, id)
	co.indexer = slices.DeleteFunc(co.indexer, func(i rocl.GID) bool { return i == id })
	co.bury(id)
	if !co.synced {
		return nil // others may still be told of
	}
	return co.enough()
}

// bury has done again what a process took with it that is on no list any more:
// a crawler the units it was at, an indexer all it had.
func (co *coordinator) bury(id rocl.GID) {
	co.lost[id] = true
	n := co.again(func(w *work) bool { return w.indexer == id || w.crawler == id && w.result == nil })
	name := co.found[id]
	if name == "" { // it went before it was spoken of
		name = fmt.Sprintf("process %v", id)
	}
	co.rep.say("%s is gone: %d units are done again by the others", name, n)
}

// enough says whether those that are left can go on.
func (co *coordinator) enough() error {
	switch {
	case len(co.crawler) == 0:
		return errors.New("no crawler is left")
	case len(co.indexer) == 0:
		return errors.New("no indexer is left")
	}
	return nil
}

// again puts units back to be done once more.
func (co *coordinator) again(which func(*work) bool) (n int) {
	for _, w := range co.units {
		if w.unit.Indexer == "" || !which(w) {
			continue
		}
		if _, ok := co.crawler[w.crawler]; ok && w.result == nil {
			// Its crawler still has it and will report in vain.
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

// assign gives crawlers with a free hand their next units.
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
		// A unit that is done again because of its crawler may be in the
		// index already, with the news of it under way: its indexer knows,
		// another would count its files once more.
		if !slices.Contains(co.indexer, w.indexer) {
			co.turn++
			w.indexer = co.indexer[co.turn%len(co.indexer)]
		}
		w.crawler = crawler
		w.unit.Indexer = w.indexer.String()
		err := sendJSON(ctx, co.me, crawler, tagUnit, &w.unit)
		if errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable) {
			// The watch will say so too; until then it is not asked again.
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

// message takes in a report.
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
			return 0, nil // an attempt that was given up
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

// query asks the front end; what is lost meanwhile is indexed again first.
func (co *coordinator) query(ctx context.Context, word string) (told, error) {
	for try := 0; ; try++ {
		t, err := question(ctx, co.me, co.front, ask{Word: word})
		if err == nil && t.Err == "" && t.Indexers == len(co.indexer) {
			return t, nil
		}
		if try == 3 || ctx.Err() != nil {
			if errors.Is(err, rocl.ErrGone) {
				return t, fmt.Errorf("the front end has died, and there is one only: start the demonstration anew (%w)", err)
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

// summary adds up the results.
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
