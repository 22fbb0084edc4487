// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"pgregory.net/rapid"
)

// drawView returns a view of up to three contexts. Counts grow, stand still or begin anew, contexts
// and resources come and go, and contexts fall silent.
func drawView(t *rapid.T, taken time.Time) *observe.View {
	v := &observe.View{Taken: taken}
	number := func(what string, most int) int { return rapid.IntRange(0, most).Draw(t, what) }
	for c := range 3 {
		switch number("state", 9) {
		case 0: // it is not there
			continue
		case 1, 2:
			v.Contexts = append(v.Contexts, process(c, "", silent))
			continue
		}
		told := process(c, "told")
		for serial := range number("resources", 3) {
			has("", holds(number("messages", 2)), func(r *rocl.ResourceSnapshot) {
				r.Resource = id(c, serial+1)
				r.Received, r.Arrived = uint64(number("received", 3)), uint64(number("arrived", 3))
			})(&told)
		}
		for range number("calls", 2) {
			told.Calls = append(told.Calls, dispatch.CallSnapshot{From: id(c, 1), Number: uint64(number("call", 3))})
		}
		told.Links = []dispatch.LinkSnapshot{{Route: dispatch.Route{Peer: id(9, 0), SentBytes: uint64(number("sent", 9)), ReceivedBytes: uint64(number("came", 9))}}}
		v.Contexts = append(v.Contexts, told)
	}
	v.Clean()
	return v
}

// told returns the views in which a context has told something, back from the last one as long as
// the context was in each view, the last one first.
func told(views []*observe.View, context rocl.GID) (all []observe.Context, at []time.Time) {
	for _, v := range slices.Backward(views) {
		i := slices.IndexFunc(v.Contexts, func(c observe.Context) bool { return c.Context == context })
		if i < 0 {
			break
		}
		if v.Contexts[i].Silent == "" {
			all, at = append(all, v.Contexts[i]), append(at, v.Taken)
		}
	}
	return all, at
}

func find(c observe.Context, id rocl.GID) *rocl.ResourceSnapshot {
	i := slices.IndexFunc(c.Resources, func(r rocl.ResourceSnapshot) bool { return r.Resource == id })
	if i < 0 {
		return nil
	}
	return &c.Resources[i]
}

// The rows of an Observer are those that a look through all views gives: how long messages have
// stood, how long calls and silence have lasted, and rates. A resource that comes anew, a count
// that begins anew and a context that is silent have the rate 0.
func TestObserver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o observe.Observer
		var views []*observe.View
		taken := begin
		for range rapid.IntRange(1, 12).Draw(t, "views") {
			taken = taken.Add(time.Duration(rapid.IntRange(1, 5).Draw(t, "seconds")) * time.Second)
			views = append(views, drawView(t, taken))
			o.Add(views[len(views)-1])
			check(t, &o, views)
		}
	})
}

func check(t *rapid.T, o *observe.Observer, views []*observe.View) {
	last := views[len(views)-1]
	rows := o.Resources()
	calls := o.Calls()
	for i, row := range o.Contexts() {
		context := last.Contexts[i]
		try.Equal(t, row.Context, context.Context, "the context of a row")
		var silentSince time.Time
		for _, v := range slices.Backward(views) {
			c := slices.IndexFunc(v.Contexts, func(c observe.Context) bool { return c.Context == row.Context })
			if c < 0 || v.Contexts[c].Silent == "" {
				break
			}
			silentSince = v.Taken
		}
		try.Equal(t, row.SilentSince, silentSince, "when the context fell silent")
		all, at := told(views, row.Context)
		if len(all) == 0 {
			continue
		}
		for _, now := range all[0].Resources {
			r := rows[0]
			rows = rows[1:]
			try.Equal(t, r.Resource, now.Resource, "the resource of a row")
			since, seconds, in, out := at[0], 0.0, 0.0, 0.0
			for i := 1; i < len(all); i++ {
				young, old := find(all[i-1], now.Resource), find(all[i], now.Resource)
				if old == nil {
					break
				}
				if i == 1 && row.Silent == 0 {
					seconds = at[0].Sub(at[1]).Seconds()
					in, out = max(float64(young.Arrived)-float64(old.Arrived), 0)/seconds, max(float64(young.Received)-float64(old.Received), 0)/seconds
				}
				if young.Messages == 0 || young.Received != old.Received || since != at[i-1] {
					continue
				}
				since = at[i]
			}
			try.Equal(t, r.Standing, at[0].Sub(since), "standing of %v", now.Resource)
			if r.In != in || r.Out != out {
				t.Errorf("rates of %v: %v and %v, want %v and %v", now.Resource, r.In, r.Out, in, out)
			}
		}
		for _, now := range all[0].Calls {
			c := calls[0]
			calls = calls[1:]
			first := at[0]
			for i := range all {
				if !slices.ContainsFunc(all[i].Calls, func(c dispatch.CallSnapshot) bool { return c.Number == now.Number }) {
					break
				}
				first = at[i]
			}
			try.Equal(t, c.Age, last.Taken.Sub(first), "age of call %d", now.Number)
		}
	}
	try.Equal(t, len(rows)+len(calls), 0, "further rows")
	for _, l := range o.Links() {
		if l.In < 0 || l.Out < 0 || l.In > 9 || l.Out > 9 || l.Silent > 0 && l.In+l.Out > 0 {
			t.Errorf("rates of a link: %v and %v", l.In, l.Out)
		}
	}
}
