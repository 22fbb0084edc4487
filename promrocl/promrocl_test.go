// SPDX-License-Identifier: Apache-2.0

package promrocl

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node has the contexts that a collector is shown, and the last figures by name and labels.
type node struct {
	t        *testing.T
	r        *prometheus.Registry
	contexts []Context
	err      error
	last     map[string]float64
}

func newNode(t *testing.T, o Options) *node {
	n := &node{t: t, r: prometheus.NewPedanticRegistry()}
	try.OK(t, n.r.Register(NewOf(func() ([]Context, error) { return slices.Clone(n.contexts), n.err }, o)))
	return n
}

// figures collects the metrics. A series is named as in the exposition, without quotes and "rocl_".
// A histogram has the names with _count, _sum, and the bound of each bucket.
func (n *node) figures() map[string]float64 {
	n.t.Helper()
	n.last = figures(n.t, n.r)
	return n.last
}

func figures(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	got := map[string]float64{}
	for _, f := range try.Get(r.Gather())(t) {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "rocl_") + "{" + strings.Join(labels, ",") + "}"
			h := m.GetHistogram()
			if h == nil {
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
				continue
			}
			got[name+"_count"], got[name+"_sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
			for _, b := range h.Bucket {
				got[name+strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)] = float64(b.GetCumulativeCount())
			}
		}
	}
	return got
}

// check compares figures. NaN stands for a series that there must not be.
func (n *node) check(want map[string]float64) {
	n.t.Helper()
	got := n.figures()
	for name, v := range want {
		if is, ok := got[name]; ok == math.IsNaN(v) || ok && math.Abs(is-v) > 1e-9 {
			n.t.Errorf("%s: %v %v, want %v", name, is, ok, v)
		}
	}
}

// snapshot returns a snapshot of a context with resources, whose serials count from 1.
func snapshot(number uint64, program string, pid int, of ...rocl.ResourceSnapshot) rocl.Snapshot {
	id := resource.MakeGID(1, number, 0)
	for i := range of {
		of[i].Resource = id.WithSerial(uint32(i + 1))
	}
	return rocl.Snapshot{Version: rocl.SnapshotVersion, Context: id, PID: pid, Program: program, Resources: of}
}

func mailbox(messages int, received uint64) rocl.ResourceSnapshot {
	return rocl.ResourceSnapshot{MailboxSnapshot: dispatch.MailboxSnapshot{Messages: messages, Bytes: uint64(messages) * 70, Limit: 1000, Received: received}}
}

// New shows what a context has: 300 messages that nobody receives.
func TestContext(t *testing.T) {
	ctx := t.Context()
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer c.Close()
	r := try.Get(c.Register(ctx, rocl.Attrs{"type": "shard"}))(t)
	for range 300 {
		try.OK(t, r.SendBytes(ctx, r.ID(), 1, []byte("unread")))
	}
	reg := prometheus.NewPedanticRegistry()
	try.OK(t, reg.Register(New(nil, c)))
	got := figures(t, reg)
	who := "{pid=" + strconv.Itoa(os.Getpid()) + ",program=" + filepath.Base(try.Get(os.Executable())(t)) + "}"
	if got["mailbox_messages"+who] != 300 || got["contexts{state=answering}"] != 1 || got["contexts{state=silent}"] != 0 || got["context_memory_bytes"+who] <= 0 || got["mailbox_bytes"+who] < 1800 {
		t.Errorf("%v", got)
	}
}

