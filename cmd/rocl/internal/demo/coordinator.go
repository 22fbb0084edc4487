package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/rocl-go/rocl"
)

const (
	unitFiles  = 64      // files of a unit at most
	unitBytes  = 8 << 20 // and their bytes, but for the last
	ahead      = 2       // units a crawler has at a time
	answerTime = time.Second
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
	unit    unit
	crawler rocl.GID
	indexer rocl.GID
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
	lost    int
	msgs    uint64
	kill    func() // kills an indexer, once a third is done; may be nil
}

// reporter tells a person what happens.
type reporter interface {
	say(format string, args ...any)
	total(units int)
	step(done int, bytes uint64)
}

var errNobody = errors.New("no indexer is left")

// index runs until every unit is in the index.
func (co *coordinator) index(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan rocl.Event)
	watched := make(chan error, 1)
	go func() {
		watched <- co.watch(ctx, events)
		close(events)
	}()
	defer func() {
		cancel()
		for range events {
		}
	}()
	messages := make(chan *rocl.Message)
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
	for co.left > 0 {
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
	case ev.Kind == rocl.Appeared && role != "coordinator":
		co.rep.say("found %-8s {demo=%s, role=%s} as %v, process %s", role, co.run, role, ev.ID, pid)
		switch role {
		case "crawler":
			co.crawler[ev.ID] = 0
		case "indexer":
			co.indexer = append(co.indexer, ev.ID)
		case "front":
			co.front = ev.ID
		}
	case ev.Kind == rocl.Gone && role == "crawler":
		co.rep.say("crawler %v (process %s) is gone", ev.ID, pid)
		co.lost++
		delete(co.crawler, ev.ID)
		co.again(func(w *work) bool { return w.crawler == ev.ID && w.result == nil })
		if len(co.crawler) == 0 {
			return errors.New("no crawler is left")
		}
	case ev.Kind == rocl.Gone && role == "indexer":
		co.lost++
		for i, id := range co.indexer {
			if id == ev.ID {
				co.indexer = append(co.indexer[:i], co.indexer[i+1:]...)
				break
			}
		}
		n := co.again(func(w *work) bool { return w.indexer == ev.ID })
		co.rep.say("indexer %v (process %s) is gone: %d units are done again by the others", ev.ID, pid, n)
		if len(co.indexer) == 0 {
			return errNobody
		}
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
		w.unit.Indexer, w.indexer, w.crawler = "", rocl.GID{}, rocl.GID{}
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
		co.turn++
		w.crawler, w.indexer = crawler, co.indexer[co.turn%len(co.indexer)]
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
		t, err := co.ask(ctx, word)
		if err == nil && t.Err == "" && t.Indexers == len(co.indexer) {
			return t, nil
		}
		if try == 3 || ctx.Err() != nil {
			return t, errors.Join(err, fmt.Errorf("asking for %q: %s", word, t.Err))
		}
		if err := co.mend(ctx); err != nil {
			return t, err
		}
	}
}

func (co *coordinator) ask(ctx context.Context, word string) (t told, err error) {
	if err := sendJSON(ctx, co.me, co.front, tagAsk, ask{Word: word}); err != nil {
		return t, err
	}
	m, err := recvFrom(ctx, co.c, co.me, co.front, tagTold)
	if err != nil {
		return t, err
	}
	defer m.Release()
	return t, json.Unmarshal(m.Bytes(), &t)
}

// mend looks who is left, and has done again what is missing.
func (co *coordinator) mend(ctx context.Context) error {
	alive := map[rocl.GID]bool{}
	for f, err := range co.c.FindAll(ctx, rocl.Match{attrRun: co.run, attrRole: "indexer"}) {
		if err != nil {
			return err
		}
		alive[f.ID] = true
	}
	if co.again(func(w *work) bool { return !alive[w.indexer] }) > 0 {
		co.crawler, co.indexer = map[rocl.GID]int{}, nil // the watch tells anew
		return co.index(ctx)
	}
	co.indexer = co.indexer[:0]
	for id := range alive {
		co.indexer = append(co.indexer, id)
	}
	return nil
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
	r.Messages, r.Redone, r.Killed = co.msgs, co.redone, co.lost
	return r
}
