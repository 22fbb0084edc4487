// SPDX-License-Identifier: Apache-2.0

// Command mandelbrot draws a picture of the Mandelbrot set, with threads of several processes:
//
//	go run ./examples/tpvm/mandelbrot -o m.png
//
// It starts the processes itself, and prints their numbers. Any of them may be killed: another
// thread renders its tiles again. The picture takes ten to twenty seconds on two processors, which
// is time enough to kill one. With -samples 1 it takes less than one second.
//
// Processes on other machines of the cluster take part if they have been started there before:
//
//	mandelbrot -join
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"log"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of messages.
const (
	show = iota // to a thread: the view
	tile        // to a thread: the number of a tile; to the master: the number, the pixels
	end         // to a thread: no more tiles
	gone        // of Notify
)

const exported = "mandelbrot"

var (
	out       = flag.String("o", "mandelbrot.png", "`file` to write the picture to")
	join      = flag.Bool("join", false, "render for others, until interrupted")
	processes = flag.Int("p", 4, "`number` of processes to start here")
	v         view
)

func main() {
	flag.Float64Var(&v.Re, "re", -0.743643135, "centre of the picture, real part")
	flag.Float64Var(&v.Im, "im", 0.131825963, "centre of the picture, imaginary part")
	flag.Float64Var(&v.Width, "width", 0.00032, "width of the picture in the complex plane")
	flag.IntVar(&v.X, "x", 1600, "width of the picture in pixels")
	flag.IntVar(&v.Y, "y", 1000, "height of the picture in pixels")
	flag.IntVar(&v.Limit, "limit", 5000, "iterations of a point at most")
	flag.IntVar(&v.Samples, "samples", 5, "points of a pixel in each direction; 1 is the fastest")
	flag.Parse()
	do, opts := master, []tpvm.Option(nil)
	if *join {
		do, opts = wait, append(opts, tpvm.WithExport(exported, render))
	}
	if err := tpvm.Run(context.Background(), do, opts...); err != nil {
		log.Fatal(err)
	}
}

func master(ctx context.Context, t *tpvm.Task) error {
	if err := v.check(); err != nil {
		return err
	}
	f, err := os.Create(*out)
	if err != nil {
		return err
	}
	defer f.Close()
	var own []tpvm.TID
	if *processes > 0 {
		here := []tpvm.SpawnOption{tpvm.OnHost("."), tpvm.EndWithParent(), tpvm.Args("-join")}
		if own, err = t.Spawn(ctx, tpvm.Self, *processes, here...); err != nil {
			return err
		}
	}
	n, err := threads(ctx, t)
	if err != nil {
		return err
	}
	ids, err := t.Spawn(ctx, exported, n, tpvm.Threads())
	if len(ids) == 0 {
		return err
	}
	if err := printProcesses(ctx, t, own); err != nil {
		return err
	}
	p := newProgress(v.tiles(), ids)
	began := time.Now()
	img, err := farm(ctx, t, ids, p)
	if err != nil {
		return err
	}
	fmt.Printf("%d tiles by %d threads of %d processes in %.1f s: %s\n",
		v.tiles(), len(ids), len(p.hasEnded), time.Since(began).Seconds(), *out)
	if p.ended > 0 {
		fmt.Println("processes that ended early:", p.ended)
	}
	w := bufio.NewWriter(f)
	return errors.Join(png.Encode(w, img), w.Flush(), f.Close())
}

// printProcesses prints which processes the program has started.
func printProcesses(ctx context.Context, t *tpvm.Task, own []tpvm.TID) error {
	var pids []string
	for i, err := range t.Tasks(ctx) {
		if err != nil {
			return err
		}
		if slices.Contains(own, i.ID) {
			pids = append(pids, strconv.Itoa(i.PID))
		}
	}
	if len(pids) > 0 {
		fmt.Fprintln(os.Stderr, "kill one of:", strings.Join(pids, " "))
	}
	return nil
}

