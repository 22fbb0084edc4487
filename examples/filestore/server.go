// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/rpc"
)

// service is the pattern of all servers.
var service = rocl.Match{"service": "filestore"}

// A file is a server's description of a file.
type file struct {
	Name string
	Size int64
	Sum  string // the xxhash of its bytes, in hexadecimal digits
}

// An appendArgs is a request to pull the next bytes of a file, which begin at Off.
type appendArgs struct {
	File   file
	Off    int64
	Memory bulk.Argument // small memory is in the request; zero: the server only returns how much it has
}

// A readArgs is a request to push bytes of a file, from Off on, until the memory is full.
type readArgs struct {
	Name   string
	Off    int64
	Memory bulk.Handle
}

// errSum is returned for a file whose bytes are not the ones that were put.
var errSum = errors.New("filestore: the checksum of the file does not fit its bytes")

// words are the errors of the program that callers can match.
var words = map[string]error{"filestore.sum": errSum}

// A server serves the files of a folder. Besides the file NAME it keeps ".NAME.SUM.part", which is
// being put.
type server struct {
	dir  string
	bulk *bulk.Endpoint
	busy sync.Map // the parts that a call writes
}

// serve serves a folder until ctx ends.
func serve(ctx context.Context, c *rocl.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ep, err := bulk.Open(ctx, c)
	if err != nil {
		return err
	}
	defer ep.Close(context.WithoutCancel(ctx))
	s := &server{dir: dir, bulk: ep}
	calls := func(r *rpc.Server) error {
		return errors.Join(
			rpc.Register(r, "append", s.append),
			rpc.Register(r, "read", s.read),
			rpc.Register(r, "stat", func(_ context.Context, name string) (file, error) { return s.stat(name) }),
			rpc.RegisterStream(r, "list", s.list),
		)
	}
	r, err := rpc.NewServer(ctx, c, rocl.Match{"service": "filestore", "dir": dir}, rpc.WithErrors(words), rpc.WithCalls(calls))
	if err != nil {
		return err
	}
	defer r.Close(context.WithoutCancel(ctx))
	fmt.Println("serving", dir)
	<-ctx.Done()
	return nil
}

// path returns the path of a file. A name has no folders, and does not begin with a dot.
func (s *server) path(name string) (string, error) {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, `/\`) || !filepath.IsLocal(name) {
		return "", fmt.Errorf("name %q: %w", name, fs.ErrInvalid)
	}
	return filepath.Join(s.dir, name), nil
}

// append pulls the next bytes of a file, if they begin where its part ends, and returns the new
// size of the part. When the part is complete, it becomes the file.
func (s *server) append(ctx context.Context, a appendArgs) (size int64, err error) {
	path, err := s.path(a.File.Name)
	if err != nil {
		return 0, err
	}
	if !isSum(a.File.Sum) || a.File.Size < 0 {
		return 0, fmt.Errorf("put %q: a size of %d, and the checksum %q: %w", a.File.Name, a.File.Size, a.File.Sum, fs.ErrInvalid)
	}
	if a.Memory.Handle.IsZero() {
		if have, err := s.stat(a.File.Name); err == nil && have == a.File {
			return have.Size, nil // the file is complete already
		}
	}
	part := filepath.Join(s.dir, "."+a.File.Name+"."+a.File.Sum+".part")
	if _, isBusy := s.busy.LoadOrStore(part, true); isBusy {
		return 0, fmt.Errorf("put %q: another client puts it: %w", a.File.Name, fs.ErrExist)
	}
	defer s.busy.Delete(part)
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if size, err = f.Seek(0, io.SeekEnd); err != nil {
		return 0, err
	}
	if h := a.Memory.Handle; size == a.Off && !h.IsZero() {
		if size+h.Len() > a.File.Size {
			return size, fmt.Errorf("put %q: %d bytes behind %d of %d: %w", a.File.Name, h.Len(), size, a.File.Size, fs.ErrInvalid)
		}
		for p, err := range bulk.PipelineArgument(ctx, s.bulk, &a.Memory) {
			if err != nil {
				return size, err
			}
			n, err := f.Write(p.Bytes())
			if size += int64(n); err != nil {
				return size, err
			}
		}
	}
	if size == a.File.Size {
		return size, s.complete(f, part, path, a.File)
	}
	return size, nil
}

// complete makes a part the file, if the checksum matches.
func (s *server) complete(f *os.File, part, path string, want file) error {
	sum, err := sumOf(f)
	if err != nil {
		return err
	}
	if sum != want.Sum {
		return errors.Join(fmt.Errorf("put %q: %w", want.Name, errSum), os.Remove(part))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// isSum reports whether a text is a checksum.
func isSum(text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == 8
}

// sumOf returns the checksum of a file.
func sumOf(f io.ReadSeeker) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	d := xxhash.New()
	if _, err := io.Copy(d, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(d.Sum(nil)), nil
}

// stat describes a file.
func (s *server) stat(name string) (file, error) {
	path, err := s.path(name)
	if err != nil {
		return file{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	sum, err := sumOf(f)
	if err != nil {
		return file{}, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	return file{name, size, sum}, err
}

// readMost is how many bytes a server reads into memory at a time.
const readMost = 4 << 20

// read pushes bytes of a file, from an offset on, as many as fit into the client's memory. It
// returns how many it has pushed.
func (s *server) read(ctx context.Context, a readArgs) (n int64, err error) {
	path, err := s.path(a.Name)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, min(readMost, a.Memory.Len()))
	for n < a.Memory.Len() {
		k, err := f.ReadAt(buf[:min(int64(len(buf)), a.Memory.Len()-n)], a.Off+n)
		if k > 0 {
			if _, err := s.bulk.Push(ctx, a.Memory, n, buf[:k]); err != nil {
				return n, err
			}
			n += int64(k)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// list yields all files.
func (s *server) list(context.Context, struct{}) iter.Seq2[file, error] {
	return func(yield func(file, error) bool) {
		entries, err := os.ReadDir(s.dir)
		if err != nil {
			yield(file{}, err)
			return
		}
		for _, e := range entries {
			if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
				continue
			}
			f, err := s.stat(e.Name())
			if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
				continue
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}