// The handlers of a server of package rpc have the figures that the server itself has.
func TestHandlers(t *testing.T) {
	ctx := t.Context()
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer c.Close()
	s := try.Get(rpc.NewServer(ctx, c, nil))(t)
	defer s.Close(context.Background())
	client := try.Get(rpc.NewClient(ctx, c))(t)
	defer client.Close()
	try.OK(t, rpc.Register(s, "fails", func(context.Context, int) (int, error) { return 0, rocl.ErrFull }))
	for range 5 {
		if _, err := rpc.Call[int, int](ctx, client, s.ID(), "fails", 1); err == nil {
			t.Error("no error")
		}
	}
	reg := prometheus.NewPedanticRegistry()
	try.OK(t, reg.Register(New(c)))
	got, of := figures(t, reg), "{call=fails,pid="+strconv.Itoa(os.Getpid())+",program="+filepath.Base(try.Get(os.Executable())(t))+"}"
	st := s.Stats()[0]
	var bucket string // the first one that has all calls
	for bound := time.Duration(1 << 10); bucket == "" && bound <= 1<<32; bound *= 2 {
		if bound > st.Took[len(st.Took)-1].Most {
			bucket = strconv.FormatFloat(bound.Seconds(), 'g', -1, 64)
		}
	}
	if got["handler_calls_total"+of] != 5 || got["handler_errors_total"+of] != 5 || got["handler_duration_seconds"+of+"_count"] != 5 ||
		got["handler_duration_seconds"+of+"_sum"] != st.Total.Seconds() || bucket != "" && got["handler_duration_seconds"+of+bucket] != 5 {
		t.Errorf("%+v: %v", st, got)
	}
}

// The metrics follow the conventions of Prometheus, and the package comment has each of them, with
// its labels.
func TestDocumented(t *testing.T) {
	n := newNode(t, Options{})
	s := snapshot(1, "p", 1, mailbox(1, 1))
	s.Stats.Buffers.Limit = 1
	s.Links = []dispatch.LinkSnapshot{{State: "connected"}}
	s.Resources[0].Handlers = []rocl.HandlerSnapshot{{Name: "f", Took: []uint64{1}}}
	n.contexts = []Context{{Snapshot: s}, {Snapshot: rocl.Snapshot{Context: resource.MakeGID(1, 2, 0)}, Silent: true}}
	got := try.Get(n.r.Gather())(t)
	if problems := try.Get(promlint.NewWithMetricFamilies(got).Lint())(t); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	text := try.Get(os.ReadFile("promrocl.go"))(t)
	documented := map[string]string{} // labels by name
	for _, m := range regexp.MustCompile(`(?m)^//\t(rocl_[a-z_]+)(?:\{([a-z,]+)\})? `).FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = m[2]
	}
	for _, f := range got {
		var labels []string
		for _, l := range f.Metric[0].Label {
			if name := l.GetName(); name != "program" && name != "pid" {
				labels = append(labels, name)
			}
		}
		is, ok := documented[f.GetName()]
		of := strings.Split(is, ",")
		slices.Sort(of)
		if !ok || strings.Join(of, ",") != strings.Join(labels, ",") {
			t.Errorf("the package comment has of %s the labels %q, it has %q", f.GetName(), is, labels)
		}
		delete(documented, f.GetName())
	}
	for name := range documented {
		t.Errorf("the package comment has %s, which there is not", name)
	}
}

