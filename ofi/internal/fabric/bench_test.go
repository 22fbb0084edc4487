package fabric

import (
	"testing"
	"time"
)

func BenchmarkPoll(b *testing.B) {
	t0 := time.Now()
	e, err := Open("tcp;ofi_rxm", "127.0.0.1", 16)
	if err != nil {
		b.Fatal(err)
	}
	b.Log("open", time.Since(t0))
	t0 = time.Now()
	e2, _ := Open("tcp;ofi_rxm", "127.0.0.1", 16)
	b.Log("open", time.Since(t0))
	e2.Close()
	defer e.Close()
	b.ReportAllocs()
	var c [4]Completion
	for b.Loop() {
		e.Poll(c[:])
	}
}
