// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Every transport is measured with every policy, beside the bare loops. The plot is an SVG with a
// row for each.
func TestSustain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	plot := filepath.Join(t.TempDir(), "sustain.svg")
	out := try.Get(execute(ctx, "bench", "--json", "sustain", "--rounds", "2", "--interval", "3ms", "--plot", plot))(t)
	got := map[string]bool{}
	var all []*Sustained
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var s Sustained
		if err := d.Decode(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if s.Bench != "sustain" || s.Size != 64 || s.Goroutines < 1 || s.Rounds != 2 || s.RTTAlone <= 0 || s.RTTBoth <= 0 || s.Machine.Cores < 1 || s.RateAlone <= 0 {
			t.Errorf("%+v", s)
		}
		got[s.Transport+", "+s.What] = true
		all = append(all, &s)
	}
	want := 0
	for _, transport := range []string{"inproc", "shm", "tcp"} {
		for _, p := range policies {
			want++
			if !got[transport+", rocl, "+p.name] {
				t.Errorf("%s is not measured with %s", transport, p.name)
			}
		}
	}
	for _, b := range bares {
		want++
		if !got[b.transport+", "+b.what] {
			t.Errorf("%s: %s is not measured", b.transport, b.what)
		}
	}
	try.Equal(t, len(all), want, "measurements")
	drawing := must(os.ReadFile(plot))
	try.Check(t, xml.Unmarshal(drawing, new(struct{})), "%s", plot)
	bars := bytes.Count(drawing, []byte("<rect "))
	if bars < 3*want {
		t.Errorf("the plot has %d bars for %d rows", bars, want)
	}
	var text, table strings.Builder
	try.OK(t, errors.Join(sustainedText(&text, all), sustainedMarkdown(&table, all)))
	try.Equal(t, strings.Count(text.String(), "\n"), want+1, "lines of\n%s", &text)
	try.Equal(t, strings.Count(table.String(), "\n|"), want+2, "rows of\n%s", &table)
}

// A share of nothing is 0, and the mean is that of both shares.
func TestSustained(t *testing.T) {
	x := &exchange{rateAlone: []float64{100, 90, 110}, rateBoth: []float64{25, 20, 30}, alone: newTimes(), both: newTimes()}
	x.alone.each, x.both.each = []float64{1, 2, 3}, []float64{2}
	if s := x.sustained(); s.RelativeRate != 0.25 || s.RelativeRTT != 1 || s.Sustained != 0.5 {
		t.Errorf("%+v", s)
	}
	if s := (&exchange{alone: newTimes(), both: newTimes()}).sustained(); s.Sustained != 0 {
		t.Errorf("of nothing: %+v", s)
	}
}

func TestSustainWrongFlags(t *testing.T) {
	for _, line := range []string{"--rounds 0", "--interval 0", "--size -1", "--json --markdown", "--plot /nowhere/at/all.svg", "--plot=", "--plot .", "more"} {
		try.Rejects(execute(t.Context(), append([]string{"bench", "sustain"}, strings.Fields(line)...)...))(t, "%s is taken", line)
	}
}
