package scale

import (
	"testing"
	"time"
)

func TestTmp(t *testing.T) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		b := time.Now()
		c, err := NewCluster(n, 20)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(n, "made in", time.Since(b), c.filters.Bytes())
		for _, w := range Ways {
			for _, k := range []Case{{}, {Exists: true}, {Exists: true, Filters: true}, {Filters: true}, {Loss: 0.01}, {Loss: 0.05}, {Exists: true, Filters: true, Loss: 0.05}, {Dying: true}} {
				b := time.Now()
				r, err := c.Searches(w, k, 20)
				t.Logf("%d %v %+v: %+v %v formula %v (%v real)", n, w.Name, k, r, err, Time(n-1, w.Fan, Hop, Work), time.Since(b))
			}
		}
	}
}
