// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

var update = flag.Bool("update", false, "TestScreens writes the screens into testdata")

var start = time.Date(2026, 11, 27, 18, 0, 0, 0, time.Local)

func gid(ctx uint64, serial uint32) rocl.GID { return resource.MakeGID(0x0a0b0c, ctx, serial) }

func mailbox(id rocl.GID, name string, messages int, received uint64) rocl.ResourceSnapshot {
	return rocl.ResourceSnapshot{Name: name, MailboxSnapshot: dispatch.MailboxSnapshot{
		Resource: id, Messages: messages, Bytes: uint64(messages) * 100, Limit: 1 << 20, Received: received, Arrived: received + uint64(messages)*100,
	}}
}

// moment returns the view n seconds after the start. Shard 2 does not receive, its 300 messages
// wait, and a call to it. The process 4712 answers no more after the first second. A context tells
// hostile names.
func moment(n int) *observe.View {
	taken := start.Add(time.Duration(n) * time.Second)
	contextOf := func(id uint64, pid int, program string, rs ...rocl.ResourceSnapshot) observe.Context {
		return observe.Context{Snapshot: rocl.Snapshot{Version: 1, Context: gid(id, 0), PID: pid, Program: program, Rocl: "v0.2.0", Started: start, Taken: taken, Memory: 3 << 20, Resources: rs}}
	}
	front := contextOf(1, 4710, "front", mailbox(gid(1, 1), "name=front zone=a", 0, uint64(n)*1e6))
	front.Calls = []dispatch.CallSnapshot{{Number: 7, From: gid(1, 1), To: gid(2, 1), Tag: 1 << 40, Name: "Lookup"}}
	front.Links = []dispatch.LinkSnapshot{
		{Route: rocl.Route{Peer: gid(2, 0), Transport: "shm", SentBytes: uint64(n) * 5e6, ReceivedBytes: uint64(n) * 3000}, State: "connected", Unacknowledged: 3},
		{Route: rocl.Route{Peer: gid(3, 0), Dialling: "tcp 10.0.0.3:7000: connection refused"}, State: "dialling", Queued: 12},
	}
	shard := contextOf(2, 4711, "shard", mailbox(gid(2, 1), "name=shard n=2", 300, 500), mailbox(gid(2, 2), "name=control", 2, uint64(n)*100))
	shard.Resources[0].Waits = []dispatch.ReceiverSnapshot{{Number: 9, Tags: []uint64{7}}}
	shard.Resources[0].Handlers = []rocl.HandlerSnapshot{
		{Name: "Lookup", Running: 2, Oldest: 90 * time.Second, Ended: uint64(n) * 50, Errors: uint64(n) * 2, Took: []uint64{0, 0, 0, 0, 9: uint64(n) * 45, 20: uint64(n) * 5}},
	}
	stopped := contextOf(3, 4712, "stopped", mailbox(gid(3, 1), "name=stopped", 1, 0))
	if n > 0 {
		stopped = observe.Context{Snapshot: rocl.Snapshot{Context: gid(3, 0), PID: 4712}, Silent: "no answer"}
	}
	hostile := contextOf(4, -5, "<b>\x1b[2J", mailbox(gid(4, 1), "name=\u202etxt.exe\x00"+strings.Repeat("語", 1000), -3, 1<<63))
	v := &observe.View{Taken: taken, Contexts: []observe.Context{front, shard, stopped, hostile}, Nodes: []observe.Node{
		{ID: 0x0a0b0c, Name: "alpha rack=1", Addr: "10.0.0.1:7000"}, {ID: 0x0d0e0f, Name: "beta", Addr: "10.0.0.2:7000", Error: "no answer"},
	}}
	v.Clean()
	return v
}

// A script is a source that has n views, at once.
type script struct{ at, n int }

func (s *script) title() string { return "top" }
func (s *script) next(float64) (*observe.View, error) {
	if s.at >= s.n {
		return nil, io.EOF
	}
	s.at++
	return moment(s.at - 1), nil
}

func (s *script) match(v *observe.View, pattern *rocl.List) (map[rocl.GID]bool, error) {
	return (&replay{}).match(v, pattern)
}

// open returns a model of a screen that has seen views.
func open(t *testing.T, views, width, height int) *model {
	t.Helper()
	m := newModel(&script{n: views}, false, "")
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	for range views {
		try.OK(t, m.advance(0))
	}
	return m
}

