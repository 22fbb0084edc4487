// SPDX-License-Identifier: Apache-2.0

// Command scaling measures what a large cluster costs, in virtual time, and writes docs/SCALING.md
// and docs/scaling.svg. Run it by "make scaling".
package main

import (
	"bytes"
	"flag"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"time"

	"github.com/rocl-go/rocl/directory/internal/scale"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

func main() {
	to := flag.String("to", "../../../../docs", "folder to write to")
	flag.Parse()
	if err := run(*to); err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(1)
	}
}

func run(to string) error {
	f, err := scale.Measure(func(nodes int, what string) { fmt.Fprintf(os.Stderr, "%d nodes: %s\n", nodes, what) })
	if err != nil {
		return err
	}
	text, err := f.Document()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, "SCALING.md"), text, 0o644); err != nil {
		return err
	}
	picture, err := draws(f)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "scaling.svg"), picture, 0o644)
}

// colours has the colour of each of scale.Variants.
var colours = []color.Color{
	color.RGBA{R: 0xe6, G: 0x9f, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, A: 0xff}, color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	color.RGBA{G: 0x72, B: 0xb2, A: 0xff}, color.RGBA{G: 0x9e, B: 0x73, A: 0xff},
}

// draws plots the times beside the messages: formulas as lines, simulated figures as points.
func draws(f *scale.Figures) ([]byte, error) {
	times := axes("time to a definite no", "ms")
	if err := shade(times, "what auto takes, with a group", formula(scale.Auto)); err != nil {
		return nil, err
	}
	for i, w := range scale.Variants {
		line := formula(w)
		var points plotter.XYs
		for _, n := range scale.Sizes {
			points = append(points, plotter.XY{X: float64(n), Y: ms(f.Cost[n][w.Name][scale.Cases["no"]].P50)})
		}
		if err := add(times, w.Name, colours[i], line, points); err != nil {
			return nil, err
		}
	}
	messages := axes("messages of a find (3 nodes hold it, tree of 16)", "messages")
	for i, k := range []struct {
		name string
		of   scale.Case
	}{{"without filters", scale.Cases["found"]}, {"with filters", scale.Cases["filtered"]}} {
		var points plotter.XYs
		for _, n := range scale.Sizes {
			points = append(points, plotter.XY{X: float64(n), Y: f.Cost[n]["tree of 16"][k.of].Messages})
		}
		if err := add(messages, k.name, colours[1+2*i], points, points); err != nil {
			return nil, err
		}
	}
	c := vgsvg.New(10*vg.Inch, 4*vg.Inch)
	dc := draw.New(c)
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Millimeter * 8, PadTop: vg.Millimeter * 2, PadRight: vg.Millimeter * 2}
	for i, cell := range plot.Align([][]*plot.Plot{{times, messages}}, tiles, dc)[0] {
		[]*plot.Plot{times, messages}[i].Draw(cell)
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("drawing: %w", err)
	}
	return b.Bytes(), nil
}

// formula returns the time to a no by nodes, with points close enough to show a jump as one.
func formula(w scale.Variant) (line plotter.XYs) {
	last := 1
	for x := 2.0; x <= 20_000; x *= 1.005 {
		if n := int(x); n > last {
			line = append(line, plotter.XY{X: float64(n), Y: ms(w.Time(n))})
			last = n
		}
	}
	return line
}

// shade adds a broad line, over which other lines are drawn.
func shade(p *plot.Plot, name string, line plotter.XYs) error {
	l, err := plotter.NewLine(line)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", name, err)
	}
	l.Color, l.Width = color.Gray{Y: 0xd0}, vg.Points(7)
	p.Add(l)
	p.Legend.Add(name, l)
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func axes(title, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "nodes", y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	return p
}

func add(p *plot.Plot, name string, c color.Color, line, points plotter.XYs) error {
	l, err := plotter.NewLine(line)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", name, err)
	}
	s, err := plotter.NewScatter(points)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", name, err)
	}
	l.Color, l.Width, s.Color, s.Shape = c, vg.Points(1.5), c, draw.CircleGlyph{}
	p.Add(l, s)
	p.Legend.Add(name, l, s)
	return nil
}
