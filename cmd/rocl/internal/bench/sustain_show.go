// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"html"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
)

func sustainCommand() *cobra.Command {
	var size, rounds int
	var interval time.Duration
	var markdown bool
	var plot, page string
	c := &cobra.Command{
		Use: "sustain", Args: usage.Nothing,
		Short: "What is left of a computation and of messages when they run together",
		Long: "A computation on all processors and a ping-pong run alone and together, over each transport\n" +
			"with each policy of polling and beside bare loops. Takes about a minute, in which it prints nothing.",
	}
	f := c.Flags()
	f.IntVar(&size, "size", 64, "bytes of a message")
	f.IntVar(&rounds, "rounds", 7, "rounds, each with three intervals a row")
	f.DurationVar(&interval, "interval", 200*time.Millisecond, "how long each is measured at a time")
	f.BoolVar(&markdown, "markdown", false, "print the table of docs/BENCHMARKS.md")
	f.StringVar(&page, "into", "", "put that table into this file, between the lines <!-- bench sustain --> and <!-- end of bench sustain -->")
	f.StringVar(&plot, "plot", "", "draw it into this file too, as SVG")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		isJSON := cli.Flags(cmd).JSON
		if rounds < 1 || interval <= 0 || size < 0 || size > rocl.MaxMessage {
			return usage.Errorf("--rounds must be at least 1, --interval more than 0, --size from 0 to %d", rocl.MaxMessage)
		}
		isPage := f.Changed("into")
		if isJSON && (markdown || isPage) || markdown && isPage {
			return usage.Errorf("one of --json, --markdown and --into")
		}
		return attempt(func() {
			var drawing *os.File
			if f.Changed("plot") { // fails now rather than after a minute
				drawing = must(os.OpenFile(plot, os.O_WRONLY|os.O_CREATE, 0o666))
				defer drawing.Close()
			}
			all := measureSustained(cmd.Context(), size, rounds, interval)
			w := cmd.OutOrStdout()
			switch {
			case isJSON:
				for _, s := range all {
					check(cli.Print(w, s))
				}
			case isPage:
				check(intoPage(page, c.Name(), func(w io.Writer) error { return sustainedMarkdown(w, all) }))
			case markdown:
				check(sustainedMarkdown(w, all))
			default:
				check(sustainedText(w, all))
			}
			if drawing != nil {
				check(drawing.Truncate(0))
				must(io.WriteString(drawing, sustainedSVG(all)))
				check(drawing.Close())
			}
		})
	}
	return c
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
	_, err := fmt.Fprintf(w, "%s: %s, %d cores, %s, %s;\n%d B, %d goroutines compute, %d rounds of %v an interval.\n\n"+
		"| transport | waiting | computation alone, units/s | beside messages | share | round trip alone, µs (p99) | beside the computation | share | sustained |\n|---|---|---|---|---|---|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), s.Machine.CPU, s.Machine.Cores, s.Machine.Kernel, s.Machine.Go,
		s.Size, s.Goroutines, s.Rounds, time.Duration(s.Interval*float64(time.Second)).Round(time.Microsecond))
	for _, s := range all {
		what := "`" + s.What + "`"
		if s.Bare {
			what = s.What
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "| %s | %s | %.0f | %.0f | %.2f | %.2f (%.0f) | %.2f (%.0f) | %.2f | **%.2f** |\n",
				s.Transport, what, s.RateAlone, s.RateBoth, s.RelativeRate, s.RTTAlone, s.P99Alone, s.RTTBoth, s.P99Both, s.RelativeRTT, s.Sustained)
		}
	}
	return err
}

// sustainedSVG returns a drawing of horizontal bars, three in each row.
func sustainedSVG(all []*Sustained) string {
	const (
		left, wide, right = 150, 520, 50
		thick, gap, title = 9, 9, 26
		top               = 56
	)
	most := 1.0 // shares above 1 come of changes in the machine's state, and are shown
	for _, s := range all {
		most = max(most, s.RelativeRate, s.RelativeRTT, s.Sustained)
	}
	rows, y, transport := "", top, ""
	for _, s := range all {
		if s.Transport != transport {
			transport = s.Transport
			rows += fmt.Sprintf("<text x=\"8\" y=\"%d\" font-weight=\"bold\">%s</text>\n", y+title-gap, transport)
			y += title
		}
		class := "name"
		if s.Bare {
			class = "name bare"
		}
		rows += fmt.Sprintf("<text class=\"%s\" x=\"%d\" dx=\"-6\" y=\"%d\" dy=\"4\">%s</text>\n", class, left, y+3*thick/2, html.EscapeString(s.What))
		for i, share := range []float64{s.RelativeRate, s.RelativeRTT, s.Sustained} {
			long := int(wide * share / most)
			rows += fmt.Sprintf("<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/><text class=\"figure\" x=\"%d\" y=\"%d\" dy=\"7\">%.2f</text>\n",
				[]string{"rate", "rtt", "both"}[i], left, y, long, thick-1, left+long+4, y, share)
			y += thick
		}
		y += gap
	}
	grid := ""
	for share := 0.0; share <= most; share += 0.25 {
		x := left + int(wide*share/most)
		grid += fmt.Sprintf("<path class=\"grid\" d=\"M%d 46V%d\"/><text class=\"mark\" x=\"%d\" y=\"%d\" dy=\"14\">%.2f</text>\n", x, y, x, y, share)
	}
	m := all[0].Machine
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" font-family="sans-serif" font-size="11">
<style>
.rate { fill: #56b4e9 } .rtt { fill: #e69f00 } .both { fill: #222 }
.name { text-anchor: end } .bare { fill: #777 } .figure { font-size: 8px; fill: #555 }
.grid { stroke: #ddd } .mark { text-anchor: middle; fill: #777; font-size: 10px }
</style>
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="%[3]d" y="16" font-weight="bold">What is left when a computation and messages run together</text>
<rect class="rate" x="%[3]d" y="26" width="10" height="10"/><text x="164" y="35">rate of the computation</text>
<rect class="rtt" x="310" y="26" width="10" height="10"/><text x="324" y="35">round trips, %[4]d bytes</text>
<rect class="both" x="450" y="26" width="10" height="10"/><text x="464" y="35">sustained: their geometric mean</text>
%[5]s%[6]s<text class="mark" style="text-anchor: start" x="8" y="%[7]d">%[8]s</text>
</svg>
`, left+wide+right, y+46, left, all[0].Size, grid, rows, y+34, html.EscapeString(fmt.Sprintf("%s, %d cores, %s, %s", m.CPU, m.Cores, m.Kernel, m.Go)))
}
