// SPDX-License-Identifier: Apache-2.0

package loglevel

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each component logs at its own level, from the moment it is set, and an invalid setting changes
// none.
func TestLevels(t *testing.T) {
	var b bytes.Buffer
	l := New(slog.LevelInfo)
	log := slog.New(l.Handler(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))).With("x", 1)
	write := func() (got []string) {
		b.Reset()
		for _, text := range []string{"cluster: member", "dispatch: connecting", "serving", "Odd: text", "cluster says: no"} {
			log.Debug(text)
			log.Warn(text)
		}
		for line := range strings.Lines(b.String()) {
			f := strings.SplitN(line, " msg=", 2)
			got = append(got, strings.Fields(f[0])[1][len("level="):]+" "+strings.Trim(strings.TrimSuffix(f[1], " x=1\n"), `"`))
		}
		return got
	}
	warns := "[WARN cluster: member WARN dispatch: connecting WARN serving WARN Odd: text WARN cluster says: no]"
	try.Equal(t, fmt.Sprint(write()), warns)
	try.OK(t, l.Set("cluster=debug", "dispatch=error"))
	try.Equal(t, fmt.Sprint(write()), "[DEBUG cluster: member WARN cluster: member WARN serving WARN Odd: text WARN cluster says: no]")
	try.Equal(t, fmt.Sprint(l.All()), "map[*:info cluster:debug dispatch:error]")
	for _, bad := range []string{"", "cluster", "cluster=", "cluster=loud", "=debug", "a b=debug", "info+2", "x=debug-1", strings.Repeat("x", 33) + "=info"} {
		if err := l.Set("other=debug", bad); err == nil {
			t.Errorf("%q is a setting", bad)
		}
	}
	try.Equal(t, fmt.Sprint(l.All()), "map[*:info cluster:debug dispatch:error]")
	try.OK(t, l.Set("warn", "other=debug"))
	try.Equal(t, fmt.Sprint(write()), strings.NewReplacer("WARN serving", "DEBUG serving WARN serving", "WARN Odd: text WARN cluster says: no",
		"DEBUG Odd: text WARN Odd: text DEBUG cluster says: no WARN cluster says: no").Replace(warns))
	for i := range 2 * mostComponents {
		if err := l.Set(fmt.Sprintf("c%d=debug", i)); (err == nil) != (i < mostComponents-1) {
			t.Fatal(i, err)
		}
	}
}

// Levels change while lines are written.
func TestConcurrent(t *testing.T) {
	l := New(slog.LevelInfo)
	log := slog.New(l.Handler(slog.DiscardHandler))
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for i := range 200 {
				log.Info("cluster: member")
				_ = l.Set([]string{"cluster=debug", "info"}[i%2])
				l.All()
			}
		})
	}
	busy.Wait()
}
