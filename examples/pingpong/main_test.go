// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestPingPong(t *testing.T) {
	node := example.New(t)
	pong := node.Serve("waiting for ping")
	for range 2 { // the second run finds pong as the first left it
		said := node.Run()
		// The output is a line such as "10000 round trips, 12.3µs each".
		m := regexp.MustCompile(`^10000 round trips, (.+) each\n$`).FindStringSubmatch(said)
		if m == nil {
			t.Fatalf("ping says %q", said)
		}
		if d, err := time.ParseDuration(m[1]); err != nil || d <= 0 {
			t.Errorf("%q each: %v", m[1], err)
		}
	}
	node.Interrupt(pong)
}
