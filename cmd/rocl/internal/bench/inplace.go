package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/resource"
)

// Finds in place: another process is the node's directory, with many resources,
// and this one reads its image.

// errAsked says that an answer did not come from the image.
var errAsked = errors.New("the directory was asked")

// findInPlace measures finds of one resource among many, each by an attribute
// that no other has, as a program does them: with a context.
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
	// As many as can be asked for before the caches know all of them.
	names := make([]string, 1<<16)
	matches := make([]rocl.Match, len(names))
	for i := range names {
		names[i] = nameOf(rand.IntN(o.resources))
		matches[i] = rocl.Match{"name": names[i]}
	}
	bare := make(map[string]int, o.resources)
	for i := range o.resources {
		bare[nameOf(i)] = i
	}
	turn := 0
	ours := func() error {
		turn++
		_, err := c.Find(ctx, matches[turn%len(matches)])
		return err
	}
	inMap := func() error {
		turn++
		if _, ok := bare[names[turn%len(names)]]; !ok {
			return rocl.ErrNotFound
		}
		return nil
	}
	buf := make([]byte, max(findRequest, findReply))
	over := func() error {
		if _, err := d.raw.Write(buf[:findRequest]); err != nil {
			return err
		}
		_, err := io.ReadFull(d.raw, buf[:findReply])
		return err
	}
	for end := time.Now().Add(time.Minute); c.Stats().Mapped == 0; {
		if err := ours(); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("there is no image: %w", errAsked)
		}
	}
	if err := newTimes().batch(ctx, len(matches), ours); err != nil { // touch them once
		return nil, err
	}
	before := c.Stats()
	a, b, s := newTimes(), newTimes(), newTimes()
	var allocs float64
	for range o.rounds {
		if err := a.batch(ctx, o.count, inMap); err != nil {
			return nil, err
		}
		mallocsBefore := mallocs()
		if err := b.batch(ctx, o.count, ours); err != nil {
			return nil, err
		}
		allocs = (mallocs() - mallocsBefore) / float64(o.count)
		if err := s.round(min(o.count, 1000), over); err != nil {
			return nil, err
		}
	}
	after := c.Stats()
	asked := (after.Questions - before.Questions) - (after.Mapped - before.Mapped)
	r = &Result{Bench: "find", Resources: o.resources, Count: o.count * o.rounds, Unit: "µs", What: "the required 1 µs",
		P50: b.p50(), P99: b.p99(), Raw: 1, Target: 1, Allocs: allocs}
	r.Ratio = r.P50 / r.Raw
	r.Extra = fmt.Sprintf("a bare Go map of as many p50 %.2f; a bare Unix-socket round trip p50 %.2f; %.0f allocations; the directory was asked %d times; the image takes %.0f bytes a resource beyond its attributes",
		a.p50(), s.p50(), allocs, asked, d.bytesEach)
	return r, nil
}

func nameOf(i int) string { return "resource " + strconv.Itoa(i) }

// aDirectory is the other process.
type aDirectory struct {
	dir, sock string
	cmd       *exec.Cmd
	in        io.Closer
	raw       net.Conn
	lines     *bufio.Scanner
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
	exe, err := os.Executable()
	if err != nil {
		return d, err
	}
	d.cmd = exec.CommandContext(ctx, exe, "bench-directory", d.sock, strconv.Itoa(n))
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return d, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return d, err
	}
	if err := d.cmd.Start(); err != nil {
		return d, fmt.Errorf("starting the directory: %w", err)
	}
	d.lines = bufio.NewScanner(out)
	if !d.lines.Scan() {
		return d, errPeer
	}
	if _, err := fmt.Sscan(d.lines.Text(), &d.bytesEach); err != nil {
		return d, err
	}
	d.raw, err = net.Dial("unix", d.sock+".raw")
	return d, err
}

func (d *aDirectory) close() {
	if d.raw != nil {
		d.raw.Close()
	}
	if d.cmd != nil && d.cmd.Process != nil {
		d.in.Close() // which ends it
		t := time.AfterFunc(5*time.Second, func() { _ = d.cmd.Process.Kill() })
		_ = d.cmd.Wait()
		t.Stop()
	}
	if d.dir != "" {
		os.RemoveAll(d.dir)
	}
}

// directoryMain is the other process: a directory with resources that nobody
// registered. It ends with its input.
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, in)
	}()
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
		return nil // told to end
	}
	context.AfterFunc(ctx, func() { uc.Close() })
	_ = answerRaw(uc, findRequest, findReply)
	<-ctx.Done()
	return nil
}

// fill registers n resources of a context that there is not, and tells what the
// image takes for each.
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
	if err := db.Image(image.DefaultSize); err != nil { // as the first that asks for it would have it made
		return 0, err
	}
	bytesEach = (float64(db.Stats().ImageBytes) - float64(own)) / float64(n)
	db.DropImage()
	return bytesEach, nil
}
