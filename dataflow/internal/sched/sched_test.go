// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/dataflow/internal/plan"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"pgregory.net/rapid"
)

// A story is a sequence of steps. "2" sends an item and expects it on channel 2, "wait" and
// "closed" expect the other answers. "take0" and "close0" are what the consumer of channel 0 does,
// and "open0" says that a batch for channel 0 has begun, "left" that it has left.
var stories = []struct {
	name   string
	choice plan.Choice
	local  string // a letter for each channel: l is local, r is remote
	window uint64
	story  string
}{
	{"one channel", plan.Balanced, "l", 2, "0 0 wait take0 0 wait close0 closed"},
	{"the fewest items under way", plan.Balanced, "lll", 9, "0 1 2 take1 1 2 0 1 take0 take0 0 0"},
	{"a consumer that has ended gets nothing", plan.Balanced, "lll", 9, "0 close1 2 0 2 close0 2 close2 closed"},
	{"on demand waits for a consumer", plan.OnDemand, "lll", 1, "0 1 2 wait take2 2 wait take0 take1 0 1"},
	{"in turn waits for the next", plan.RoundRobin, "lll", 1, "0 1 2 wait take1 wait take0 0 1 wait"},
	{"in turn passes one that has ended", plan.RoundRobin, "lll", 9, "0 close1 2 0 2 close0 close2 closed"},
	{"local while there is room", plan.PreferLocal, "rlr", 2, "1 1 2 0 take1 1 2 0 wait close1 wait take0 0 wait"},
	{"an open batch is filled", plan.Balanced, "lll", 3, "0 open0 0 0 1 left open1 1 1 2 left 2 2 wait"},
	{"a batch of a consumer that has ended", plan.Balanced, "ll", 9, "0 open0 0 close0 1"},
}

// Each policy chooses the channel that its documentation says.
func TestStories(t *testing.T) {
	for _, s := range stories {
		o := Outputs{Choice: s.choice, Current: -1}
		for _, l := range s.local {
			o.Ch = append(o.Ch, Channel{Window: s.window, IsLocal: l == 'l'})
		}
		for i, step := range strings.Fields(s.story) {
			if got := play(&o, step); got != "" {
				t.Errorf("%s: step %d is %s, got %s", s.name, i, step, got)
			}
		}
	}
}

// play does one step, and returns what came instead of what the step expects.
func play(o *Outputs, step string) string {
	var verb string
	var ch int
	for _, verb = range []string{"take", "close", "open"} {
		if n, _ := fmt.Sscanf(step, verb+"%d", &ch); n == 1 {
			break
		}
		verb = ""
	}
	switch {
	case verb == "take":
		o.Ch[ch].Taken++
	case verb == "close":
		o.Ch[ch].IsClosed = true
	case verb == "open":
		o.Current = ch
	case step == "left":
		o.Current = -1
	default:
		c := o.Choose()
		got := map[int]string{Wait: "wait", Closed: "closed"}[c]
		if c >= 0 {
			got = fmt.Sprint(c)
			o.Ch[c].Sent++
		}
		if got != step {
			return got
		}
	}
	return ""
}

// A policy never exceeds a window, never chooses a consumer that has ended, and
// waits only if a consumer must act first.
func TestChooseModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Outputs{Current: -1, Choice: rapid.SampledFrom([]plan.Choice{plan.Balanced, plan.RoundRobin, plan.PreferLocal, plan.OnDemand}).Draw(t, "choice")}
		for range rapid.IntRange(1, 5).Draw(t, "channels") {
			o.Ch = append(o.Ch, Channel{Window: rapid.Uint64Range(1, 4).Draw(t, "window"), IsLocal: rapid.Bool().Draw(t, "local")})
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			ch := &o.Ch[rapid.IntRange(0, len(o.Ch)-1).Draw(t, "channel")]
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0:
				ch.IsClosed = rapid.IntRange(0, 4).Draw(t, "close") == 0 || ch.IsClosed
			case 1, 2:
				ch.Taken = min(ch.Taken+1, ch.Sent)
			default:
				checkChoice(t, &o, o.Choose())
			}
		}
	})
}

// checkChoice checks a choice and counts the item.
func checkChoice(t *rapid.T, o *Outputs, got int) {
	open, room, fewest := 0, 0, ^uint64(0)
	for i := range o.Ch {
		if c := &o.Ch[i]; !c.IsClosed {
			open++
			if c.HasRoom() {
				room++
				fewest = min(fewest, c.Sent-c.Taken)
			}
		}
	}
	switch {
	case got == Closed:
		try.Equal(t, open, 0, "consumers that have not ended")
	case got == Wait:
		if room > 0 && o.Choice != plan.RoundRobin || room == open {
			t.Fatalf("it waits, and %d of %d channels have room", room, open)
		}
	default:
		c := &o.Ch[got]
		if c.IsClosed || !c.HasRoom() {
			t.Fatalf("channel %d cannot take an item: %+v", got, *c)
		}
		if (o.Choice == plan.Balanced || o.Choice == plan.OnDemand) && c.Sent-c.Taken != fewest {
			t.Fatalf("channel %d has %d items under way, another %d", got, c.Sent-c.Taken, fewest)
		}
		c.Sent++
	}
}

// The end of a channel whose items are not all there is an error.
func TestEnds(t *testing.T) {
	in := Inputs{Ch: make([]Input, 2)}
	in.Ch[0].Items = 3
	try.Fails(in.End(0, 4))(t, ErrCount)
	try.OK(t, in.End(0, 3))
	if err := in.End(0, 3); !errors.Is(err, ErrCount) {
		t.Errorf("a second end: %v", err)
	}
	try.Equal(t, in.AllEnded(), false)
	try.OK(t, in.End(1, 0))
	try.Equal(t, in.AllEnded(), true)
}
