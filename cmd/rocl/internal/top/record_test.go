// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/recording"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// recorded returns a finished recording of n views.
func recorded(t testing.TB, n int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.gz")
	r := try.Get(recording.Create(path))(t)
	for i := range n {
		try.OK(t, r.Add(moment(i)))
	}
	try.OK(t, r.Finish())
	return try.Get(os.ReadFile(path))(t)
}

// A replay shows what top showed.
func TestRoundTrip(t *testing.T) {
	live := open(t, 6, 120, 30)
	p := try.Get(recording.NewReader(bytes.NewReader(recorded(t, 6))))(t)
	m := newModel(&replay{ctx: t.Context(), Reader: p}, true, "")
	m.width, m.height = 120, 30
	try.OK(t, m.seek(""))
	for range tables {
		_, lines, _ := strings.Cut(screen(live), "\n")
		_, replayed, _ := strings.Cut(screen(m), "\n")
		try.Equal(t, replayed[:strings.LastIndex(replayed, "\n")], lines[:strings.LastIndex(lines, "\n")], tables[m.table].name)
		press(live, "tab")
		press(m, "tab")
	}
}

func zipped(text string) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.Bytes()
}

// --at goes to a time, or as far as the recording goes.
func TestSeek(t *testing.T) {
	b := recorded(t, 6)
	for _, c := range []struct {
		at   string
		want int
	}{{"", 5}, {"0s", 0}, {"1500ms", 2}, {"3s", 3}, {"1h", 5}, {"-1h", 0}, {start.Add(4 * time.Second).Format(time.RFC3339), 4}} {
		p := try.Get(recording.NewReader(bytes.NewReader(b)))(t)
		m := newModel(&replay{ctx: t.Context(), Reader: p}, true, "")
		try.OK(t, m.seek(c.at), c.at)
		if got := m.view.Taken; !got.Equal(start.Add(time.Duration(c.want) * time.Second)) {
			t.Errorf("--at %q: %v", c.at, got)
		}
	}
	m := newModel(&replay{ctx: t.Context(), Reader: try.Get(recording.NewReader(bytes.NewReader(zipped(""))))(t)}, true, "")
	try.Rejects(m.seek(""))(t, "an empty recording")
	m = newModel(&replay{ctx: t.Context(), Reader: try.Get(recording.NewReader(bytes.NewReader(b)))(t)}, true, "")
	try.Rejects(m.seek("noon"))(t, "a time that is none")
}

// A replay takes as long as the recording, or a part of it by the speed. A long gap is cut, and the
// end of the context ends a wait.
func TestReplaySpeed(t *testing.T) {
	b := recorded(t, 6)
	synctest.Test(t, func(t *testing.T) {
		for speed, want := range map[float64]time.Duration{0: 0, 1: 5 * time.Second, 2: 2500 * time.Millisecond, 0.125: 25 * time.Second} {
			r := &replay{ctx: t.Context(), Reader: try.Get(recording.NewReader(bytes.NewReader(b)))(t)}
			begun := time.Now()
			for range 6 {
				try.Works(r.next(speed))(t)
			}
			try.Equal(t, time.Since(begun), want, "speed %v", speed)
		}
		r := &replay{ctx: t.Context(), Reader: try.Get(recording.NewReader(bytes.NewReader(b)))(t), last: start.Add(-time.Hour)}
		begun := time.Now()
		try.Works(r.next(1))(t)
		try.Equal(t, time.Since(begun), maxPause, "a gap")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.ctx = ctx
		try.Fails(r.next(1))(t, context.Canceled, "after the end")
	})
}

// Whatever a file has, the reader and the screen neither panic nor show what controls the terminal.
func FuzzReplay(f *testing.F) {
	b := recorded(f, 3)
	r, _ := gzip.NewReader(bytes.NewReader(b))
	text, _ := io.ReadAll(r)
	f.Add(string(text))
	f.Add(string(text[:len(text)/2]))
	f.Add(`{"taken":"9999-12-31T23:59:59Z","contexts":[{"context":"000000000000-1-0","pid":-1,"resources":[{"resource":"000000000000-1-1","messages":-9223372036854775808}]}]}`)
	f.Add(`{"contexts":[null,{},{"links":[null,{}],"calls":[{}],"cut":{"":-1}}],"nodes":[{"name":"\u001b[2J"}]}` + "\n" + `{"contexts":0}`)
	f.Fuzz(func(t *testing.T, text string) {
		p := try.Get(recording.NewReader(bytes.NewReader(zipped(text))))(t)
		m := newModel(&replay{ctx: t.Context(), Reader: p}, true, "name=x")
		if m.seek("") != nil {
			return
		}
		for range tables {
			press(m, "enter")
			if strings.Contains(screen(m), "\x1b[2J") {
				t.Errorf("the screen is cleared: %q", screen(m))
			}
			press(m, "tab")
		}
	})
}
