// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
)

var (
	columns     = regexp.MustCompile(`\s{2,}`)
	actionNames = []string{"startDial", "startMove", "cancelMove", "setTimer", "stopTimer", "bury"}
	endings     = map[string]error{"gone": ErrGone, "unreachable": ErrUnreachable, "closed": ErrClosed}
)

// told is what an action asks for, as the stories write it.
func told(f *life, do action) string {
	var words []string
	for i, name := range actionNames {
		if do&(1<<i) != 0 {
			words = append(words, name)
		}
	}
	if do&setTimer != 0 {
		words = append(words, f.wait.String())
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// teller performs the events of a story.
type teller struct {
	f    life
	mine wire.Attach
	n    uint32 // the session's numbers
}

// tell performs an event and returns what came of it, as stories write it.
func (s *teller) tell(event string) (string, error) {
	words := strings.Fields(event)
	values := map[string]uint64{}
	has := map[string]bool{}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		n, _ := strconv.ParseUint(value, 10, 64)
		values[name], has[name] = n, true
	}
	a := wire.Attach{Session: values["session"], Known: values["known"], Gen: values["gen"], IsMove: has["move"]}
	s.n++
	f := &s.f
	var do action
	switch words[0] {
	case "wanted":
		do = f.wanted()
	case "bound":
		if a.Session == 0 {
			a.Session, a.Gen = 7, f.gen+1
		}
		do = f.bound(a.Session, a.Gen)
	case "lost":
		do = f.lost()
	case "dialled":
		do = f.dialled(!has["unimproved"], s.n, 0)
	case "moved":
		do = f.moved(!has["unimproved"], s.n, 0)
		for w := range has {
			if times, ok := strings.CutPrefix(w, "×"); ok {
				n, _ := strconv.Atoi(times)
				for range n - 1 {
					s.n++
					f.timeout(s.n, 0)
					do = f.moved(!has["unimproved"], s.n, 0)
				}
			}
		}
	case "timeout":
		if has["still"] {
			s.n--
		}
		do = f.timeout(s.n, 0)
	case "stirred":
		do = f.stirred(s.n, 0)
	case "improve":
		do = f.improve()
	case "theirs":
		f.isTheirs = true
	case "leaves":
		f.leaves(ErrClosed)
	case "ends":
		do = f.ends(endings[words[1]])
	case "cause":
		if !errors.Is(f.cause, endings[words[1]]) {
			return fmt.Sprint(f.cause), nil
		}
	case "buried":
		if !f.buried() {
			return f.state.String() + "  nothing left", nil
		}
	case "propose":
		s.mine.Gen = f.propose()
		return fmt.Sprintf("gen=%d", s.mine.Gen), nil
	case "attach":
		v := f.admits(&a, has["first"], has["idle"], has["worse"])
		out := "admitted"
		if v.why != 0 {
			out = fmt.Sprintf("refused %s gen=%d", [...]string{"", "stale", "busy", "unknown", "worse"}[v.why], v.gen)
		}
		if v.fatal != nil {
			out = strings.TrimPrefix(out+" ends", "admitted ")
		}
		if v.again {
			out += " again"
		}
		return out, nil
	case "refused":
		if f.refused(map[string]wire.Refusal{"stale": wire.RefusedStale, "busy": wire.RefusedBusy, "unknown": wire.RefusedUnknown, "worse": wire.RefusedWorse}[words[1]], a.Gen) != nil {
			return "ends", nil
		}
		return "", nil
	case "confirm":
		switch err := f.confirms(&s.mine, &a); {
		case err == nil:
			return "admitted", nil
		case errors.Is(err, ErrRefused):
			return "refused", nil
		case errors.Is(err, ErrProtocol):
			return "violation", nil
		}
		return "", errors.New("another error")
	default:
		return "", fmt.Errorf("no event %q", words[0])
	}
	return strings.TrimSpace(f.state.String() + "  " + told(f, do)), nil
}

// What a link does in each state, told in stories.
func TestLifeStories(t *testing.T) {
	files, err := filepath.Glob("testdata/life/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s *teller
		for i, line := range strings.Split(string(text), "\n") {
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			if strings.HasPrefix(line, "story:") {
				s = &teller{f: life{id: 1}}
				continue
			}
			event, want, _ := strings.Cut(columns.ReplaceAllString(line, "\t"), "\t")
			got, err := s.tell(event)
			if err != nil {
				t.Fatalf("%s:%d: %v", file, i+1, err)
			}
			state, actions, _ := strings.Cut(want, "\t")
			words := strings.Fields(actions)
			slices.Sort(words)
			if event == "buried" && len(words) > 0 { // no action
				words = []string{actions}
			}
			want = strings.TrimSpace(state + "  " + strings.Join(words, " "))
			if hasResult := want != ""; hasResult && got != want {
				t.Errorf("%s:%d: after %q: %s, not %s", file, i+1, event, got, want)
			}
		}
	}
}

// Under any order of events there is one searcher at most, a link that has lost its
// connection looks for another, the timer runs in one state only, and the end is final.
func TestLifeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := life{id: 1, isTheirs: rapid.IntRange(0, 3).Draw(t, "theirs") == 0}
		var hasConn, hasTimer, wasWanted, wasBuried, isEnding bool
		searcher := action(0) // startDial or startMove
		isCancelled := false
		n, timed := uint32(0), uint32(0)
		act := func(do action) {
			if do&cancelMove != 0 {
				if searcher != startMove {
					t.Fatal("cancels a searcher that is not there")
				}
				isCancelled = true
			}
			if do&stopTimer != 0 {
				hasTimer = false
			}
			if do&setTimer != 0 {
				hasTimer, timed = true, n
				if f.wait < retryFirst || f.wait > retryMost {
					t.Fatalf("waits %v", f.wait)
				}
			}
			if start := do & (startDial | startMove); start != 0 {
				if searcher != 0 {
					t.Fatal("starts a second searcher")
				}
				searcher, isCancelled = start, false
			}
			if do&bury != 0 {
				if isEnding {
					t.Fatal("ends twice")
				}
				isEnding = true
			}
		}
		better := func() bool { return rapid.Bool().Draw(t, "better") }
		t.Repeat(map[string]func(*rapid.T){
			"wanted": func(t *rapid.T) { wasWanted = wasWanted || !isEnding; act(f.wanted()) },
			"bound": func(t *rapid.T) {
				if isEnding {
					t.Skip()
				}
				act(f.bound(7, f.gen+1))
				hasConn = true
			},
			"lost": func(t *rapid.T) {
				if !hasConn {
					t.Skip()
				}
				hasConn = false
				wasWanted = true
				act(f.lost())
			},
			"dialled": func(t *rapid.T) {
				if searcher != startDial || !hasConn && !isEnding {
					t.Skip()
				}
				searcher = 0
				act(f.dialled(!better(), n, 0))
			},
			"moved": func(t *rapid.T) {
				if searcher != startMove {
					t.Skip()
				}
				searcher = 0
				act(f.moved(!better(), n, 0))
			},
			"travels": func(t *rapid.T) { n++; act(f.stirred(n, 0)) },
			"timeout": func(t *rapid.T) {
				if !hasTimer { // but one that was stopped too late may come at any time
					act(f.timeout(n+1, 0))
					return
				}
				hasTimer = false
				act(f.timeout(n, 0))
				if !isEnding && n == timed && f.state != resting {
					t.Fatalf("%v, though nothing travelled", f.state)
				}
			},
			"improve": func(t *rapid.T) { act(f.improve()) },
			"leaves":  func(t *rapid.T) { f.leaves(ErrClosed) },
			"ends":    func(t *rapid.T) { act(f.ends(ErrGone)) },
			"buried": func(t *rapid.T) {
				if !isEnding {
					t.Skip()
				}
				if f.buried() == wasBuried {
					t.Fatal("buried twice, or never")
				}
				wasBuried = true
			},
			"": func(t *rapid.T) {
				if isEnding {
					if !f.hasEnded() || hasTimer || f.cause == nil || searcher == startMove && !isCancelled && f.state < dying {
						t.Fatalf("%v after the end, timer %v", f.state, hasTimer)
					}
					return
				}
				if f.hasConn() != hasConn {
					t.Fatalf("%v, and there is a connection: %v", f.state, hasConn)
				}
				if hasTimer != (f.state == waiting) {
					t.Fatalf("%v, and the timer runs: %v", f.state, hasTimer)
				}
				if wasWanted && !hasConn && searcher == 0 {
					t.Fatalf("%v: no searcher looks for a connection", f.state)
				}
				isSearching := f.state == dialling || f.state == found || f.state == moving || f.state == broken
				if isSearching != (searcher != 0) {
					t.Fatalf("%v, and the searcher is %d", f.state, searcher)
				}
				if (searcher == startMove) != (f.state == moving || f.state == broken) {
					t.Fatalf("%v, and the searcher is %d", f.state, searcher)
				}
			},
		})
	})
}

// The waits before a better route is tried again grow from the least to the most.
func TestLifeWaits(t *testing.T) {
	f := life{id: 1}
	f.bound(7, 1)
	f.improve()
	last := time.Duration(0)
	for i := range uint32(40) {
		f.moved(false, i, 0)
		if f.wait < last || f.wait > retryMost {
			t.Fatalf("waits %v after %v", f.wait, last)
		}
		last = f.wait
		f.timeout(i+1, 0)
	}
	if last != retryMost {
		t.Errorf("at last %v", last)
	}
}