// press presses keys, each a name such as "enter" or a text of several keys, and answers what the
// model asks, until the source has no more.
func press(m *model, keys ...string) (hasQuit bool) {
	for _, key := range keys {
		named := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "backspace": tea.KeyBackspace,
			"pgdown": tea.KeyPgDown, "end": tea.KeyEnd, "home": tea.KeyHome, "space": tea.KeySpace}
		var all []tea.KeyPressMsg
		if code, ok := named[key]; ok {
			all = append(all, tea.KeyPressMsg{Code: code})
		} else {
			for _, r := range key {
				all = append(all, tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
		for _, k := range all {
			_, cmd := m.Update(k)
			for cmd != nil {
				msg := cmd()
				if _, ok := msg.(tea.QuitMsg); ok {
					return true
				}
				if f, ok := msg.(frame); ok && errors.Is(f.err, io.EOF) {
					m.asking = false
					break
				}
				_, cmd = m.Update(msg)
			}
		}
	}
	return false
}

func screen(m *model) string { return m.View().Content }

// selected returns the row that is selected, which is in reverse video.
func selected(m *model) string {
	for _, l := range strings.Split(screen(m), "\n")[2:] { // after the tables' names
		if strings.HasPrefix(l, reverse) {
			return strings.TrimRight(ansi.Strip(l), " ")
		}
	}
	return ""
}

// The screens are as in testdata, without colours. Each line fits the width, also with hostile
// names, and has no character that controls a terminal.
//
// Promise (Observing): What a context tells is shown as text: it cannot move the cursor, change
// colours or reorder text.
func TestScreens(t *testing.T) {
	for _, width := range []int{60, 80, 120} {
		for _, c := range []struct {
			name string
			keys []string
		}{
			{"resources", nil}, {"links", []string{"2"}}, {"calls", []string{"3"}}, {"contexts", []string{"4"}}, {"nodes", []string{"5"}}, {"handlers", []string{"6"}},
			{"open", []string{"enter"}}, {"open link", []string{"2", "enter"}}, {"help", []string{"?"}}, {"filter", []string{"/n=2", "enter"}},
		} {
			m := open(t, 6, width, 22)
			press(m, c.keys...)
			got := ansi.Strip(screen(m)) + "\n"
			for l := range strings.Lines(got) {
				l = strings.TrimSuffix(l, "\n")
				if ansi.StringWidth(l) > width {
					t.Errorf("%s: %d columns of %d: %q", c.name, ansi.StringWidth(l), width, l)
				}
				for _, r := range l {
					if !display.IsSafe(r) {
						t.Errorf("%s: %q has %U", c.name, l, r)
					}
				}
			}
			path := filepath.Join("testdata", strings.ReplaceAll(fmt.Sprintf("%s %d.txt", c.name, width), " ", "-"))
			if *update {
				try.OK(t, os.WriteFile(path, []byte(got), 0o666))
			}
			if want := string(try.Get(os.ReadFile(path))(t)); got != want {
				t.Errorf("%s: the screen is\n%s\nwant\n%s", path, got, want)
			}
		}
	}
}

// A screen without colours tells silent contexts, slow rows and the selected one by signs and
// reverse video.
func TestMonochrome(t *testing.T) {
	m := open(t, 6, 100, 20)
	press(m, "down")
	lines := strings.Split(screen(m), "\n")
	marks := map[string]bool{}
	for _, l := range lines[3:] {
		if isRed, isYellow := strings.HasPrefix(l, red), strings.HasPrefix(l, yellow); isRed || isYellow {
			marks[string(ansi.Strip(l)[0])] = true
			if isRed != (ansi.Strip(l)[0] == '!') || isYellow != (ansi.Strip(l)[0] == '*') {
				t.Errorf("a colour without its mark: %q", l)
			}
		}
	}
	if !marks["!"] || !marks["*"] {
		t.Errorf("marks %v in\n%s", marks, screen(m))
	}
	if !strings.Contains(selected(m), "control") {
		t.Errorf("selected: %q", selected(m))
	}
}

// Keys sort, reverse and switch tables, and select rows.
func TestKeys(t *testing.T) {
	m := open(t, 6, 120, 20)
	if m.rows[0].cells[1].text != "300" {
		t.Errorf("most messages: %v", m.rows[0].cells)
	}
	press(m, "r")
	if m.rows[0].cells[1].text != "0" {
		t.Errorf("fewest messages: %v", m.rows[0].cells)
	}
	press(m, "rS") // by name
	if !slices.IsSortedFunc(m.rows, func(a, b row) int { return strings.Compare(a.cells[0].text, b.cells[0].text) }) {
		t.Errorf("not sorted by name: %v", m.rows)
	}
	for seen := map[int]bool{}; len(seen) < 10; press(m, "s") { // every column of this width, and no other
		if tables[0].columns[m.sorted[0]].from > 120 {
			t.Fatalf("sorted by the column %d, which is not shown", m.sorted[0])
		}
		seen[m.sorted[0]] = true
	}
	for i, want := range []string{"links", "calls", "contexts", "nodes", "handlers", "resources"} {
		press(m, "tab")
		if tables[m.table].name != want || !strings.Contains(screen(m), want+"]") {
			t.Errorf("tab %d: %s", i, tables[m.table].name)
		}
	}
	press(m, "end")
	try.Equal(t, m.at, len(m.rows)-1, "the last row")
	press(m, "down", "down")
	try.Equal(t, m.at, len(m.rows)-1, "still the last row")
	press(m, "home", "up", "k")
	try.Equal(t, m.at, 0, "the first row")
	if press(m, "?") || !strings.Contains(screen(m), "STANDING:") {
		t.Error("no help")
	}
	if press(m, "esc") || strings.Contains(screen(m), "STANDING:") {
		t.Error("help stays")
	}
	if !press(m, "q") {
		t.Error("q does not quit")
	}
}

// A followed row stays selected when the order changes. Without that the place stays.
func TestFollow(t *testing.T) {
	m := open(t, 6, 120, 20)
	press(m, "f")
	if !strings.Contains(selected(m), "name=shard") || !strings.Contains(screen(m), "[following]") {
		t.Fatalf("selected %q\n%s", selected(m), screen(m))
	}
	press(m, "r")
	if !strings.Contains(selected(m), "name=shard") || m.at == 0 {
		t.Errorf("not followed: %q", selected(m))
	}
	press(m, "f", "r")
	if strings.Contains(selected(m), "name=shard") {
		t.Errorf("still followed: %q", selected(m))
	}
}

// An opened row shows all that its context tells, changes with it, and says when it is gone.
func TestOpen(t *testing.T) {
	m := newModel(&script{n: 9}, false, "")
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 40})
	try.OK(t, m.advance(0))
	press(m, "p", "enter")
	for _, want := range []string{"name=shard n=2", "4711", "number 9, tags [7]", "name Lookup, running 2, oldest 1m30s", gid(2, 1).String()} {
		if !strings.Contains(screen(m), want) {
			t.Errorf("no %q in\n%s", want, screen(m))
		}
	}
	before := screen(m)
	press(m, "n", "n")
	if screen(m) == before || !strings.Contains(screen(m), "standing         2s") {
		t.Errorf("it has not changed:\n%s", screen(m))
	}
	v := moment(8)
	v.Contexts = v.Contexts[:1]
	m.show(&frame{view: v})
	if !strings.Contains(screen(m), "which is gone") {
		t.Errorf("not gone:\n%s", screen(m))
	}
	press(m, "esc")
	if strings.Contains(screen(m), "which is gone") {
		t.Errorf("still open:\n%s", screen(m))
	}
}

