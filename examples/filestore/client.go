// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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

// isGone reports whether err says that a server has ended. An rpc.Error is an answer of the server:
// if it matches rocl.ErrGone, for example, the handler has met that error. Only rpc.ErrClosed says
// that the server itself is ending.
func isGone(err error) bool {
	if answer := (*rpc.Error)(nil); errors.As(err, &answer) {
		return errors.Is(answer, rpc.ErrClosed)
	}
	return errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable) || errors.Is(err, rocl.ErrNoReply)
}

// servers returns all servers, in the order in which a file of this name is put on them. The order
// follows from the folders that they serve, so a server that is started again has the same place.
func (cl *client) servers(ctx context.Context, name string) ([]rocl.GID, error) {
	type ranked struct {
		id     rocl.GID
		weight uint64
	}
	var all []ranked
	for f, err := range cl.c.FindAll(ctx, service) {
		if err != nil {
			return nil, err
		}
		all = append(all, ranked{f.ID, xxhash.Sum64String(f.Attrs.GetString("dir") + "\x00" + name)})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no server: %w", rocl.ErrNotFound)
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.weight, a.weight), a.id.Compare(b.id)) })
	ids := make([]rocl.GID, len(all))
	for i, r := range all {
		ids[i] = r.id
	}
	return ids, nil
}

// put stores a file on several servers. If one ends meanwhile, put stores the file on the next one.
func (cl *client) put(ctx context.Context, path string, copies int) error {
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
	ids, err := cl.servers(ctx, what.Name)
	if err != nil {
		return err
	}
	stored := 0
	var lost error
	for _, id := range ids {
		if stored == copies {
			break
		}
		began, err := cl.putOn(ctx, id, f, what)
		switch {
		case err == nil:
			stored++
			fmt.Printf("%s: %d bytes to %v", what.Name, size-began, id)
			if began > 0 {
				fmt.Printf(", which had %d", began)
			}
			fmt.Println()
		case isGone(err):
			lost = err
		default:
			return err
		}
	}
	if stored < copies {
		return errors.Join(fmt.Errorf("put %s: stored on %d servers of %d", path, stored, copies), lost)
	}
	return nil
}

// putOn stores a file on one server. It returns how many bytes the server had before.
func (cl *client) putOn(ctx context.Context, id rocl.GID, f io.ReaderAt, what file) (began int64, err error) {
	have, err := rpc.Call[appendArgs, int64](ctx, cl.rpc, id, "append", appendArgs{File: what})
	if began = have; err != nil {
		return began, err
	}
	if have == what.Size {
		return began, nil
	}
	buf, err := cl.c.BufferWait(ctx, int(min(cl.window, what.Size-have)))
	if err != nil {
		return began, err
	}
	defer buf.Release()
	for have < what.Size {
		p := buf.Bytes()[:min(int64(buf.Len()), what.Size-have)]
		if _, err := f.ReadAt(p, have); err != nil && err != io.EOF {
			return began, err
		}
		if have, err = cl.append(ctx, id, what, have, buf, len(p)); err != nil {
			return began, err
		}
	}
	return began, nil
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

// find returns the description of a file by the first server that has it, and the servers that have
// this version.
func (cl *client) find(ctx context.Context, name string) (what file, have []rocl.GID, err error) {
	ids, err := cl.servers(ctx, name)
	if err != nil {
		return what, nil, err
	}
	err = fs.ErrNotExist
	for _, id := range ids {
		f, e := rpc.Call[string, file](ctx, cl.rpc, id, "stat", name)
		switch {
		case e == nil && len(have) > 0 && f != what: // an older version
		case e == nil:
			what, have = f, append(have, id)
		case errors.Is(e, fs.ErrNotExist), isGone(e):
		default:
			return what, nil, e
		}
	}
	if len(have) == 0 {
		return what, nil, fmt.Errorf("%s: %w", name, err)
	}
	return what, have, nil
}

// copyTo writes n bytes of a file from an offset on, or all, to w. If a server ends, it goes on
// with the next one.
func (cl *client) copyTo(ctx context.Context, w io.Writer, what file, from []rocl.GID, off, n int64) error {
	if n < 0 || n > what.Size-off {
		n = max(what.Size-off, 0)
	}
	buf := make([]byte, min(cl.window, n))
	for n > 0 {
		p := buf[:min(int64(len(buf)), n)]
		got, err := cl.read(ctx, from[0], what.Name, off, p)
		if err != nil && isGone(err) && len(from) > 1 {
			from = from[1:]
			continue
		}
		if err == nil && got == 0 {
			err = io.ErrUnexpectedEOF // the file has become shorter
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(p[:got]); err != nil {
			return err
		}
		off, n = off+got, n-got
	}
	return nil
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
	what, from, err := cl.find(ctx, name)
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
	if err := cl.copyTo(ctx, f, what, from, began, -1); err != nil {
		return err
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

// cat prints a range of a file.
func (cl *client) cat(ctx context.Context, name string, off, n int64, w io.Writer) error {
	what, from, err := cl.find(ctx, name)
	if err != nil {
		return err
	}
	return cl.copyTo(ctx, w, what, from, off, n)
}

// list prints the files of all servers.
func (cl *client) list(ctx context.Context) error {
	ids, err := cl.servers(ctx, "")
	if err != nil {
		return err
	}
	for _, id := range ids {
		for f, err := range rpc.Stream[struct{}, file](ctx, cl.rpc, id, "list", struct{}{}) {
			if err != nil {
				return err
			}
			fmt.Printf("%v  %12d  %s  %s\n", id, f.Size, f.Sum, f.Name)
		}
	}
	return nil
}
