// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

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
	rep     *reporter
	units   []*work
	todo    []*work
	left    int              // number of units without a result
	crawler map[rocl.GID]int // how many units each has
	indexer []rocl.GID
	front   rocl.GID
	names   map[rocl.GID]string // of the processes that were found
	turn    int
	redone  int
	lost    int // processes that have ended
	msgs    uint64
	kill    func() // kills an indexer when a third of the units is done; may be nil
}

func newCoordinator(c *rocl.Context, me *rocl.Resource, run string, rep *reporter, units []*work) *coordinator {
	return &coordinator{
		c: c, me: me, run: run, rep: rep, units: units, todo: slices.Clone(units), left: len(units),
		crawler: map[rocl.GID]int{}, names: map[rocl.GID]string{},
	}
}

// longest limits how long the processes take to appear, and how long an answer shows that an
// indexer has ended.
const longest = 20 * time.Second

// gather waits until so many processes, with this one, have been found. From then on the
// coordinator gets a message when one of them ends.
func (co *coordinator) gather(ctx context.Context, processes int) error {
	wait, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	found, err := co.c.Await(wait, rocl.Match{attrRun: co.run}, processes)
	if err != nil {
		return fmt.Errorf("waiting for the processes to appear: %w", err)
	}
	for _, f := range found {
		if err := co.enter(ctx, f.ID, f.Attrs.GetString(attrRole), f.Attrs.GetString("pid")); err != nil {
			return err
		}
	}
	return nil
}

// enter puts a process on the list of its role.
func (co *coordinator) enter(ctx context.Context, id rocl.GID, role, pid string) error {
	switch role {
	case "crawler":
		co.crawler[id] = 0
	case "indexer":
		co.indexer = append(co.indexer, id)
	case "front":
		co.front = id
	default: // the coordinator
		return nil
	}
	co.names[id] = fmt.Sprintf("%s %v (process %s)", role, id, pid)
	co.rep.printf("found %-8s {demo=%s, role=%s} as %v, process %s", role, co.run, role, id, pid)
	_, err := co.me.Monitor(ctx, id, tagGone)
	return err
}

// index runs until every unit is in the index of an indexer that lives.
func (co *coordinator) index(ctx context.Context) error {
	for co.left > 0 {
		if err := co.assign(ctx); err != nil {
			return err
		}
		if err := co.receive(ctx); err != nil {
			return err
		}
		if co.kill != nil && co.left*3 <= len(co.units)*2 {
			co.kill()
			co.kill = nil
		}
	}
	return nil
}

// receive handles the next message.
func (co *coordinator) receive(ctx context.Context) error {
	m, err := co.me.Recv(ctx)
	if err != nil {
		return fmt.Errorf("receiving: %w", err)
	}
	defer m.Release()
	before := co.left
	err = co.message(m)
	if done, all := len(co.units)-co.left, len(co.units); co.left < before && done*4/all > (done-1)*4/all {
		co.rep.printf("%d %% of %d units are indexed", done*100/all, all)
	}
	return err
}

// gone takes a process that has ended off the lists, and gives out again the units that are lost:
// of a crawler those that it had, of an indexer all units in its index.
func (co *coordinator) gone(id rocl.GID) error {
	delete(co.crawler, id)
	co.indexer = slices.DeleteFunc(co.indexer, func(i rocl.GID) bool { return i == id })
	co.lost++
	n := co.again(func(w *work) bool { return w.indexer == id || w.crawler == id && w.result == nil })
	co.rep.printf("%s is gone: %d units are done again by the others", co.names[id], n)
	switch {
	case id == co.front:
		return errors.New("the front end has died, and there is only one: start the demonstration again")
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
		err := rocl.SendValue(ctx, co.me, crawler, tagUnit, w.unit)
		if errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable) {
			// The monitor will report the end too. Until then the crawler gets no further units.
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

// message handles a report of a crawler, an indexer or a monitor.
func (co *coordinator) message(m *rocl.Message) error {
	co.msgs++
	switch m.Tag() {
	case tagGone:
		return co.gone(m.From())
	case tagSent:
		s, err := rocl.Value[sent](m)
		if err != nil {
			return err
		}
		co.msgs += s.Messages
		if s.Err != "" && int(s.ID) < len(co.units) {
			co.again(func(w *work) bool { return w.unit.ID == s.ID && w.unit.Attempt == s.Attempt && w.result == nil })
		}
	case tagIndexed:
		r, err := rocl.Value[indexed](m)
		if err != nil {
			return err
		}
		if int(r.ID) >= len(co.units) {
			return nil
		}
		w := co.units[r.ID]
		if w.result != nil || w.unit.Attempt != r.Attempt || w.indexer != m.From() {
			return nil // a report of an attempt that was given up
		}
		w.result = &r
		if _, ok := co.crawler[w.crawler]; ok {
			co.crawler[w.crawler]--
		}
		co.left--
	}
	return nil
}

// query asks the front end for a word. If an indexer has ended, its units are indexed again first.
func (co *coordinator) query(ctx context.Context, word string) (answer, error) {
	begun := time.Now()
	for {
		t, err := question(ctx, co.me, co.front, word)
		if err == nil && t.Err == "" && t.Indexers == len(co.indexer) {
			return t, nil
		}
		if err == nil {
			err = errors.New(cmp.Or(t.Err, "an indexer has ended"))
		}
		if time.Since(begun) < longest {
			err = co.handleEnd(ctx)
		}
		if err != nil {
			return t, fmt.Errorf("asking for %q: %w", word, err)
		}
	}
}

// handleEnd handles the message that a process has ended, if that comes soon.
func (co *coordinator) handleEnd(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := co.receive(soon); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		return err
	}
	return co.index(ctx)
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
	r.Messages, r.Redone, r.Killed = co.msgs, co.redone, co.lost
	return r
}
