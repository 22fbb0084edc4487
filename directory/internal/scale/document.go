// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
)

//go:embed scaling.md
var text string

// Document returns docs/SCALING.md: the template scaling.md with the figures.
func (f *Figures) Document() ([]byte, error) {
	t, err := template.New("scaling").Funcs(template.FuncMap{
		"sizes":  func() []int { return Sizes },
		"cost":   f.cost,
		"upkeep": func(n, lossy int) Upkeep { return f.Upkeep[n][lossy] },
		"case":   caseNamed,
		"taken": func(n int) []Variant {
			return slices.Compact([]Variant{Auto.Takes(n), AutoAlone.Takes(n)})
		},
		"takes": func(n int, name string) string {
			return map[string]Variant{Auto.Name: Auto, AutoAlone.Name: AutoAlone}[name].Takes(n).Name
		},
		"either": func(a, b string) string {
			if a == b {
				return a
			}
			return a + " / " + b
		},
		"ms":      millis,
		"n":       thousands,
		"kib":     func(b float64) string { return strconv.FormatFloat(b/1024, 'f', 2, 64) },
		"kibOf":   func(b float64) float64 { return b / 1024 },
		"mib":     func(b int) string { return strconv.FormatFloat(float64(b)/(1<<20), 'f', 1, 64) },
		"one":     func(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) },
		"busy":    func(searches float64) float64 { return 100 * 4 * searches * Work.Seconds() },
		"times":   func(a, b Cost) string { return thousands(math.Round(a.Messages / b.Messages)) },
		"share":   func(c Cost) string { return fmt.Sprintf("%.0f %%", 100*float64(c.Definite)/float64(c.Searches)) },
		"limits":  func() []int { return []int{16, 32, 64, 96, 128, 192, 256, 512} },
		"regret":  func(most int) string { return strconv.FormatFloat(Regret(most), 'f', 2, 64) },
		"seconds": time.Duration.Seconds,
		"micros":  time.Duration.Microseconds,
		"each":    func(n int) int { return Resources / n },
		"unknown": func() string {
			n := 0
			for _, u := range f.Upkeep {
				n += u[0].Missing + u[1].Missing
			}
			if n == 0 {
				return "every node knew of everything"
			}
			return thousands(n) + " resources were unknown to somebody"
		},
		"calm": func() int { return calm },
		"const": func() map[string]any {
			return map[string]any{
				"Resources": Resources, "Hop": Hop, "Work": Work, "Queue": Queue,
				"Patience": search.DefaultHop, "Tries": search.DefaultTries, "Heads": Heads, "Holders": holders,
				"MostBroadcast": search.MostBroadcast, "MostUnicast": search.MostUnicast,
			}
		},
	}).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("scale: the document: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, f); err != nil {
		return nil, fmt.Errorf("scale: the document: %w", err)
	}
	return b.Bytes(), nil
}

// cost returns the figures of a case, which the document names.
func (f *Figures) cost(nodes int, variant string, k Case) (Cost, error) {
	c, ok := f.Cost[nodes][variant][k]
	if !ok {
		return c, fmt.Errorf("scale: %d nodes, %s, %+v: not measured", nodes, variant, k)
	}
	return c, nil
}

func caseNamed(name string) (Case, error) {
	c, ok := Cases[name]
	if !ok {
		return c, fmt.Errorf("scale: no case %q", name)
	}
	return c, nil
}

// millis writes a duration in milliseconds.
func millis(d time.Duration) string {
	digits := 2
	if d >= 10*time.Millisecond {
		digits = 0
	}
	return strconv.FormatFloat(float64(d)/1e6, 'f', digits, 64)
}

// thousands writes a number with commas between groups of three digits.
func thousands(x any) string {
	var s string
	switch x := x.(type) {
	case int:
		s = strconv.Itoa(x)
	case float64:
		s = strconv.FormatFloat(math.Round(x), 'f', 0, 64)
	}
	var out []string
	for len(s) > 3 {
		out = append([]string{s[len(s)-3:]}, out...)
		s = s[:len(s)-3]
	}
	return strings.Join(append([]string{s}, out...), ",")
}
