// SPDX-License-Identifier: Apache-2.0

// Command video draws a short film, and writes its frames as PNG files:
//
//	video [-frames N] [-n N] FOLDER
//
// A source draws frames, N workers soften each frame and then mark its edges, and a sink writes the
// frames in the order in which they were drawn, whichever worker was first. The groups are draw,
// filter and write.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"

	"github.com/rocl-go/rocl/dataflow"
)

func main() { dataflow.Main(build) }

// build returns the graph.
func build(args []string) (*dataflow.Graph, error) {
	f := flag.NewFlagSet("video", flag.ExitOnError)
	frames := f.Int("frames", 48, "frames of the film")
	n := f.Int("n", 3, "workers")
	_ = f.Parse(args) // it ends the process
	if f.NArg() != 1 {
		return nil, errors.New("usage: video [-frames N] [-n N] FOLDER")
	}
	draw := dataflow.From(film(*frames), dataflow.Name("draw"))
	filters := dataflow.Farm(*n, func(int) dataflow.Part[[]byte, []byte] {
		return dataflow.Fuse(filter(soften), filter(mark))
	}, dataflow.Name("filter"), dataflow.Ordered(4**n), dataflow.Policy(dataflow.OnDemand(2)))
	write := dataflow.To(store(f.Arg(0)), dataflow.Name("write"))
	g, err := dataflow.New("video", dataflow.Pipeline3(draw, filters, write))
	if err == nil {
		err = errors.Join(g.Group("draw", draw), g.Group("filter", filters), g.Group("write", write))
	}
	return g, err
}

// A frame is its pixels from left to right and from top to bottom, a byte of brightness each. As a
// slice of bytes it needs no codec between processes.
const width, height = 320, 180

// film returns a source that draws frames: waves that run from a point that moves.
func film(frames int) dataflow.Source[[]byte] {
	return func(ctx context.Context, out dataflow.Out[[]byte]) error {
		for k := range frames {
			t := 2 * math.Pi * float64(k) / float64(frames)
			cx, cy := width/2+width/4*math.Cos(t), height/2+height/4*math.Sin(t)
			frame := make([]byte, width*height)
			for i := range frame {
				d := math.Hypot(float64(i%width)-cx, float64(i/width)-cy)
				frame[i] = byte(127.5 + 127.5*math.Cos(d/6-3*t))
			}
			if err := out.Send(ctx, frame); err != nil {
				return err
			}
		}
		return nil
	}
}

// filter returns a stage that makes each pixel of a frame from the pixel and its eight neighbours.
func filter(f func(around *[9]int) int) dataflow.Part[[]byte, []byte] {
	return dataflow.Do(dataflow.Func[[]byte, []byte](func(ctx context.Context, in dataflow.Item[[]byte], out dataflow.Out[[]byte]) error {
		frame := in.Value
		if len(frame) != width*height {
			return fmt.Errorf("a frame has %d pixels", len(frame))
		}
		done := make([]byte, len(frame))
		for y := range height {
			for x := range width {
				var around [9]int
				for k := range around {
					nx, ny := min(max(x+k%3-1, 0), width-1), min(max(y+k/3-1, 0), height-1)
					around[k] = int(frame[ny*width+nx])
				}
				done[y*width+x] = byte(min(max(f(&around), 0), 255))
			}
		}
		return out.Send(ctx, done)
	}))
}

// soften returns the mean.
func soften(a *[9]int) (sum int) {
	for _, v := range a {
		sum += v
	}
	return sum / len(a)
}

// mark returns how much the brightness changes here (Sobel).
func mark(a *[9]int) int {
	dx := a[2] + 2*a[5] + a[8] - a[0] - 2*a[3] - a[6]
	dy := a[6] + 2*a[7] + a[8] - a[0] - 2*a[1] - a[2]
	return int(math.Hypot(float64(dx), float64(dy)))
}

// store returns a sink that writes frames to files in a folder.
func store(folder string) dataflow.Sink[[]byte] {
	k := 0
	return func(_ context.Context, in dataflow.Item[[]byte]) error {
		file, err := os.Create(filepath.Join(folder, fmt.Sprintf("frame%04d.png", k)))
		if err != nil {
			return err
		}
		k++
		w := bufio.NewWriter(file)
		img := &image.Gray{Pix: in.Value, Stride: width, Rect: image.Rect(0, 0, width, height)}
		return errors.Join(png.Encode(w, img), w.Flush(), file.Close())
	}
}
