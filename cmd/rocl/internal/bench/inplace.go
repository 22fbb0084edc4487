// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/database"
	"github.com/rocl-go/rocl/internal/index"
	"github.com/rocl-go/rocl/internal/subprocess"
	"github.com/rocl-go/rocl/resource"
)

// Finds in place: another process serves the node's directory with many resources, and this process
// reads the directory's index in shared memory.

// errAsked is returned when an answer did not come from the index.
var errAsked = errors.New("the directory was asked")

// findInPlace measures finds of one resource among many, each by an attribute that no other
// resource has. It measures them with the directory's client, which is the cost of the index, and
// with a context, as a program finds.
func findInPlace(ctx context.Context, o *options) (r *Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d, err := startDirectory(ctx, o.resources)
	if err != nil {
		return nil, err
	}
	defer d.close()
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	c, err := rocl.Open(ctx, rocl.WithSocket(d.sock), rocl.JoinOnly(), rocl.WithPoll(policy))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	client, err := directory.Join(ctx, directory.DialSocket(d.sock))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	bare := make(map[string]int, o.resources)
	for i := range o.resources {
		bare[nameOf(i)] = i
	}
	var l resource.List
	name := []byte(nameOf(0))
	pick := func() {
		name = appendName(name[:0], rand.IntN(o.resources))
		l.Reset()
		_ = l.Add("name", name)
	}
	pickOnly := func() error { pick(); return nil }
	inMap := func() error {
		pick()
		if _, ok := bare[string(name)]; !ok {
			return rocl.ErrNotFound
		}
		return nil
	}
	byClient := func() error {
		pick()
		_, err := client.Find(ctx, &l)
		return err
	}
	byContext := func() error {
		pick()
		_, err := c.Find(ctx, &l)
		return err
	}
	buf := make([]byte, max(findRequest, findReply))
	bySocket := func() error {
		if _, err := d.raw.Write(buf[:findRequest]); err != nil {
			return err
		}
		_, err := io.ReadFull(d.raw, buf[:findReply])
		return err
	}
	for end := time.Now().Add(time.Minute); c.Stats().Mapped == 0 || client.Stats().Mapped == 0; {
		if err := errors.Join(byClient(), byContext()); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, errAsked
		}
	}
	for range 3 { // touches the pages of the index
		if err := newTimes().batch(ctx, o.resources, byClient); err != nil {
			return nil, err
		}
	}
	asked := client.Stats().Asked
	none, maps, clients, contexts, sockets := newTimes(), newTimes(), newTimes(), newTimes(), newTimes()
	var allocs float64
	for range o.rounds {
		for _, side := range []struct {
			t *times
			f func() error
		}{{none, pickOnly}, {maps, inMap}, {contexts, byContext}} {
			if err := side.t.batch(ctx, o.count, side.f); err != nil {
				return nil, err
			}
		}
		before := mallocs()
		if err := clients.batch(ctx, o.count, byClient); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(o.count)
		if err := sockets.round(min(o.count, 1000), bySocket); err != nil {
			return nil, err
		}
	}
	if asked != client.Stats().Asked {
		return nil, errAsked
	}
	r = &Result{Bench: "find", Resources: o.resources, Count: o.count * o.rounds, Unit: "µs", What: "the required 1 µs",
		P50: clients.p50(), P99: clients.p99(), Raw: 1, Target: 1, Allocs: allocs}
	r.Ratio = r.P50 / r.Raw
	r.Extra = fmt.Sprintf("by a context p50 %.2f; a bare Go map of as many p50 %.2f; a bare Unix-socket round trip p50 %.2f; of each but the last %.2f is making up the question; %.0f allocation; the index takes %.0f bytes a resource beyond its attributes",
		contexts.p50(), maps.p50(), sockets.p50(), none.p50(), allocs, d.bytesEach)
	return r, nil
}

func nameOf(i int) string { return string(appendName(nil, i)) }

func appendName(b []byte, i int) []byte {
	return strconv.AppendInt(append(b, "resource "...), int64(i), 10)
}

// aDirectory is the process that serves the directory.
type aDirectory struct {
	dir, sock string
	process   *subprocess.Process
	raw       net.Conn
	bytesEach float64
}

func startDirectory(ctx context.Context, n int) (d *aDirectory, err error) {
	d = &aDirectory{}
	defer func() {
		if err != nil {
			d.close()
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
	}()
	if d.dir, err = os.MkdirTemp("", "rocl-bench-"); err != nil {
		return d, err
	}
	d.sock = filepath.Join(d.dir, "directory.sock")
	if d.process, err = subprocess.Start(subprocess.Self("bench-directory", d.sock, strconv.Itoa(n))); err != nil {
		return d, err
	}
	context.AfterFunc(ctx, d.process.Kill)
	line, err := d.process.Line(ctx)
	if err != nil {
		return d, fmt.Errorf("the directory: %w", err)
	}
	if _, err := fmt.Sscan(line, &d.bytesEach); err != nil {
		return d, err
	}
	d.raw, err = net.Dial("unix", d.sock+".raw")
	return d, err
}

func (d *aDirectory) close() {
	if d.raw != nil {
		d.raw.Close()
	}
	if d.process != nil {
		_ = d.process.Stop()
	}
	if d.dir != "" {
		os.RemoveAll(d.dir)
	}
}

// directoryMain is the main function of the other process: a directory with resources that no
// context has registered. It ends with its input.
func directoryMain(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	s, err := directory.Listen(args[0])
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := subprocess.UntilEnd(ctx, in)
	defer cancel()
	bytes, err := fill(ctx, s.Database(), s.Node(), n)
	if err != nil {
		return err
	}
	ln, err := net.Listen("unix", args[0]+".raw")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { ln.Close() })
	fmt.Fprintln(out, bytes)
	uc, err := ln.Accept()
	if err != nil {
		return nil // the parent has ended it
	}
	context.AfterFunc(ctx, func() { uc.Close() })
	_ = answerRaw(uc, findRequest, findReply)
	<-ctx.Done()
	return nil
}

// fill puts n resources of a context that does not exist into the database, and returns how many
// bytes the index takes for each.
func fill(ctx context.Context, db *database.DB, node resource.NodeID, n int) (bytesEach float64, err error) {
	owner := resource.MakeGID(node, 1<<40, 0)
	sites := []string{"porto", "braga", "lisboa", "faro"}
	own := 0
	var l resource.List
	for i := range n {
		if i%1024 == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		l.Reset()
		name, site := nameOf(i), sites[i%len(sites)]
		if err := errors.Join(l.AddString("type", "worker"), l.AddString("site", site), l.AddString("name", name), l.AddString("slot", name)); err != nil {
			return 0, err
		}
		own += len("typeworkersitenameslot") + len(site) + 2*len(name)
		if _, err := db.Put(owner.WithSerial(uint32(i+1)), owner, &l); err != nil {
			return 0, err
		}
	}
	if err := db.MakeIndex(ctx, index.DefaultSize); err != nil { // makes the index, as for the first context that asks for it
		return 0, err
	}
	bytesEach = (float64(db.Stats().IndexBytes) - float64(own)) / float64(n)
	db.DropIndex()
	return bytesEach, nil
}
