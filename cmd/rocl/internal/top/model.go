// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
)

// A source has the views that a model shows. Its methods are not called concurrently.
type source interface {
	// next returns the next view when it is due. speed is how many times faster than it was
	// recorded a recording is shown; 0: at once. The error at the end of a recording is io.EOF.
	next(speed float64) (*observe.View, error)
	// match returns which contexts and resources of v a pattern matches.
	match(v *observe.View, pattern *rocl.List) (map[rocl.GID]bool, error)
	// title says what the screen is of.
	title() string
}

// A frame is what a source has told. A frame without a view is about the view before.
type frame struct {
	view    *observe.View
	pattern string // by which matches was found
	matches map[rocl.GID]bool
	err     error
}

// A model is the state of the screen. It changes by Update only, and reads no clock.
type model struct {
	src      source
	isReplay bool
	o        *observe.Observer
	view     *observe.View
	seen     *seen
	rows     []row // of the table that is shown, in order
	err      error // the last one

	table         int
	sorted        []int // of each table, the column
	reversed      []bool
	at, top       int    // the row that is selected, and the first one on the screen
	followed      string // the row that stays selected, by id
	opened        *row   // the row that fills the screen
	scroll        int    // lines of opened above the screen
	all           bool   // contexts without resources are shown too
	help, editing bool
	filter, input string // the pattern, and the one that is being typed
	matches       map[rocl.GID]bool

	speed    float64
	asking   bool   // the source has been asked, and has not answered
	paused   bool   // the screen stays as it is
	stepping bool   // except for the next frame
	held     *frame // came during the pause
	ended    bool   // the recording

	width, height int
}

func newModel(src source, isReplay bool, filter string) *model {
	m := &model{src: src, isReplay: isReplay, o: new(observe.Observer), filter: filter, speed: 1, width: 80, height: 24, reversed: make([]bool, len(tables))}
	for i := range tables {
		m.sorted = append(m.sorted, tables[i].sorted)
	}
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask(0) }

// ask asks for the next frame, if the source is not being asked.
func (m *model) ask(speed float64) tea.Cmd {
	if m.asking || m.ended {
		return nil
	}
	m.asking = true
	src, filter := m.src, m.filter
	return func() tea.Msg {
		f := frame{pattern: filter}
		if f.view, f.err = src.next(speed); f.err == nil {
			f.matches, f.err = find(src, f.view, filter)
		}
		return f
	}
}

// find returns what matches a pattern; without a pattern nil.
func find(src source, v *observe.View, filter string) (map[rocl.GID]bool, error) {
	if filter == "" || v == nil {
		return nil, nil
	}
	pattern, err := rocl.Parse(filter)
	if err != nil {
		return nil, err
	}
	return src.match(v, pattern)
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 1), max(msg.Height, 1)
		m.arrange()
	case frame:
		m.asking = false
		if m.paused && !m.stepping && msg.view != nil {
			m.held = &msg
			return m, nil
		}
		return m, m.show(&msg)
	case tea.PasteMsg:
		if m.editing {
			m.input += msg.Content
		}
	case tea.KeyPressMsg:
		if m.editing {
			return m, m.edit(msg)
		}
		return m, m.press(msg.String())
	}
	return m, nil
}

// show shows a frame, and asks for the next one.
func (m *model) show(f *frame) tea.Cmd {
	m.held, m.stepping = nil, false
	if m.err = f.err; m.isReplay && f.err != nil && f.view == nil {
		m.ended = true
		return nil
	}
	if f.view != nil {
		m.o.Add(f.view)
		m.view = f.view
		m.seen = look(m.o, f.view, m.all)
	}
	if f.pattern == m.filter && f.err == nil {
		m.matches = f.matches
	}
	m.arrange()
	if m.paused {
		return nil
	}
	return m.ask(m.speed)
}

// arrange makes the rows of the table, and puts the selected one on the screen.
func (m *model) arrange() {
	if m.seen == nil {
		return
	}
	t := &tables[m.table]
	all := t.rows(m.seen)
	if m.opened != nil {
		if i := slices.IndexFunc(all, func(r row) bool { return r.id == m.opened.id }); i >= 0 {
			r := all[i]
			m.opened = &r
		}
	}
	m.rows = only(all, m.matches)
	sortRows(m.rows, t.columns[m.sorted[m.table]], m.sorted[m.table], m.reversed[m.table])
	if i := slices.IndexFunc(m.rows, func(r row) bool { return r.id == m.followed }); i >= 0 {
		m.at = i
	}
	m.at = max(min(m.at, len(m.rows)-1), 0)
	m.top = max(min(m.top, m.at), m.at-m.space()+1)
}

