// SPDX-License-Identifier: Apache-2.0

package ratelog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logger returns a Logger and the buffer with its output.
func logger() (*Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return New(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{AddSource: true}))), &b
}

func lines(b *bytes.Buffer) int { return strings.Count(b.String(), "\n") }

// Promise (Keys): A process that is refused again and again fills no log. See also
// directory/internal/mux: TestRefusedIsLimited.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, b := logger()
		const flood = 1000
		for range flood {
			l.Warn("10.0.0.1", "refused", "err", "why")
		}
		if n := lines(b); n != Burst {
			t.Fatalf("%d lines of a flood, want %d:\n%s", n, Burst, b)
		}
		l.Warn("10.0.0.2", "refused")
		l.Warn("10.0.0.1", "another message")
		if n := lines(b); n != Burst+2 {
			t.Fatalf("%d lines, want those of another source and of another message too:\n%s", n, b)
		}
		b.Reset()
		time.Sleep(Interval)
		l.Info("10.0.0.1", "refused", "err", "later")
		l.Info("10.0.0.1", "refused", "err", "too soon")
		if want := fmt.Sprintf(" err=later suppressed=%d\n", flood-Burst); lines(b) != 1 || !strings.HasSuffix(b.String(), want) {
			t.Fatalf("after a pause: %s\nwant one line that ends with %s", b, want)
		}
		if !strings.Contains(b.String(), "ratelog_test.go") {
			t.Fatalf("the line does not say where it was written: %s", b)
		}
		b.Reset()
		time.Sleep(Burst * Interval)
		for range 2 * Burst {
			l.Warn("10.0.0.1", "refused")
		}
		if n := lines(b); n != Burst {
			t.Fatalf("%d lines after a long pause, want %d again", n, Burst)
		}
	})
}

// A client with many addresses causes no more lines than the limits of the sources with a limit of
// their own, plus the shared limit.
func TestManySources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, b := logger()
		for i := range 10_000 {
			l.Warn(fmt.Sprint("source ", i), "refused")
		}
		if n, most := lines(b), maxSources+Burst; n != most {
			t.Fatalf("%d lines, want %d", n, most)
		}
		if n := len(l.limits["refused"].sources); n > maxSources {
			t.Fatalf("%d sources are remembered", n)
		}
		b.Reset()
		time.Sleep(Burst * Interval)
		l.Warn("a new source", "refused") // for which there is room again
		for i := range maxSources {
			l.Warn(fmt.Sprint("new source ", i), "refused")
		}
		want := fmt.Sprintf("suppressed=%d", 10_000-maxSources-Burst)
		if n := lines(b); n != maxSources+1 || !strings.Contains(b.String(), want) {
			t.Fatalf("%d lines, want %d, one with %s:\n%s", n, maxSources+1, want, b)
		}
	})
}

// At level debug no line is left out, and lines beyond the limit have that level.
func TestDebug(t *testing.T) {
	var b bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for range 100 {
		l.Warn("", "accepting")
	}
	if n, warn := lines(&b), strings.Count(b.String(), "level=WARN"); n != 100 || warn != Burst {
		t.Fatalf("%d lines, %d of them warnings; want 100, %d", n, warn, Burst)
	}
}

func TestDiscards(t *testing.T) {
	New(nil).Warn("", "nothing")
	var b bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn})))
	for range 2 * Burst {
		l.Info("", "accepting")
	}
	l.Warn("", "accepting")
	if want := "msg=accepting\n"; !strings.HasSuffix(b.String(), want) || lines(&b) != 1 {
		t.Fatalf("lines below the level count: %q", b.String())
	}
}
