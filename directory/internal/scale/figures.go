// SPDX-License-Identifier: Apache-2.0

package scale

import "time"

// Sizes are the numbers of nodes that are measured.
var Sizes = []int{10, 100, 1000, 10_000}

// Cases that are measured, by the names that the document gives them.
var (
	No        = Case{}
	Found     = Case{Exists: true}
	Filtered  = Case{Exists: true, Filters: true}
	Lossy1    = Case{Loss: 0.01}
	Lossy5    = Case{Loss: 0.05}
	Found5    = Case{Exists: true, Loss: 0.05}
	Filtered5 = Case{Exists: true, Filters: true, Loss: 0.05}
	Dying     = Case{Dying: true}
)

var cases = []Case{No, Found, Filtered, Lossy1, Lossy5, Found5, Filtered5, Dying}

// allVariants returns the variants, the automatic ones included.
func allVariants() []Variant { return append([]Variant{Auto, AutoAlone}, Variants...) }

// Figures are the results that the document shows.
type Figures struct {
	Cost   map[int]map[string]map[Case]Cost // by nodes and name of the variant
	Upkeep map[int][2]Upkeep                // by nodes: without loss, and with 5 % loss
}

// Measure computes the figures, which takes some minutes. It calls say before each part.
func Measure(say func(nodes int, what string)) (*Figures, error) {
	f := &Figures{Cost: map[int]map[string]map[Case]Cost{}, Upkeep: map[int][2]Upkeep{}}
	for _, n := range Sizes {
		c, err := NewCluster(n, Resources, 200)
		if err != nil {
			return nil, err
		}
		f.Cost[n] = map[string]map[Case]Cost{}
		for _, w := range allVariants() {
			say(n, w.Name)
			f.Cost[n][w.Name] = map[Case]Cost{}
			for _, k := range cases {
				times := 200
				if n > 1000 && !k.Filters {
					times = 50
				}
				if k == No {
					times = 5 // all of them are alike
				}
				cost, err := c.Searches(w, k, times)
				if err != nil {
					return nil, err
				}
				f.Cost[n][w.Name][k] = cost
			}
		}
	}
	for _, n := range Sizes {
		say(n, "upkeep")
		var u [2]Upkeep
		for i, loss := range []float64{0, 0.05} {
			var err error
			if u[i], err = Keep(n, Resources, loss, 30*time.Minute); err != nil {
				return nil, err
			}
		}
		f.Upkeep[n] = u
	}
	return f, nil
}