// space returns how many rows the screen has room for.
func (m *model) space() int { return max(m.height-4, 1) }

// edit changes the pattern that is being typed.
func (m *model) edit(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc", "ctrl+c":
		m.editing = false
	case "backspace":
		r := []rune(m.input)
		m.input = string(r[:max(len(r)-1, 0)])
	case "ctrl+u":
		m.input = ""
	case "enter":
		if _, err := rocl.Parse(m.input); err != nil {
			m.err = err
			return nil
		}
		m.editing, m.filter, m.matches, m.err = false, strings.TrimSpace(m.input), nil, nil
		m.arrange()
		if m.asking || m.view == nil {
			return nil // what comes next is of the pattern before; the one after that is of this
		}
		return m.match()
	default:
		m.input += k.Text
	}
	return nil
}

// match asks which rows of the view the pattern matches.
func (m *model) match() tea.Cmd {
	m.asking = true
	src, v, filter := m.src, m.view, m.filter
	return func() tea.Msg {
		matches, err := find(src, v, filter)
		return frame{pattern: filter, matches: matches, err: err}
	}
}

// press handles a key.
func (m *model) press(key string) tea.Cmd {
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "?", "h":
		m.help = !m.help
	case "esc":
		m.help, m.opened, m.followed = false, nil, ""
	case "tab", "shift+tab", "1", "2", "3", "4", "5", "6":
		n := int(key[0] - '1')
		switch key {
		case "tab":
			n = (m.table + 1) % len(tables)
		case "shift+tab":
			n = (m.table + len(tables) - 1) % len(tables)
		}
		m.table, m.at, m.top, m.opened, m.followed = n, 0, 0, nil, ""
	case "s", ">", "right":
		m.sortBy(1)
	case "S", "<", "left":
		m.sortBy(-1)
	case "r":
		m.reversed[m.table] = !m.reversed[m.table]
	case "/":
		m.editing, m.input = true, m.filter
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-m.space())
	case "pgdown":
		m.move(m.space())
	case "home", "g":
		m.move(-len(m.rows))
	case "end", "G":
		m.move(len(m.rows))
	case "enter":
		if m.opened == nil && len(m.rows) > 0 {
			r := m.rows[m.at]
			m.opened, m.scroll = &r, 0
		} else {
			m.opened = nil
		}
	case "f":
		if m.followed != "" {
			m.followed = ""
		} else if len(m.rows) > 0 {
			m.followed = m.rows[m.at].id
		}
	case "space", "p":
		if m.paused = !m.paused; !m.paused {
			return m.proceed(m.speed)
		}
	case "a":
		if m.all = !m.all; m.view != nil {
			m.seen = look(m.o, m.view, m.all)
		}
	case "n":
		m.paused, m.stepping = true, true
		return m.proceed(0)
	case "+", "-":
		if m.isReplay {
			m.speed = max(min(m.speed*map[string]float64{"+": 2, "-": 0.5}[key], 64), 1.0/8)
		}
	}
	m.arrange()
	return nil
}

// proceed shows the frame that came during the pause, or asks for one.
func (m *model) proceed(speed float64) tea.Cmd {
	if m.held != nil {
		return m.show(m.held)
	}
	return m.ask(speed)
}

// sortBy moves the column by which the rows are sorted to the next one, or the one before, that is
// on the screen.
func (m *model) sortBy(step int) {
	columns := tables[m.table].columns
	for i := m.sorted[m.table]; ; {
		if i = (i + step + len(columns)) % len(columns); columns[i].from <= m.width {
			m.sorted[m.table], m.reversed[m.table] = i, false
			return
		}
	}
}

// move moves the selected row, or the text of the opened one.
func (m *model) move(n int) {
	if m.opened != nil {
		m.scroll = max(min(m.scroll+n, len(details(m.opened.value))-m.space()), 0)
		return
	}
	m.at = max(min(m.at+n, len(m.rows)-1), 0)
	if m.followed != "" && len(m.rows) > 0 {
		m.followed = m.rows[m.at].id
	}
}

// The styles of the screen. Each can be told from the others without colours.
const (
	bold    = "\x1b[1m"
	reverse = "\x1b[7m"
	red     = "\x1b[31m"
	yellow  = "\x1b[33m"
	plain   = "\x1b[m"
)

