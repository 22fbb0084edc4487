// SPDX-License-Identifier: Apache-2.0

package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
)

func sustainCommand() *cobra.Command {
	var size, rounds int
	var interval time.Duration
	var markdown bool
	var plot string
	c := &cobra.Command{
		Use: "sustain", Args: cli.Nothing,
		Short: "What is left of a computation and of messages when they run together",
		Long: "A computation on all processors and a ping-pong run alone and together, over each transport\n" +
			"with each policy of polling and beside bare loops. Takes about a minute, in which it prints nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			json := cli.Flags(cmd).JSON
			if rounds < 1 || interval <= 0 || size < 0 || size > rocl.MaxMessage {
				return cli.Usagef("--rounds must be at least 1, --interval more than 0, --size from 0 to %d", rocl.MaxMessage)
			}
			if json && markdown {
				return cli.Usagef("--json or --markdown, not both")
			}
			if cmd.Flags().Changed("plot") { // fails now rather than after a minute
				if err := checkPlot(plot); err != nil {
					return err
				}
			}
			all, err := measureSustained(cmd.Context(), size, rounds, interval)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			switch {
			case json:
				for _, s := range all {
					if err := cli.Print(w, s); err != nil {
						return err
					}
				}
			case markdown:
				err = sustainedMarkdown(w, all)
			default:
				err = sustainedText(w, all)
			}
			if err != nil || plot == "" {
				return err
			}
			f, err := os.Create(plot)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := sustainedPlot(f, all); err != nil {
				return fmt.Errorf("drawing %s: %w", plot, err)
			}
			return f.Close()
		},
	}
	f := c.Flags()
	f.IntVar(&size, "size", 64, "bytes of a message")
	f.IntVar(&rounds, "rounds", 7, "rounds, each with three intervals a row")
	f.DurationVar(&interval, "interval", 200*time.Millisecond, "how long each is measured at a time")
	f.BoolVar(&markdown, "markdown", false, "print the table of docs/BENCHMARKS.md")
	f.StringVar(&plot, "plot", "", "draw it into this file too, as SVG")
	return c
}

// checkPlot returns an error if the file plot cannot be made.
func checkPlot(plot string) error {
	if plot == "" {
		return cli.Usagef("--plot is empty: it names a file")
	}
	if dir, err := os.Stat(filepath.Dir(plot)); err != nil || !dir.IsDir() {
		return cli.Usagef("--plot %s: there is no such folder", plot)
	}
	if at, err := os.Stat(plot); err == nil && !at.Mode().IsRegular() {
		return cli.Usagef("--plot %s: it is not a file (%v)", plot, at.Mode())
	}
	return nil
}

func sustainedText(w io.Writer, all []*Sustained) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "transport\twaiting\tunits/s\tboth\tshare\tround trip µs\tboth\tshare\tp99 µs\tboth\tsustained\t")
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.2f\t\n",
			s.Transport, s.What, s.RateAlone, s.RateBoth, s.RelativeRate, s.RTTAlone, s.RTTBoth, s.RelativeRTT, s.P99Alone, s.P99Both, s.Sustained)
	}
	return t.Flush()
}

func sustainedMarkdown(w io.Writer, all []*Sustained) error {
	s := all[0]
	_, err := fmt.Fprintf(w, "%s: %s, %d cores, %s, %s; %d B, %d goroutines compute, %d rounds of %v an interval.\n\n"+
		"| transport | waiting | computation alone, units/s | beside messages | share | round trip alone, µs (p99) | beside the computation | share | sustained |\n|---|---|---|---|---|---|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), s.Machine.CPU, s.Machine.Cores, s.Machine.Kernel, s.Machine.Go,
		s.Size, s.Goroutines, s.Rounds, time.Duration(s.Interval*float64(time.Second)).Round(time.Microsecond))
	for _, s := range all {
		if err != nil {
			break
		}
		what := "`" + s.What + "`"
		if s.Bare {
			what = s.What
		}
		_, err = fmt.Fprintf(w, "| %s | %s | %.0f | %.0f | %.2f | %.2f (%.0f) | %.2f (%.0f) | %.2f | **%.2f** |\n",
			s.Transport, what, s.RateAlone, s.RateBoth, s.RelativeRate, s.RTTAlone, s.P99Alone, s.RTTBoth, s.P99Both, s.RelativeRTT, s.Sustained)
	}
	return err
}

//go:embed sustain.svg.tmpl
var sustainedSVG string

// drawing is the data of the template, in the units of the drawing.
type drawing struct {
	Width, Height, Left, Bottom, Foot int
	Grid                              []mark
	Groups                            []plotGroup
	Machine                           Machine
	Size                              int
}

type mark struct {
	X    int
	Text string
}

type plotGroup struct { // a transport
	Name string
	Y    int // of its middle
	Rows []row
}

type row struct {
	Name string
	Bare bool
	Y    int // of its middle
	Bars []bar
}

type bar struct {
	Class           string
	Y, Height, W, X int // X is where its figure stands
	Text            string
}

// sustainedPlot draws horizontal bars, three in each row. It uses a short template rather than a
// library for plots, because this command shares the go.mod of the library.
func sustainedPlot(w io.Writer, all []*Sustained) error {
	const (
		left, wide, right = 150, 520, 50
		thick, gap, title = 9, 9, 26
		top               = 56
	)
	most := 1.0 // shares above 1 come of changes in the machine's state, and are shown
	for _, s := range all {
		most = max(most, s.RelativeRate, s.RelativeRTT, s.Sustained)
	}
	d := drawing{Width: left + wide + right, Left: left, Machine: all[0].Machine, Size: all[0].Size}
	for n := 0; float64(n) <= most*4; n++ {
		d.Grid = append(d.Grid, mark{left + int(float64(wide)*float64(n)/4/most), fmt.Sprintf("%.2f", float64(n)/4)})
	}
	y := top
	for _, s := range all {
		if n := len(d.Groups); n == 0 || d.Groups[n-1].Name != s.Transport {
			d.Groups = append(d.Groups, plotGroup{Name: s.Transport, Y: y + title - gap})
			y += title
		}
		r := row{Name: s.What, Bare: s.Bare, Y: y + 3*thick/2}
		for _, b := range []struct {
			class string
			share float64
		}{{"rate", s.RelativeRate}, {"rtt", s.RelativeRTT}, {"both", s.Sustained}} {
			long := int(float64(wide) * b.share / most)
			r.Bars = append(r.Bars, bar{b.class, y, thick - 1, long, left + long + 4, fmt.Sprintf("%.2f", b.share)})
			y += thick
		}
		g := &d.Groups[len(d.Groups)-1]
		g.Rows = append(g.Rows, r)
		y += gap
	}
	d.Bottom, d.Foot, d.Height = y, y+34, y+46
	t, err := template.New("sustain").Parse(sustainedSVG)
	if err != nil {
		return err
	}
	return t.Execute(w, &d)
}
