// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/browser"
	"github.com/rocl-go/rocl/cmd/internal/recording"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// served starts rocl replay --http with a recording of n moments, and returns the process and the
// URL that it prints.
func served(t *testing.T, n int, args ...string) (*subprocess.Process, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "r.gz")
	try.OK(t, os.WriteFile(file, recorded(t, n), 0o600))
	p := try.Get(subprocess.Start(command("rocl", freeaddr.Socket(t), append([]string{"replay", file, "--http", "127.0.0.1:0"}, args...)...)))(t)
	t.Cleanup(func() { p.Kill() })
	return p, try.Get(p.Line(t.Context()))(t)
}

// A browser shows a recording: the messages that nobody read, the process that stopped, and where
// in the recording it is. Keys and buttons pause it, go on by a view, and change the speed.
func TestBrowserReplay(t *testing.T) {
	open := browser.Open(t)
	p, url := served(t, 6)
	b := open(t)
	origin, _, _ := strings.Cut(url, "/enter")
	b.See(origin + "/")
	b.Until("document.querySelector('#status').textContent === 'recording, counts only'")
	if text := b.Text("body"); strings.Contains(text, "shard") || strings.Contains(text, "Pause") {
		t.Errorf("without a token: %q", text)
	}
	b.See(url)
	b.Until("document.querySelector('#status')?.textContent === 'recording'")
	b.Until("document.querySelector('#bar b').textContent === 'Recording'")
	b.Press(" ")
	b.Until("document.querySelector('#pace').textContent.includes('paused')")
	b.Until("document.querySelector('#resources tbody tr').textContent.includes('name=shard n=2')")
	b.Press("+")
	b.Until("document.querySelector('#pace').textContent.endsWith('speed 2')")
	b.Press("-")
	b.Until("document.querySelector('#pace').textContent.endsWith('speed 1')")
	at := "Date.parse(document.querySelector('#moment').dateTime)"
	begin := browser.Evaluate[float64](b, at)
	for range 6 {
		b.Press("n")
	}
	b.Until("document.querySelector('#pace').textContent.startsWith('the end, paused')")
	if end := browser.Evaluate[float64](b, at); end != float64(start.Add(5*time.Second).UnixMilli()) || end < begin {
		t.Errorf("the end is at %v, after %v", time.UnixMilli(int64(end)), time.UnixMilli(int64(begin)))
	}
	b.Until("[...document.querySelectorAll('#contexts .bad')].some((tr) => tr.textContent.includes('4712'))")
	b.Until("[...document.querySelector('[data-table=handlers] tbody tr').cells].map((td) => td.textContent).join('|') === 'Lookup|name=shard n=2|shard 4711|2|1 min 30 s|50/s|408 µs|1.0 s|2.0/s'")
	b.Press(strings.Split("/name=shard", "")...)
	b.Until("document.querySelectorAll('#resources tbody tr').length === 1 && document.activeElement.id === 'search'")
	b.Press("Escape")
	browser.Evaluate[bool](b, "document.querySelector('#pause').click() || true")
	b.Until("document.querySelector('#pause').textContent === 'pause'")
	b.Keep("replay")
	b.CheckOrigin(origin)
	b.See("about:blank")
	p.Signal(syscall.SIGINT)
	_ = p.Wait()
	try.Equal(t, p.Cmd.ProcessState.ExitCode(), 130, "exit code")
}

// The page begins at the moment of --at, or as far as the recording goes.
func TestFrom(t *testing.T) {
	b := recorded(t, 6)
	for at, want := range map[string]int{"": 0, "0s": 0, "1500ms": 2, "1h": 5, "-1h": 0} {
		r := try.Get(recording.NewReader(bytes.NewReader(b)))(t)
		read := try.Get(from(at, r.Read))(t, at)
		for i := want; i < 6; i++ {
			v := try.Get(read())(t, at)
			try.Equal(t, v.Taken.Equal(start.Add(time.Duration(i)*time.Second)), true, "--at %q, view %d: %v", at, i, v.Taken)
		}
		try.Fails(read())(t, io.EOF, at)
	}
	r := try.Get(recording.NewReader(bytes.NewReader(b)))(t)
	try.Rejects(from("noon", r.Read))(t, "a time that is none")
}

// Addresses that other machines reach, and options that the page has no use for, are refused.
func TestServeUsage(t *testing.T) {
	dir := t.TempDir()
	file, empty := filepath.Join(dir, "r.gz"), filepath.Join(dir, "empty.gz")
	try.OK(t, os.WriteFile(file, recorded(t, 1), 0o600))
	try.OK(t, os.WriteFile(empty, zipped(""), 0o600))
	for _, c := range []struct {
		code int
		args []string
	}{
		{64, []string{file, "--http", ":0"}}, {64, []string{file, "--http", "0.0.0.0:0"}}, {64, []string{file, "--http", "192.0.2.1:0"}}, {64, []string{file, "--http", "x"}},
		{64, []string{file, "--http", "127.0.0.1:0", "--once"}}, {64, []string{file, "name=x", "--http", "127.0.0.1:0"}}, {64, []string{file, "--http", "127.0.0.1:0", "--at", "noon"}},
		{1, []string{empty, "--http", "127.0.0.1:0"}},
	} {
		_, errOut, code, err := subprocess.Run(t.Context(), command("rocl", "none", append([]string{"replay"}, c.args...)...))
		if err != nil || code != c.code || errOut == "" {
			t.Errorf("%q: exit code %d, want %d: %v: %s", c.args, code, c.code, err, errOut)
		}
	}
}
