// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/rpc"
)

type client struct {
	c      *rocl.Context
	rpc    *rpc.Client
	bulk   *bulk.Endpoint
	window int64 // bytes of a file that the client holds in memory, and offers to a server at a time
}

func newClient(ctx context.Context, c *rocl.Context, window int64) (*client, error) {
	if window < 1 || window > rocl.MaxMessage {
		return nil, fmt.Errorf("-window is from 1 to %d bytes", rocl.MaxMessage)
	}
	cl := &client{c: c, window: window}
	var err error
	if cl.rpc, err = rpc.NewClient(ctx, c, rpc.CallErrors(words)); err != nil {
		return nil, err
	}
	if cl.bulk, err = bulk.Open(ctx, c); err != nil {
		_ = cl.rpc.Close()
		return nil, err
	}
	return cl, nil
}

func (cl *client) close() {
	_ = cl.bulk.Close(context.Background())
	_ = cl.rpc.Close()
}

// serverOf returns the server on which a file of this name is put. That follows from the folders
// that the servers serve, so a server that is started again has the same files.
func (cl *client) serverOf(ctx context.Context, name string) (id rocl.GID, err error) {
	var most uint64
	for f, err := range cl.c.FindAll(ctx, service) {
		if err != nil {
			return id, err
		}
		if weight := xxhash.Sum64String(f.Attrs.GetString("dir") + "\x00" + name); id.IsZero() || weight > most {
			id, most = f.ID, weight
		}
	}
	if id.IsZero() {
		err = fmt.Errorf("no server: %w", rocl.ErrNotFound)
	}
	return id, err
}

// put stores a file.
func (cl *client) put(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, err := sumOf(f)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	what := file{filepath.Base(path), size, sum}
	id, err := cl.serverOf(ctx, what.Name)
	if err != nil {
		return err
	}
	began, err := rpc.Call[appendArgs, int64](ctx, cl.rpc, id, "append", appendArgs{File: what})
	if err == nil && began < size {
		err = cl.putRest(ctx, id, f, what, began)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", path, err)
	}
	fmt.Printf("%s: %d bytes to %v", what.Name, size-began, id)
	if began > 0 {
		fmt.Printf(", which had %d", began)
	}
	fmt.Println()
	return nil
}

// putRest stores the rest of a file on a server, which has its first bytes.
func (cl *client) putRest(ctx context.Context, id rocl.GID, f io.ReaderAt, what file, have int64) error {
	buf, err := cl.c.BufferWait(ctx, int(min(cl.window, what.Size-have)))
	if err != nil {
		return err
	}
	defer buf.Release()
	for have < what.Size {
		p := buf.Bytes()[:min(int64(buf.Len()), what.Size-have)]
		if _, err := f.ReadAt(p, have); err != nil && err != io.EOF {
			return err
		}
		if have, err = cl.append(ctx, id, what, have, buf, len(p)); err != nil {
			return err
		}
	}
	return nil
}

// append makes a server pull the first n bytes of a buffer.
func (cl *client) append(ctx context.Context, id rocl.GID, what file, off int64, buf *rocl.Buffer, n int) (int64, error) {
	part := buf.Slice(0, n)
	defer part.Release()
	r, err := cl.bulk.Expose(bulk.ReadOnly, bulk.Buffer(part))
	if err != nil {
		return off, err
	}
	defer r.Close() // the server no longer reads it
	return rpc.Call[appendArgs, int64](ctx, cl.rpc, id, "append", appendArgs{what, off, r.Argument()})
}

// find returns a server that has a file, and the description of the file.
func (cl *client) find(ctx context.Context, name string) (rocl.GID, file, error) {
	err := fs.ErrNotExist
	for answer, e := range rpc.CallAll[string, file](ctx, cl.rpc, service, "stat", name) {
		if e == nil {
			return answer.Provider, answer.Value, nil
		}
		if !errors.Is(e, fs.ErrNotExist) {
			err = e // another server may have it
		}
	}
	return rocl.GID{}, file{}, fmt.Errorf("%s: %w", name, err)
}

// read makes a server push bytes of a file into p.
func (cl *client) read(ctx context.Context, id rocl.GID, name string, off int64, p []byte) (int64, error) {
	r, err := cl.bulk.Expose(bulk.WriteOnly, bulk.Bytes(p))
	if err != nil {
		return 0, err
	}
	defer r.Close() // the server no longer writes to it
	return rpc.Call[readArgs, int64](ctx, cl.rpc, id, "read", readArgs{name, off, r.Handle()})
}

// get fetches a file. It writes to PATH.part first, so that an interrupted get can go on.
func (cl *client) get(ctx context.Context, name, path string) error {
	id, what, err := cl.find(ctx, name)
	if err != nil {
		return err
	}
	part := path + "." + what.Sum + ".part"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	began, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	buf := make([]byte, min(cl.window, max(what.Size-began, 0)))
	for off := began; off < what.Size; {
		n, err := cl.read(ctx, id, name, off, buf[:min(int64(len(buf)), what.Size-off)])
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF // the file has become shorter
		}
		if err == nil {
			_, err = f.Write(buf[:n])
		}
		if err != nil {
			return err
		}
		off += n
	}
	sum, err := sumOf(f)
	if err != nil {
		return err
	}
	if sum != what.Sum {
		return errors.Join(fmt.Errorf("get %s: %w", name, errSum), os.Remove(part))
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes", path, what.Size-began)
	if began > 0 {
		fmt.Printf(", behind %d that were there", began)
	}
	fmt.Println()
	return nil
}

// list prints the files of all servers.
func (cl *client) list(ctx context.Context) error {
	for server, err := range cl.c.FindAll(ctx, service) {
		if err != nil {
			return err
		}
		for f, err := range rpc.Stream[struct{}, file](ctx, cl.rpc, server.ID, "list", struct{}{}) {
			if err != nil {
				return err
			}
			fmt.Printf("%v  %12d  %s  %s\n", server.ID, f.Size, f.Sum, f.Name)
		}
	}
	return nil
}