// Figures of contexts of one process are added, of seconds the longest counts, and what needs two
// looks is seen at the second one.
//
// Promise (Commands): Metrics of programs tell since when a mailbox stands still, a call waits and
// a context is silent.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, Options{})
		one, two := snapshot(1, "p", 7, mailbox(300, 0), mailbox(2, 5)), snapshot(2, "p", 7, mailbox(0, 10))
		other := snapshot(3, "q", 8)
		one.Resources[0].Senders, one.Resources[0].MoreSenders = make([]dispatch.MessageSnapshot, 2), 5
		one.Resources[1].Waits, one.Resources[1].MoreWaits = make([]dispatch.ReceiverSnapshot, 3), 1000
		one.Resources[1].Handlers = []rocl.HandlerSnapshot{{Name: "f", Running: 2, Oldest: 3 * time.Second, Ended: 10, Errors: 1, Took: []uint64{4, 0, 1}, Total: time.Second}, {Name: ""}}
		one.Calls = []dispatch.CallSnapshot{{Number: 4}}
		one.Sends = make([]dispatch.SendSnapshot, 5)
		one.Links = []dispatch.LinkSnapshot{
			{Route: dispatch.Route{Transport: "shm", Peer: other.Context, Sent: 3, SentBytes: 30, Received: 1, ReceivedBytes: 10}, State: "connected", Unacknowledged: 2},
			{Route: dispatch.Route{Peer: two.Context}, State: "dialling"},
		}
		one.Stats.Moved, one.Stats.Resumed, one.Stats.Undelivered = 1, 2, 3
		one.Memory, one.Stats.Buffers.Limit, two.Memory = 100, 1000, 50
		n.contexts = []Context{{Snapshot: one}, {Snapshot: two}, {Snapshot: other}}
		const p, q = "{pid=7,program=p}", "{pid=8,program=q}"
		want := map[string]float64{
			"contexts{state=answering}": 3, "contexts{state=silent}": 0, "series_left_out{}": 0,
			"mailbox_messages" + p: 302, "mailbox_bytes" + p: 302 * 70, "mailbox_limit_bytes" + p: 3000, "mailbox_received_bytes_total" + p: 15,
			"mailbox_standing_seconds" + p: 0, "mailbox_senders_waiting" + p: 7, "mailbox_receives_waiting" + p: 1003,
			"context_memory_bytes" + p: 150, "context_memory_limit_bytes" + p: 1000, "context_memory_limit_bytes" + q: math.NaN(),
			"context_calls_waiting" + p: 1, "context_call_wait_seconds" + p: 0, "context_call_wait_seconds" + q: 0, "context_sends_waiting" + p: 5, "context_undelivered_total" + p: 3,
			"links{pid=7,program=p,state=connected,transport=shm}": 1, "links{pid=7,program=p,state=dialling,transport=}": 1, "link_unacknowledged_frames" + p: 2,
			"link_messages_total{direction=sent,pid=7,program=p,transport=shm}": 3, "link_bytes_total{direction=received,pid=7,program=p,transport=shm}": 10,
			"link_changes_total{change=moved,pid=7,program=p}": 1, "link_changes_total{change=resumed,pid=7,program=p}": 2,
			"handler_running{call=f,pid=7,program=p}": 2, "handler_oldest_seconds{call=f,pid=7,program=p}": 3, "handler_calls_total{call=f,pid=7,program=p}": 10, "handler_errors_total{call=f,pid=7,program=p}": 1,
			"handler_duration_seconds{call=f,pid=7,program=p}_count": 5, "handler_duration_seconds{call=f,pid=7,program=p}_sum": 1,
			"handler_duration_seconds{call=f,pid=7,program=p}1.024e-06": 4, "handler_duration_seconds{call=f,pid=7,program=p}2.048e-06": 4, "handler_duration_seconds{call=f,pid=7,program=p}4.096e-06": 5,
			"handler_duration_seconds{call=,pid=7,program=p}_count": math.NaN(), "context_silent_seconds" + q: math.NaN(),
		}
		n.check(want)
		time.Sleep(30 * time.Second)
		n.contexts[0].Resources[1].Received += 7
		n.contexts[2] = Context{Snapshot: rocl.Snapshot{Context: other.Context, PID: 8}, Silent: true}
		n.contexts = append(n.contexts, Context{Snapshot: rocl.Snapshot{Context: resource.MakeGID(1, 4, 0), PID: 9, Program: "r"}, Silent: true})
		want["mailbox_standing_seconds"+p], want["context_call_wait_seconds"+p], want["mailbox_received_bytes_total"+p] = 30, 30, 22
		want["context_silent_seconds"+q], want["context_silent_seconds{pid=9,program=r}"] = 0, 0
		want["contexts{state=answering}"], want["contexts{state=silent}"] = 2, 2
		n.check(want)
		time.Sleep(30 * time.Second)
		n.contexts[0].Resources[0].Received++
		n.contexts[0].Calls = nil
		n.contexts = n.contexts[:3]
		n.err = errors.New("no directory")
		if _, err := n.r.Gather(); err == nil || !strings.Contains(err.Error(), "no directory") {
			t.Errorf("%v", err)
		}
		n.err = nil
		want["mailbox_standing_seconds"+p], want["context_call_wait_seconds"+p], want["context_calls_waiting"+p], want["mailbox_received_bytes_total"+p] = 30, 0, 0, 23
		want["context_silent_seconds"+q], want["context_silent_seconds{pid=9,program=r}"], want["contexts{state=silent}"] = 30, math.NaN(), 1
		n.check(want)
	})
}

