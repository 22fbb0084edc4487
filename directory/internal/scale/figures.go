// SPDX-License-Identifier: Apache-2.0

package scale

import "time"

// Sizes are the numbers of nodes that are measured.
var Sizes = []int{10, 100, 1000, 10_000}

// Cases has the cases that are measured, by the names that the document gives them.
var Cases = map[string]Case{
	"no":        {},
	"found":     {Exists: true},
	"filtered":  {Exists: true, Filters: true},
	"lossy1":    {Loss: 0.01},
	"lossy5":    {Loss: 0.05},
	"found5":    {Exists: true, Loss: 0.05},
	"filtered5": {Exists: true, Filters: true, Loss: 0.05},
	"dying":     {Dying: true},
}

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
			for _, k := range Cases {
				times := 200
				if n > 1000 && !k.Filters {
					times = 50
				}
				if k == (Case{}) {
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