// View implements tea.Model.
func (m *model) View() tea.View {
	lines := m.lines()
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, m.width, "…")
	}
	v := tea.NewView(strings.Join(lines[:min(len(lines), m.height)], "\n"))
	v.AltScreen, v.WindowTitle = true, "rocl "+m.src.title()
	return v
}

func (m *model) lines() []string {
	lines := []string{m.head(), m.tabs()}
	if m.height < 6 {
		lines = nil
	}
	switch t := &tables[m.table]; {
	case m.help:
		lines = append(lines, strings.Split(help, "\n")...)
	case m.view == nil:
		lines = append(lines, "asking…")
	case m.opened != nil:
		title := bold + "  " + t.kind + plain
		if !slices.ContainsFunc(t.rows(m.seen), func(r row) bool { return r.id == m.opened.id }) {
			title += ", which is gone"
		}
		all := details(m.opened.value)
		lines = append(append(lines, title), all[min(m.scroll, len(all)):]...)
	default:
		head, all := t.lines(m.rows[m.top:min(len(m.rows), m.top+m.space())], m.width, m.sorted[m.table], m.reversed[m.table])
		lines = append(lines, bold+head+plain)
		for i, l := range all {
			switch r := m.rows[m.top+i]; {
			case m.top+i == m.at:
				l = reverse + l + strings.Repeat(" ", max(0, m.width-ansi.StringWidth(l))) + plain
			case r.mark == "!":
				l = red + l + plain
			case r.mark == "*":
				l = yellow + l + plain
			}
			lines = append(lines, l)
		}
		if len(m.rows) == 0 {
			lines = append(lines, "  no "+t.name)
		}
	}
	lines = lines[:min(len(lines), m.height-1)]
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return append(lines, m.foot())
}

// head returns the first line: what the screen is of, and what is in it.
func (m *model) head() string {
	s := bold + m.src.title() + plain
	if m.view == nil {
		return s
	}
	messages, silent := 0, 0
	for i := range m.seen.contexts {
		messages += m.seen.contexts[i].Messages
		if m.seen.contexts[i].Silent > 0 {
			silent++
		}
	}
	s += " " + m.view.Taken.Local().Format(time.TimeOnly)
	if silent > 0 {
		s += fmt.Sprintf(" %s!%d silent%s", red, silent, plain)
	}
	for _, state := range []struct {
		isShown bool
		text    string
	}{
		{m.paused, "paused"}, {m.ended, "end"}, {m.isReplay && m.speed != 1, fmt.Sprintf("speed %g", m.speed)},
		{m.followed != "", "following"}, {m.all, "all"}, {m.filter != "", "filter " + display.Quote(m.filter)},
	} {
		if state.isShown {
			s += " [" + state.text + "]"
		}
	}
	return s + fmt.Sprintf("  %d contexts, %d resources, %d messages wait", len(m.seen.contexts), len(m.seen.resources), messages)
}

func (m *model) tabs() (s string) {
	for i := range tables {
		name := fmt.Sprintf(" %d %s ", i+1, tables[i].name)
		if i == m.table {
			name = reverse + fmt.Sprintf("[%d %s]", i+1, tables[i].name) + plain
		}
		s += name
	}
	return s
}

func (m *model) foot() string {
	switch {
	case m.editing:
		s := "filter: " + display.Escape(m.input) + "_"
		if m.err != nil {
			s += "  " + red + usage.Text(m.err) + plain
		}
		return s
	case m.err != nil && !errors.Is(m.err, io.EOF):
		return red + "! " + usage.Text(m.err) + plain
	case m.isReplay:
		return "q quit  ? help  space pause  n step  +/- speed  tab s / enter f as in top"
	}
	return "q quit  ? help  tab table  s sort  / filter  enter open  f follow  space pause"
}

const help = `
  tab, 1 to 6       the next table; the one with the number
  s, S, r           sort by the next column, by the one before; reverse
  /                 show what matches a pattern: name=value name<3 name=one|two
  up, down, pages   select a row
  enter             open the row; esc closes it
  f                 follow the row: it stays selected wherever it goes
  a                 show contexts without resources too
  space, n          pause; one step
  + -               replay twice, or half, as fast
  q                 quit

  ! a context is silent, or a node could not be asked
  * messages, or a call, have waited for 3 s or longer
  STANDING: how long messages have waited while none was received
  Bytes are in units of 1024. Silent contexts show what they told last.`
