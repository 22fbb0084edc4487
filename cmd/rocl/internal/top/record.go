// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rocl-go/rocl/internal/observe"
)

// A recording is a gzip file with a line of JSON, an observe.View, for each moment. These are its
// limits. A file may come from anybody, so its reader keeps to them too.
const (
	maxFile   = 1 << 30  // bytes of a file
	maxLine   = 32 << 20 // bytes of a view
	maxValues = 1 << 20  // values of a view, as its commas and brackets tell
)

// errFull is returned when a recording has reached maxFile.
var errFull = errors.New("the recording has reached its limit of 1 GiB")

// A recorder writes a recording. The file has the suffix .part until it is finished.
type recorder struct {
	path string
	f    *os.File
	gz   *gzip.Writer
	size int64 // of f
}

// newRecorder creates the file of a recording, which only its owner may read. It fails if there is
// one of that name.
func newRecorder(path string) (*recorder, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s exists", path)
	}
	f, err := os.OpenFile(path+".part", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	r := &recorder{path: path, f: f}
	r.gz = gzip.NewWriter(r)
	return r, nil
}

// Write writes compressed bytes.
func (r *recorder) Write(p []byte) (int, error) {
	n, err := r.f.Write(p)
	r.size += int64(n)
	return n, err
}

// add writes a view, so that all of it is in the file. It fails with errFull if the file has as
// many bytes as it may have.
func (r *recorder) add(v *observe.View) error {
	if r.size >= maxFile-2*maxLine {
		return errFull
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := checkLine(b); err != nil {
		return err
	}
	if _, err := r.gz.Write(append(b, '\n')); err != nil {
		return err
	}
	return r.gz.Flush()
}

// finish ends the file and gives it its name.
func (r *recorder) finish() error {
	err := errors.Join(r.gz.Close(), r.f.Sync(), r.f.Close())
	if err != nil {
		return err
	}
	return os.Rename(r.path+".part", r.path)
}

// checkLine returns an error if a view has too many values.
func checkLine(b []byte) error {
	if n := bytes.Count(b, []byte(",")) + bytes.Count(b, []byte("[")) + bytes.Count(b, []byte("{")); len(b) > maxLine || n > maxValues {
		return fmt.Errorf("a view has %d bytes and %d values; the limits are %d and %d", len(b), n, maxLine, maxValues)
	}
	return nil
}

// A player reads a recording.
type player struct {
	s *bufio.Scanner
	n int // views that were read
}

func newPlayer(r io.Reader) (*player, error) {
	gz, err := gzip.NewReader(io.LimitReader(r, maxFile))
	if err != nil {
		return nil, fmt.Errorf("it is not a recording: %w", err)
	}
	p := &player{s: bufio.NewScanner(gz)}
	p.s.Buffer(nil, maxLine)
	return p, nil
}

// read returns the next view, which is clean, or io.EOF at the end. The error after the last whole
// view of a file that was cut off is io.ErrUnexpectedEOF.
func (p *player) read() (*observe.View, error) {
	if !p.s.Scan() {
		if err := p.s.Err(); err != nil {
			return nil, fmt.Errorf("after %d views: %w", p.n, err)
		}
		return nil, io.EOF
	}
	b := p.s.Bytes()
	if err := checkLine(b); err != nil {
		return nil, err
	}
	v := new(observe.View)
	if err := json.Unmarshal(b, v); err != nil {
		if p.s.Err() == nil && !p.s.Scan() && errors.Is(p.s.Err(), io.ErrUnexpectedEOF) { // the line is the beginning of one
			err = p.s.Err()
		}
		return nil, fmt.Errorf("after %d views: %w", p.n, err)
	}
	p.n++
	v.Clean()
	return v, nil
}
