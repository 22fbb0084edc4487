// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/demo/index"
)

// role opens a context and registers its resource as one of the run's processes.
func role(ctx context.Context, socket, run, name string) (*rocl.Context, *rocl.Resource, error) {
	c, err := rocl.Open(ctx, rocl.WithSocket(socket), rocl.JoinOnly())
	if err != nil {
		return nil, nil, err
	}
	me, err := c.Register(ctx, rocl.Attrs{attrRun: run, attrRole: name, "pid": fmt.Sprint(os.Getpid())})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, me, nil
}

// crawl reads the files of each unit and sends them to its indexer.
func crawl(ctx context.Context, c *rocl.Context, me *rocl.Resource) error {
	for m, err := range me.Messages(ctx, rocl.Tag(tagUnit)) {
		if err != nil {
			return err
		}
		u, err := rocl.Value[unit](m)
		boss := m.From()
		m.Release()
		if err != nil {
			return err
		}
		done := sent{ID: u.ID, Attempt: u.Attempt}
		if err := crawlUnit(ctx, c, me, boss, &u, &done); err != nil {
			if ctx.Err() != nil {
				return err
			}
			done.Err = err.Error()
		}
		if err := rocl.SendValue(ctx, me, boss, tagSent, done); err != nil {
			return err
		}
	}
	return nil
}

func crawlUnit(ctx context.Context, c *rocl.Context, me *rocl.Resource, boss rocl.GID, u *unit, done *sent) error {
	to, err := rocl.ParseGID(u.Indexer)
	if err != nil {
		return err
	}
	e := end{ID: u.ID, Attempt: u.Attempt, Coordinator: boss.String(), Paths: u.Paths}
	for i, path := range u.Paths {
		err := sendFile(ctx, c, me, to, string(path), fileTag{u.ID, uint8(u.Attempt), uint16(i)})
		var bad *fileError
		if errors.As(err, &bad) {
			e.Skipped = append(e.Skipped, bad.Error())
			continue
		}
		if err != nil {
			return err
		}
		done.Messages++
	}
	done.Messages++
	return rocl.SendValue(ctx, me, to, tagEnd, e)
}

// fileError marks an error of reading a file, as opposed to sending it.
type fileError struct{ error }

// sendFile sends a file, which it reads directly into the buffer of the message.
func sendFile(ctx context.Context, c *rocl.Context, me *rocl.Resource, to rocl.GID, path string, t fileTag) error {
	f, err := os.Open(path)
	if err != nil {
		return &fileError{err}
	}
	defer f.Close()
	fi, err := f.Stat()
	if err == nil && fi.Size() >= rocl.MaxMessage {
		err = fmt.Errorf("%s: %w", path, rocl.ErrTooLarge)
	}
	if err != nil {
		return &fileError{err}
	}
	b, err := c.BufferWait(ctx, int(fi.Size())+1)
	if errors.Is(err, rocl.ErrTooLarge) {
		return &fileError{fmt.Errorf("%s: %w", path, err)}
	}
	if err != nil {
		return err
	}
	n, err := io.ReadFull(f, b.Bytes())
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		b.Release()
		return &fileError{cmp.Or(err, fmt.Errorf("%s: the file grows", path))}
	}
	_ = b.Resize(n)
	if err := me.Send(ctx, to, t.tag(), b); err != nil {
		b.Release()
		return err
	}
	return nil
}

// indexUnit is a unit that is being indexed.
type indexUnit struct {
	id      uint32
	attempt uint8
	files   []document
	binary  int
	bytes   uint64
}

// document is a text file of a unit.
type document struct {
	file  uint16 // number within the unit
	words []uint32
}

// indexer holds a share of the index.
type indexer struct {
	x     index.Index
	open  map[rocl.GID]*indexUnit // units that are being received, by crawler
	units map[uint32]bool         // committed units
}