// A counter does not fall when a resource, a link or a context of several ends, nor while a context
// is silent, and it counts what is added only. Series of a process that has ended are gone.
//
// Promise (Commands): Counters of programs do not fall while the process lives.
func TestCounters(t *testing.T) {
	n := newNode(t, Options{})
	const p = "mailbox_received_bytes_total{pid=7,program=p}"
	const sent = "link_messages_total{direction=sent,pid=7,program=p,transport=shm}"
	link := func(peer, messages uint64) dispatch.LinkSnapshot {
		return dispatch.LinkSnapshot{Route: dispatch.Route{Transport: "shm", Peer: resource.MakeGID(2, peer, 0), Sent: messages}, State: "connected"}
	}
	one, two := snapshot(1, "p", 7, mailbox(0, 10), mailbox(0, 100)), snapshot(2, "p", 7, mailbox(0, 1000))
	one.Links = []dispatch.LinkSnapshot{link(1, 5), link(2, 50)}
	n.contexts = []Context{{Snapshot: one}, {Snapshot: two}}
	n.check(map[string]float64{p: 1110, sent: 55})
	n.contexts[0].Links = []dispatch.LinkSnapshot{link(2, 51)} // one has ended
	n.contexts[0].Resources = one.Resources[:1]                // likewise
	n.check(map[string]float64{p: 1110, sent: 56})
	one.Resources[0].Received = 9 // PutBack
	n.check(map[string]float64{p: 1110})
	one.Resources[0].Received = 12
	n.contexts[0].Links = []dispatch.LinkSnapshot{link(2, 3)} // a new link to the same context
	n.check(map[string]float64{p: 1112, sent: 59})
	n.contexts = n.contexts[:1] // the second context has closed
	n.check(map[string]float64{p: 1112, sent: 59})
	told := n.contexts[0]
	n.contexts[0] = Context{Snapshot: rocl.Snapshot{Context: one.Context, PID: 7}, Silent: true}
	n.check(map[string]float64{p: 1112, sent: 59})
	n.contexts[0] = told
	n.contexts[0].Resources[0].Received++
	n.check(map[string]float64{p: 1113, sent: 59})
	n.contexts = nil
	if n.figures(); len(n.last) != 3 {
		t.Errorf("series of a process that has ended: %v", n.last)
	}
}

