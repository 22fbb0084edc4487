// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/demo/index"
)

// piece limits how many bytes of a file travel in one message.
const piece = 1 << 20

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

func sendJSON(ctx context.Context, me *rocl.Resource, to rocl.GID, tag uint64, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return me.SendBytes(ctx, to, tag, b)
}

// crawl reads the files of each unit and sends them to its indexer.
func crawl(ctx context.Context, c *rocl.Context, me *rocl.Resource) error {
	for m, err := range me.Messages(ctx, rocl.Tag(tagUnit)) {
		if err != nil {
			return err
		}
		var u unit
		err := json.Unmarshal(m.Bytes(), &u)
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
		if err := sendJSON(ctx, me, boss, tagSent, done); err != nil {
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
		h := content{unit: u.ID, attempt: u.Attempt, file: uint32(i)}
		n, err := sendFile(ctx, c, me, to, string(path), h)
		done.Messages += n
		var bad *fileError
		if errors.As(err, &bad) {
			e.Skipped = append(e.Skipped, bad.Error())
			continue
		}
		if err != nil {
			return err
		}
	}
	done.Messages++
	return sendJSON(ctx, me, to, tagEnd, e)
}

// fileError marks an error of reading a file, as opposed to sending it.
type fileError struct{ error }

// sendFile sends a file in pieces, which it reads directly into the buffers of the messages. If the
// file cannot be read to its end, the indexer is told to drop it.
func sendFile(ctx context.Context, c *rocl.Context, me *rocl.Resource, to rocl.GID, path string, h content) (messages uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, &fileError{err}
	}
	defer f.Close()
	size := int64(piece)
	if fi, err := f.Stat(); err == nil && fi.Size() < size {
		size = fi.Size()
	}
	h.flags = flagFirst
	for {
		// One byte more than the file should have reveals its end at once.
		b, err := c.Buffer(contentHead + int(size) + 1)
		if err != nil {
			return messages, err
		}
		n, err := io.ReadFull(f, b.Bytes()[contentHead:])
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			h.flags |= flagLast
		case err != nil:
			h.flags |= flagLast | flagFailed
			n = 0
		}
		h.put(b.Bytes())
		_ = b.Resize(contentHead + n)
		if err := me.Send(ctx, to, tagContent, b); err != nil {
			b.Release()
			return messages, err
		}
		messages++
		if h.flags&flagFailed != 0 {
			return messages, &fileError{err}
		}
		if h.flags&flagLast != 0 {
			return messages, nil
		}
		h.flags, size = 0, piece
	}
}

// indexUnit is a unit that is being indexed.
type indexUnit struct {
	id, attempt uint32
	file        *index.File
	size        uint64
	files       []document
	binary      int
	bytes       uint64
}

// document is a text file of a unit.
type document struct {
	file  uint32 // number within the unit
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
		switch m.Tag() {
		case tagContent:
			err = ix.content(m.From(), m.Bytes())
		case tagEnd:
			err = ix.end(ctx, me, m.From(), m.Bytes())
		case tagAsk:
			var a ask
			if err = json.Unmarshal(m.Bytes(), &a); err == nil {
				files := ix.x.Files(a.Word)
				t := answer{Matches: len(files), Words: ix.x.Words()}
				for _, name := range files[:min(names, len(files))] {
					t.Names = append(t.Names, []byte(name))
				}
				err = replyJSON(ctx, me, m, t)
			}
		}
		m.Release()
		if err != nil && ctx.Err() == nil && !errors.Is(err, rocl.ErrGone) {
			return err
		}
	}
	return nil
}

func (ix *indexer) content(from rocl.GID, b []byte) error {
	var h content
	data, err := h.parse(b)
	if err != nil {
		return err
	}
	u := ix.open[from]
	if u == nil || u.id != h.unit || u.attempt != h.attempt {
		u = &indexUnit{id: h.unit, attempt: h.attempt}
		ix.open[from] = u
	}
	if h.flags&flagFirst != 0 {
		u.file, u.size = ix.x.Begin(), 0
	}
	if u.file == nil {
		return errors.New("demo: the file has no beginning")
	}
	_, _ = u.file.Write(data)
	u.size += uint64(len(data))
	if h.flags&flagLast == 0 {
		return nil
	}
	words, text := u.file.End()
	u.file = nil
	switch {
	case h.flags&flagFailed != 0:
	case !text:
		u.binary++
	default:
		u.files = append(u.files, document{h.file, words})
		u.bytes += u.size
	}
	return nil
}

func (ix *indexer) end(ctx context.Context, me *rocl.Resource, from rocl.GID, b []byte) error {
	var e end
	if err := json.Unmarshal(b, &e); err != nil {
		return err
	}
	boss, err := rocl.ParseGID(e.Coordinator)
	if err != nil {
		return err
	}
	u := ix.open[from]
	delete(ix.open, from)
	if u == nil || u.id != e.ID || u.attempt != e.Attempt {
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
	return sendJSON(ctx, me, boss, tagIndexed, indexed{ID: e.ID, Attempt: e.Attempt, Files: len(u.files), Binary: u.binary, Bytes: u.bytes, Skipped: e.Skipped})
}

// runFront answers questions for a word by asking every indexer.
func runFront(ctx context.Context, c *rocl.Context, me *rocl.Resource, run string) error {
	for m, err := range me.Messages(ctx, rocl.Tag(tagAsk)) {
		if err != nil {
			return err
		}
		var a ask
		if err := json.Unmarshal(m.Bytes(), &a); err != nil {
			return err
		}
		t, err := lookUp(ctx, c, me, run, a)
		if err != nil {
			t.Err = err.Error()
		}
		err = replyJSON(ctx, me, m, t)
		m.Release()
		if err != nil && !errors.Is(err, rocl.ErrGone) {
			return err
		}
	}
	return nil
}

func lookUp(ctx context.Context, c *rocl.Context, me *rocl.Resource, run string, a ask) (sum answer, err error) {
	for f, err := range c.FindAll(ctx, rocl.Match{attrRun: run, attrRole: "indexer"}) {
		if err != nil {
			return sum, err
		}
		t, err := question(ctx, me, f.ID, a)
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
func question(ctx context.Context, me *rocl.Resource, to rocl.GID, a ask) (t answer, err error) {
	b, err := json.Marshal(a)
	if err != nil {
		return t, err
	}
	m, err := me.CallBytes(ctx, to, tagAsk, b)
	if err != nil {
		return t, err
	}
	defer m.Release()
	return t, json.Unmarshal(m.Bytes(), &t)
}

func replyJSON(ctx context.Context, me *rocl.Resource, m *rocl.Message, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return me.ReplyBytes(ctx, m, b)
}
