package scale

import "testing"

func BenchmarkNo(b *testing.B) {
	c, err := NewCluster(10_000, 20)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c.Searches(Ways[2], Case{}, 20)
	}
}