// A pattern is typed in the form of other commands. A wrong pattern stays to be corrected.
func TestFilter(t *testing.T) {
	m := open(t, 6, 120, 20)
	press(m, "/", "name", "enter")
	if !m.editing || !strings.Contains(screen(m), "an operator such as") {
		t.Errorf("a wrong pattern is taken:\n%s", screen(m))
	}
	press(m, "=shard|xx", "backspace", "backspace", "control", "enter")
	try.Equal(t, m.filter, "name=shard|control", "filter")
	try.Equal(t, len(m.rows), 2, "resources")
	press(m, "3")
	try.Equal(t, len(m.rows), 1, "calls")
	press(m, "4")
	try.Equal(t, len(m.rows), 1, "contexts")
	press(m, "1", "/", "esc")
	try.Equal(t, m.filter, "name=shard|control", "filter after esc")
	m.Update(tea.KeyPressMsg{Code: '/', Text: "/"})
	m.Update(tea.KeyPressMsg{Code: 'u', Mod: tea.ModCtrl})
	m.Update(tea.PasteMsg{Content: "no=such\x1b[2J"})
	if strings.Contains(screen(m), "\x1b[2J") {
		t.Error("a paste controls the terminal")
	}
	press(m, "esc", "/")
	m.Update(tea.KeyPressMsg{Code: 'u', Mod: tea.ModCtrl})
	press(m, "enter")
	try.Equal(t, len(m.rows), 5, "resources without a pattern")
}

