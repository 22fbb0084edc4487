package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A member that is told of nobody to join and is started anew, because the
// others join it, does not deny what they hold: those who still talk to it are
// joined.
func TestSeedRestarted(t *testing.T) {
	for how, end := range map[string]func(*Cluster) error{
		"replaced": (*Cluster).HandOver,
		"killed":   func(c *Cluster) error { return c.stop(false) },
	} {
		t.Run(how, func(t *testing.T) {
			a := member(t, 1, nil)
			b, c := member(t, 2, nil, a), member(t, 3, nil, a)
			together(t, a, b, c)
			y := put(t, b, 1, resource.Attrs{"y": ""})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := end(a); err != nil {
				t.Fatal(err)
			}
			a = anew(t, a, func(c *Config) { c.Follows = true })
			if r, err := a.Find(ctx, pattern(resource.Match{"y": ""})); err != nil || r.ID != y {
				t.Errorf("the seed finds %+v: %v", r, err)
			}
			x := put(t, a, 1, resource.Attrs{"x": ""})
			for _, m := range []*Cluster{b, c} {
				if r, err := m.Find(ctx, pattern(resource.Match{"x": ""})); err != nil || r.ID != x {
					t.Errorf("another finds %+v: %v", r, err)
				}
			}
			together(t, a, b, c)
		})
	}
}