// Resources have the labels of Options. Beyond the limit of series, figures are added to those
// whose labels are all other.
//
// Promise (Commands): The series of programs' metrics are bounded. What has no series of its own is
// in others, so that sums stay right.
func TestSeries(t *testing.T) {
	o := Options{Labels: []string{"attr_type", "attr_name"}, Series: 60, Values: func(r *rocl.ResourceSnapshot) []string {
		if r.Name == "" {
			return nil
		}
		return []string{r.Name, "n", "too many"}
	}}
	n := newNode(t, o)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var counters map[string]float64
	wasFull := false
	for range 30 {
		contexts := random.IntN(8)
		n.contexts = slices.DeleteFunc(n.contexts, func(Context) bool { return random.IntN(10) == 0 })
		for len(n.contexts) < contexts {
			number := random.Uint64N(1 << 40)
			s := snapshot(number, "p", int(number%16))
			s.Stats.Undelivered = random.Uint64N(100)
			n.contexts = append(n.contexts, Context{Snapshot: s})
		}
		messages := 0.0
		for i := range n.contexts {
			c := &n.contexts[i]
			c.Resources = snapshot(c.Context.Ctx(), "", 0, slices.Repeat([]rocl.ResourceSnapshot{{}}, random.IntN(8))...).Resources
			for j := range c.Resources {
				r := &c.Resources[j]
				r.Name, r.Messages = []string{"", "a", "b"}[j%3], random.IntN(100)
				messages += float64(r.Messages)
			}
			c.Stats.Undelivered += random.Uint64N(5)
		}
		got := n.figures()
		if len(got) > o.Series+len(families) {
			t.Fatalf("%d series", len(got))
		}
		wasFull = wasFull || got["series_left_out{}"] > 0
		sums := map[string]float64{}
		for name, v := range got {
			family, _, _ := strings.Cut(name, "{")
			sums[family] += v
			if before, ok := counters[name]; ok && strings.HasSuffix(family, "_total") && v < before {
				t.Fatalf("%s fell from %v to %v", name, before, v)
			}
			if strings.HasPrefix(family, "mailbox") && !strings.Contains(name, "other") && !regexp.MustCompile(`\{attr_name=n?,attr_type=[ab]?,pid=`).MatchString(name) {
				t.Fatal(name)
			}
		}
		if sums["mailbox_messages"] != messages {
			t.Fatalf("%v messages in all, %v in series", messages, sums["mailbox_messages"])
		}
		counters = got
	}
	if !wasFull {
		t.Error("the limit of series was not reached")
	}
}

// Values that no honest context tells give valid metrics.
//
// Promise (Commands): A context that lies does not break the metrics of others.
func TestHostile(t *testing.T) {
	n := newNode(t, Options{Labels: []string{"attr_type"}, Values: func(r *rocl.ResourceSnapshot) []string { return []string{r.Name} }})
	bad := "\xff\"\\\n\x1b[2J\u202e<script>{x=\"y\"} 1" + strings.Repeat("x", 1<<20)
	most := rocl.ResourceSnapshot{Name: bad}
	most.Messages, most.Bytes, most.Limit, most.Received = math.MaxInt, math.MaxUint64, math.MaxUint64, math.MaxUint64
	h := rocl.HandlerSnapshot{Name: bad, Running: math.MaxInt, Oldest: math.MaxInt64, Ended: math.MaxUint64, Took: slices.Repeat([]uint64{math.MaxUint64}, 1000), Total: math.MaxInt64}
	most.Handlers = []rocl.HandlerSnapshot{h, h}
	s := snapshot(1, bad, math.MaxInt, most, most)
	s.Memory, s.Stats.Moved, s.Stats.Buffers.Limit = math.MaxUint64, math.MaxUint64, math.MaxInt64-1
	s.Links = slices.Repeat([]dispatch.LinkSnapshot{{Route: dispatch.Route{Transport: bad, Sent: math.MaxUint64}, State: bad}}, 100)
	s.Cut = map[string]int{"calls": math.MaxInt}
	n.contexts = []Context{{Snapshot: s}, {Snapshot: s}, {Snapshot: snapshot(2, "honest", 2, mailbox(3, 0))}}
	for range 3 {
		n.check(map[string]float64{"mailbox_messages{attr_type=,pid=2,program=honest}": 3, "contexts{state=answering}": 2})
		for name, v := range n.last {
			if len(name) > 2000 || math.IsInf(v, 0) || math.IsNaN(v) {
				t.Errorf("%.100s: %v", name, v)
			}
		}
		n.contexts[0].Stats.Moved /= 2
	}
}

// NewOf without anything, and New without contexts, have no figures.
func TestZero(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	try.OK(t, reg.Register(New()))
	try.Equal(t, figures(t, reg)["contexts{state=answering}"], 0, "contexts")
}
