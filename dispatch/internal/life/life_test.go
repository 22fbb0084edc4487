// SPDX-License-Identifier: Apache-2.0

package life

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

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"pgregory.net/rapid"
)

var (
	columns     = regexp.MustCompile(`\s{2,}`)
	actionNames = []string{"startDial", "startMove", "cancelMove", "cancelSoon", "setTimer", "stopTimer", "clean"}
	errGone     = errors.New("gone")
	errClosed   = errors.New("closed")
	endings     = map[string]error{"gone": errGone, "unreachable": ErrUnreachable, "closed": errClosed}
)

// describe says what an action asks for, in the words of the stories.
func describe(f *Machine, do Action) string {
	var words []string
	for i, name := range actionNames {
		if do&(1<<i) != 0 {
			words = append(words, name)
		}
	}
	if do&SetTimer != 0 {
		words = append(words, f.wait.String())
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// teller performs the events of a story.
type teller struct {
	f    Machine
	mine wire.Attach
	n    uint32 // the session's numbers
}

// tell performs an event and returns what came of it, in the words of the stories.
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
	var do Action
	switch words[0] {
	case "wanted":
		do = f.RequestConn()
	case "bound":
		if a.Session == 0 {
			a.Session, a.Gen = 7, f.gen+1
		}
		do = f.Bound(a.Session, a.Gen)
	case "lost":
		do = f.Lost()
	case "dialled":
		do = f.Dialled(!has["unimproved"], s.n, 0)
	case "moved":
		do = f.Moved(!has["unimproved"], s.n, 0)
		for w := range has {
			if times, ok := strings.CutPrefix(w, "×"); ok {
				n, _ := strconv.Atoi(times)
				for range n - 1 {
					s.n++
					f.Timeout(s.n, 0)
					do = f.Moved(!has["unimproved"], s.n, 0)
				}
			}
		}
	case "timeout":
		if has["still"] {
			s.n--
		}
		do = f.Timeout(s.n, 0)
	case "traffic":
		do = f.Traffic(s.n, 0)
	case "improve":
		do = f.Improve()
	case "leaves":
		f.SetCause(errClosed)
	case "ends":
		do = f.End(endings[words[1]])
	case "givenUp":
		do = f.GivenUp(ErrUnreachable, wire.Past{Session: values["past"], Have: uint32(values["have"])})
	case "heir":
		has, have, isKnown := f.HasHeir()
		switch {
		case !has:
			return "none", nil
		case !isKnown:
			return "of what was never written", nil
		}
		return fmt.Sprintf("from=%d", have), nil
	case "cause":
		if !errors.Is(f.cause, endings[words[1]]) {
			return fmt.Sprint(f.cause), nil
		}
	case "cleaned":
		if !f.Cleaned() {
			return f.state.String() + "  nothing left", nil
		}
	case "propose":
		s.mine.Gen = f.Propose()
		return fmt.Sprintf("gen=%d", s.mine.Gen), nil
	case "attach":
		v := f.Admits(&a, has["first"], has["worse"])
		out := "admitted"
		if v.Why != 0 {
			out = fmt.Sprintf("refused %s gen=%d", [...]string{"", "stale", "busy", "unknown", "worse"}[v.Why], v.Gen)
		}
		if v.Fatal != nil {
			out = strings.TrimPrefix(out+" ends", "admitted ")
		}
		if v.IsForSuccessor {
			out += " again"
		}
		if v.IsGivenUp {
			out += " givenUp"
		}
		return out, nil
	case "refused":
		if f.Refused(map[string]wire.Refusal{"stale": wire.RefusedStale, "busy": wire.RefusedBusy, "unknown": wire.RefusedUnknown, "worse": wire.RefusedWorse}[words[1]], a.Gen) != nil {
			return "ends", nil
		}
		return "", nil
	case "confirm":
		switch err := f.Confirms(&s.mine, &a); {
		case err == nil:
			return "admitted", nil
		case errors.Is(err, wire.ErrRefused):
			return "refused", nil
		case errors.Is(err, wire.ErrProtocol):
			return "violation", nil
		}
		return "", errors.New("another error")
	default:
		return "", fmt.Errorf("no event %q", words[0])
	}
	return strings.TrimSpace(f.state.String() + "  " + describe(f, do)), nil
}

// The stories say what a link does in each state.
func TestLifeStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
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
				s = &teller{f: Machine{id: 1}}
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
			if event == "cleaned" && len(words) > 0 { // no action
				words = []string{actions}
			}
			want = strings.TrimSpace(state + "  " + strings.Join(words, " "))
			if hasResult := want != ""; hasResult && got != want {
				t.Errorf("%s:%d: after %q: %s, not %s", file, i+1, event, got, want)
			}
		}
	}
}