func runIndexer(ctx context.Context, _ *rocl.Context, me *rocl.Resource) error {
	ix := &indexer{open: map[rocl.GID]*indexUnit{}, units: map[uint32]bool{}}
	for m, err := range me.Messages(ctx) {
		if err != nil {
			return err
		}
		switch m.Tag() & 0xff {
		case tagFile:
			ix.file(m)
		case tagEnd:
			err = ix.end(ctx, me, m)
		case tagAsk:
			files := ix.x.Files(string(m.Bytes()))
			t := answer{Matches: len(files), Words: ix.x.Len()}
			for _, name := range files[:min(names, len(files))] {
				t.Names = append(t.Names, []byte(name))
			}
			err = reply(ctx, me, m, t)
		}
		m.Release()
		if err != nil && ctx.Err() == nil && !errors.Is(err, rocl.ErrGone) {
			return err
		}
	}
	return nil
}

// file indexes a file, which counts when its unit ends.
func (ix *indexer) file(m *rocl.Message) {
	t, u := parseTag(m.Tag()), ix.open[m.From()]
	if u == nil || u.id != t.unit || u.attempt != t.attempt {
		u = &indexUnit{id: t.unit, attempt: t.attempt}
		ix.open[m.From()] = u
	}
	words, isText := ix.x.Words(m.Bytes())
	if !isText {
		u.binary++
		return
	}
	u.files = append(u.files, document{t.file, words})
	u.bytes += uint64(m.Len())
}

// end adds a unit to the index.
func (ix *indexer) end(ctx context.Context, me *rocl.Resource, m *rocl.Message) error {
	e, err := rocl.Value[end](m)
	if err != nil {
		return err
	}
	boss, err := rocl.ParseGID(e.Coordinator)
	if err != nil {
		return err
	}
	u := ix.open[m.From()]
	delete(ix.open, m.From())
	if u == nil || u.id != e.ID || u.attempt != uint8(e.Attempt) {
		u = &indexUnit{} // none of the unit's files could be read
	}
	if !ix.units[e.ID] {
		ix.units[e.ID] = true
		for _, d := range u.files {
			if int(d.file) >= len(e.Paths) {
				return fmt.Errorf("demo: the unit has no file %d: it has %d files", d.file, len(e.Paths))
			}
			ix.x.Commit(string(e.Paths[d.file]), d.words)
		}
	}
	return rocl.SendValue(ctx, me, boss, tagIndexed, indexed{ID: e.ID, Attempt: e.Attempt, Files: len(u.files), Binary: u.binary, Bytes: u.bytes, Skipped: e.Skipped})
}

// runFront answers questions for a word by asking every indexer.
func runFront(ctx context.Context, c *rocl.Context, me *rocl.Resource, run string) error {
	for m, err := range me.Messages(ctx, rocl.Tag(tagAsk)) {
		if err != nil {
			return err
		}
		t, err := lookUp(ctx, c, me, run, string(m.Bytes()))
		if err != nil {
			t.Err = err.Error()
		}
		err = reply(ctx, me, m, t)
		m.Release()
		if err != nil && !errors.Is(err, rocl.ErrGone) {
			return err
		}
	}
	return nil
}

func lookUp(ctx context.Context, c *rocl.Context, me *rocl.Resource, run, word string) (sum answer, err error) {
	for f, err := range c.FindAll(ctx, rocl.Match{attrRun: run, attrRole: "indexer"}) {
		if err != nil {
			return sum, err
		}
		t, err := question(ctx, me, f.ID, word)
		if err != nil {
			return sum, err
		}
		sum.Matches += t.Matches
		sum.Names = append(sum.Names, t.Names...)
		sum.Words += t.Words
		sum.Indexers++
	}
	sum.Names = sum.Names[:min(names, len(sum.Names))]
	return sum, nil
}

// question asks a process for a word. It fails with ErrGone as soon as that process has ended.
func question(ctx context.Context, me *rocl.Resource, to rocl.GID, word string) (answer, error) {
	m, err := me.CallBytes(ctx, to, tagAsk, []byte(word))
	if err != nil {
		return answer{}, err
	}
	defer m.Release()
	return rocl.Value[answer](m)
}

func reply(ctx context.Context, me *rocl.Resource, m *rocl.Message, t answer) error {
	b, err := rocl.EncodeValue(ctx, me.Context(), t)
	if err != nil {
		return err
	}
	if err = me.Reply(ctx, m, b); err != nil {
		b.Release()
	}
	return err
}