// During a pause nothing changes, except by steps. What came meanwhile is not lost.
func TestPause(t *testing.T) {
	s := &script{n: 6}
	m := newModel(s, true, "")
	_, cmd := m.Update(m.Init()())
	press(m, "p")
	at := m.view.Taken
	if _, next := m.Update(cmd()); next != nil || m.view.Taken != at || !strings.Contains(screen(m), "[paused]") {
		t.Fatalf("it goes on: %v\n%s", m.view.Taken, screen(m))
	}
	for i := range 3 {
		press(m, "n")
		try.Equal(t, m.view.Taken, at.Add(time.Duration(i+1)*time.Second), "step %d", i)
	}
	press(m, "+", "+", "-")
	try.Equal(t, m.speed, 2, "speed")
	press(m, "p")
	try.Equal(t, m.view.Taken, at.Add(5*time.Second), "the last view")
	m.Update(frame{err: io.EOF})
	if !m.ended || !strings.Contains(screen(m), "[end]") || m.ask(1) != nil {
		t.Errorf("no end:\n%s", screen(m))
	}
}

// An error of the directory is shown, and goes when the directory answers again.
func TestError(t *testing.T) {
	m := open(t, 3, 80, 20)
	if _, cmd := m.Update(frame{err: fmt.Errorf("rocl: gone\x1b[2J: %w", context.DeadlineExceeded)}); cmd == nil {
		t.Error("it asks no more")
	}
	if s := screen(m); !strings.Contains(s, "! gone") || strings.Contains(s, "\x1b[2J") || !strings.Contains(s, "name=shard") {
		t.Errorf("screen:\n%s", s)
	}
	m.asking = false
	m.Update(frame{view: moment(4)})
	if strings.Contains(screen(m), "! gone") {
		t.Errorf("the error stays:\n%s", screen(m))
	}
}

// A screen of any size shows something, and not more than it has room for.
func TestSizes(t *testing.T) {
	m := open(t, 4, 80, 24)
	for width := 1; width < 200; width += 37 {
		for height := 1; height < 40; height += 6 {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			for _, key := range []string{"tab", "enter", "end", "s", "?", "pgdown", "?", "esc"} {
				press(m, key)
				lines := strings.Split(screen(m), "\n")
				if len(lines) > height || slices.ContainsFunc(lines, func(l string) bool { return ansi.StringWidth(l) > width }) {
					t.Fatalf("%d×%d after %s:\n%s", width, height, key, screen(m))
				}
			}
		}
	}
}

// A view of 1,000 contexts with ten resources each is on the screen in much less than an interval.
func BenchmarkThousand(b *testing.B) {
	v := moment(0)
	c := v.Contexts[1]
	v.Contexts = nil
	for i := range 1000 {
		c.Context, c.Resources = gid(uint64(i+1), 0), nil
		for j := range 10 {
			c.Resources = append(c.Resources, mailbox(gid(uint64(i+1), uint32(j+1)), fmt.Sprint("name=r n=", j), i, uint64(i)))
		}
		v.Contexts = append(v.Contexts, c)
	}
	m := newModel(&script{}, false, "")
	for i := 0; b.Loop(); i++ {
		next := *v
		next.Taken = start.Add(time.Duration(i) * time.Second)
		m.show(&frame{view: &next})
		m.asking = false
		_ = m.View()
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 999: "999", 1000: "1.0K", 1536: "1.5K", 1 << 20: "1.0M", 1 << 56: "64.0P"} {
		try.Equal(t, size(n).text, want, "size")
	}
	for d, want := range map[time.Duration]string{
		0: "", -1: "", 1: "<1s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3700 * time.Second: "1h01m", 1000 * time.Hour: "41d", 1 << 62: "53375d",
	} {
		try.Equal(t, age(d).text, want, "age")
	}
}