// With any order of events there is at most one searcher, and a link that has lost its connection
// looks for another one. The timer runs in one state only, and the end is final.
func TestLifeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Machine{id: 1}
		var hasConn, hasTimer, wasWanted, wasCleaned, isEnding bool
		searcher := Action(0) // startDial or startMove
		isCancelled := false
		n, timed := uint32(0), uint32(0)
		act := func(do Action) {
			if do&(CancelMove|CancelSoon) != 0 {
				if searcher != StartMove {
					t.Fatal("cancels a searcher that is not there")
				}
				isCancelled = true
			}
			if do&StopTimer != 0 {
				hasTimer = false
			}
			if do&SetTimer != 0 {
				hasTimer, timed = true, n
				if f.wait < RetryFirst || f.wait > RetryMost {
					t.Fatalf("waits %v", f.wait)
				}
			}
			if start := do & (StartDial | StartMove); start != 0 {
				if searcher != 0 {
					t.Fatal("starts a second searcher")
				}
				searcher, isCancelled = start, false
			}
			if do&Clean != 0 {
				if isEnding {
					t.Fatal("ends twice")
				}
				isEnding = true
			}
		}
		better := func() bool { return rapid.Bool().Draw(t, "better") }
		t.Repeat(map[string]func(*rapid.T){
			"wanted": func(t *rapid.T) { wasWanted = wasWanted || !isEnding; act(f.RequestConn()) },
			"bound": func(t *rapid.T) {
				if isEnding {
					t.Skip()
				}
				act(f.Bound(7, f.gen+1))
				hasConn = true
			},
			"lost": func(t *rapid.T) {
				if !hasConn {
					t.Skip()
				}
				hasConn = false
				wasWanted = true
				act(f.Lost())
			},
			"dialled": func(t *rapid.T) {
				if searcher != StartDial || !hasConn && !isEnding {
					t.Skip()
				}
				searcher = 0
				act(f.Dialled(!better(), n, 0))
			},
			"moved": func(t *rapid.T) {
				if searcher != StartMove {
					t.Skip()
				}
				searcher = 0
				act(f.Moved(!better(), n, 0))
			},
			"travels": func(t *rapid.T) {
				n++
				wasIdle := f.state == Idle
				if act(f.Traffic(n, 0)); wasIdle {
					timed = n - 1 // the frame that stirs the link counts as having travelled since
				}
			},
			"timeout": func(t *rapid.T) {
				if !hasTimer { // a timer that was stopped too late may still fire at any time
					act(f.Timeout(n+1, 0))
					return
				}
				hasTimer = false
				act(f.Timeout(n, 0))
				if !isEnding && n == timed && f.state != Idle {
					t.Fatalf("%v, though nothing travelled", f.state)
				}
			},
			"improve": func(t *rapid.T) { act(f.Improve()) },
			"propose": func(t *rapid.T) { f.Propose() },
			"leaves":  func(t *rapid.T) { f.SetCause(errClosed) },
			"ends":    func(t *rapid.T) { act(f.End(errGone)) },
			"cleaned": func(t *rapid.T) {
				if !isEnding {
					t.Skip()
				}
				if f.Cleaned() == wasCleaned {
					t.Fatal("cleaned twice, or never")
				}
				wasCleaned = true
			},
			"": func(t *rapid.T) {
				if isEnding {
					if !f.HasEnded() || hasTimer || f.cause == nil || searcher == StartMove && !isCancelled {
						t.Fatalf("%v after the end, timer %v", f.state, hasTimer)
					}
					return
				}
				if f.hasConn() != hasConn {
					t.Fatalf("%v, and there is a connection: %v", f.state, hasConn)
				}
				if hasTimer != (f.state == Waiting) {
					t.Fatalf("%v, and the timer runs: %v", f.state, hasTimer)
				}
				if wasWanted && !hasConn && searcher == 0 {
					t.Fatalf("%v: no searcher looks for a connection", f.state)
				}
				isSearching := f.state == Dialling || f.state == Found || f.state == Moving || f.state == Broken
				if isSearching != (searcher != 0) {
					t.Fatalf("%v, and the searcher is %d", f.state, searcher)
				}
				if (searcher == StartMove) != (f.state == Moving || f.state == Broken) {
					t.Fatalf("%v, and the searcher is %d", f.state, searcher)
				}
			},
		})
	})
}

// The pauses before a better route is tried again grow from RetryFirst to RetryMost.
func TestLifeWaits(t *testing.T) {
	f := Machine{id: 1}
	f.Bound(7, 1)
	f.Improve()
	last := time.Duration(0)
	for i := range uint32(40) {
		f.Moved(false, i, 0)
		if f.wait < last || f.wait > RetryMost {
			t.Fatalf("waits %v after %v", f.wait, last)
		}
		last = f.wait
		f.Timeout(i+1, 0)
	}
	if last != RetryMost {
		t.Errorf("at last %v", last)
	}
}
