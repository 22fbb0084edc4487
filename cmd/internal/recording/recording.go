// SPDX-License-Identifier: Apache-2.0

// Package recording reads and writes the files of rocl record.
//
// A recording is a gzip file with a line of JSON, an observe.View, for each moment. A file may come
// from anybody, so a Reader keeps to limits and cleans the views.
package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/resource"
)

// The limits of a recording, which its reader keeps to too.
const (
	maxFile   = 1 << 30  // bytes of a file
	maxLine   = 32 << 20 // bytes of a view
	maxValues = 1 << 20  // values of a view, as its commas and brackets tell
)

// ErrFull is returned when a recording has as many bytes as it may have.
var ErrFull = errors.New("the recording has reached its limit of 1 GiB")

// A Writer writes a recording. The file has the suffix .part until it is finished. A Writer is not
// for concurrent use.
type Writer struct {
	path string
	f    *os.File
	gz   *gzip.Writer
	size int64 // of f
}

// Create creates the file of a recording, which only its owner may read. It fails if there is one
// of that name. The caller finishes the Writer.
func Create(path string) (*Writer, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s exists", path)
	}
	f, err := os.OpenFile(path+".part", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	w := &Writer{path: path, f: f}
	w.gz = gzip.NewWriter(counting{w})
	return w, nil
}

// counting writes into the file of a Writer, and counts what it has written.
type counting struct{ *Writer }

func (c counting) Write(p []byte) (int, error) {
	n, err := c.f.Write(p)
	c.size += int64(n)
	return n, err
}

// Size returns the size of the file in bytes.
func (w *Writer) Size() int64 { return w.size }

// Add writes a view, so that all of it is in the file. It fails with ErrFull if the file has as
// many bytes as it may have.
func (w *Writer) Add(v *observe.View) error {
	if w.size >= maxFile-2*maxLine {
		return ErrFull
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := checkLine(b); err != nil {
		return err
	}
	if _, err := w.gz.Write(append(b, '\n')); err != nil {
		return err
	}
	return w.gz.Flush()
}

// Finish ends the file and gives it its name.
func (w *Writer) Finish() error {
	err := errors.Join(w.gz.Close(), w.f.Sync(), w.f.Close())
	if err != nil {
		return err
	}
	return os.Rename(w.path+".part", w.path)
}

// checkLine returns an error if a view has too many values.
func checkLine(b []byte) error {
	if n := bytes.Count(b, []byte(",")) + bytes.Count(b, []byte("[")) + bytes.Count(b, []byte("{")); len(b) > maxLine || n > maxValues {
		return fmt.Errorf("a view has %d bytes and %d values; the limits are %d and %d", len(b), n, maxLine, maxValues)
	}
	return nil
}

// A Reader reads a recording. It is not for concurrent use.
type Reader struct {
	s *bufio.Scanner
	n int // views that were read
}

// NewReader returns a Reader of a file. It fails if the file is not a recording.
func NewReader(file io.Reader) (*Reader, error) {
	gz, err := gzip.NewReader(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, fmt.Errorf("it is not a recording: %w", err)
	}
	r := &Reader{s: bufio.NewScanner(gz)}
	r.s.Buffer(nil, maxLine)
	return r, nil
}

// Read returns the next view, which is clean, or io.EOF at the end. The error after the last whole
// view of a file that was cut off is io.ErrUnexpectedEOF.
func (r *Reader) Read() (*observe.View, error) {
	if !r.s.Scan() {
		if err := r.s.Err(); err != nil {
			return nil, fmt.Errorf("after %d views: %w", r.n, err)
		}
		return nil, io.EOF
	}
	b := r.s.Bytes()
	if err := checkLine(b); err != nil {
		return nil, err
	}
	v := new(observe.View)
	if err := json.Unmarshal(b, v); err != nil {
		if r.s.Err() == nil && !r.s.Scan() && errors.Is(r.s.Err(), io.ErrUnexpectedEOF) { // the line is the beginning of one
			err = r.s.Err()
		}
		return nil, fmt.Errorf("after %d views: %w", r.n, err)
	}
	r.n++
	v.Clean()
	return v, nil
}

// Match returns which resources of a view a pattern matches, and their contexts. It compares the
// pattern to the names that the view has, since a recording has no other attributes.
func Match(v *observe.View, pattern *rocl.List) map[rocl.GID]bool {
	matches := map[rocl.GID]bool{}
	for i := range v.Contexts {
		for _, res := range v.Contexts[i].Resources {
			if a, err := rocl.Parse(res.Name); err == nil && resource.Matches(a, pattern) {
				matches[res.Resource], matches[res.Resource.Context()] = true, true
			}
		}
	}
	return matches
}