// threads returns how many threads to spawn: one for each core of the hosts that have tasks, and
// at least one for each process.
func threads(ctx context.Context, t *tpvm.Task) (n int, err error) {
	hosts, err := t.Hosts(ctx)
	tasks := 0
	for _, h := range hosts {
		if h.Tasks > 0 {
			n, tasks = n+h.Cores, tasks+h.Tasks
		}
	}
	return max(n, tasks-1, runtime.NumCPU()), err
}

// farm makes the threads render all tiles.
func farm(ctx context.Context, t *tpvm.Task, ids []tpvm.TID, p *progress) (image.Image, error) {
	if _, err := t.Notify(ctx, gone, ids...); err != nil {
		return nil, err
	}
	b := t.Buffer(pack.Default)
	if err := b.PackValues(v.Re, v.Im, v.Width, v.X, v.Y, v.Limit, v.Samples); err != nil {
		return nil, err
	}
	_ = t.Mcast(ctx, ids, show, b) // Notify reports the threads that have ended
	w := newWork(ids)
	for _, id := range ids {
		w.give(ctx, t, id)
	}
	img := image.NewRGBA(image.Rect(0, 0, v.X, v.Y))
	for w.left > 0 {
		if err := w.receive(ctx, t, img, p); err != nil {
			return nil, err
		}
	}
	for id := range w.inHand {
		_ = t.SendPacked(ctx, id, end, 0)
	}
	return img, nil
}

// work says which tiles are still to be rendered. Each thread has two tiles: while it renders one,
// the next is on its way.
type work struct {
	todo   []int              // tiles that no thread has; the last one is given first
	inHand map[tpvm.TID][]int // tiles of each thread that has not ended
	left   int                // tiles that are not in the image
}

func newWork(ids []tpvm.TID) *work {
	w := &work{inHand: map[tpvm.TID][]int{}, left: v.tiles()}
	for k := range w.left {
		w.todo = append(w.todo, w.left-1-k)
	}
	for _, id := range ids {
		w.inHand[id] = nil
	}
	return w
}

// give sends a thread the tiles that it may have.
func (w *work) give(ctx context.Context, t *tpvm.Task, id tpvm.TID) {
	for len(w.inHand[id]) < 2 && len(w.todo) > 0 {
		k := w.todo[len(w.todo)-1]
		w.todo, w.inHand[id] = w.todo[:len(w.todo)-1], append(w.inHand[id], k)
		_ = t.SendPacked(ctx, id, tile, k) // Notify reports a thread that has ended
	}
}

// receive waits for one message: a rendered tile, or the end of a thread.
func (w *work) receive(ctx context.Context, t *tpvm.Task, img *image.RGBA, p *progress) error {
	m, err := t.Recv(ctx, tpvm.AnyTask, tpvm.AnyTag)
	if err != nil {
		return err
	}
	defer m.Release()
	from := m.From()
	if m.IsGone() {
		p.lose(from)
		return w.lose(ctx, t, from)
	}
	var k int
	if err := m.UnpackValues(&k); err != nil {
		return err
	}
	if slices.Contains(w.inHand[from], k) {
		if err := paste(img, v.tile(k), m); err != nil {
			return err
		}
		w.left--
		p.step()
	}
	w.inHand[from] = slices.DeleteFunc(w.inHand[from], func(i int) bool { return i == k })
	w.give(ctx, t, from)
	return nil
}

// lose gives the tiles of a thread that has ended to others that have fewer than two.
func (w *work) lose(ctx context.Context, t *tpvm.Task, id tpvm.TID) error {
	w.todo = append(w.todo, w.inHand[id]...)
	delete(w.inHand, id)
	if len(w.inHand) == 0 && w.left > 0 {
		return errors.New("every process has ended")
	}
	for other := range w.inHand {
		w.give(ctx, t, other)
	}
	return nil
}

// paste copies the pixels of a message into the picture.
func paste(img *image.RGBA, r image.Rectangle, m *tpvm.Message) error {
	pix, err := pack.View[byte](&m.Reader, 4*r.Dx()*r.Dy())
	if err == nil {
		draw.Draw(img, r, &image.RGBA{Pix: pix, Stride: 4 * r.Dx(), Rect: r}, r.Min, draw.Src)
	}
	return err
}
