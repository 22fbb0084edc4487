// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/dirserver/internal/source"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// The minutes of the run, without a fault and with all faults. There is a scrape a minute. The last
// one of each part is repeated, so that the part lasts.
const (
	wellScrapes, wellTime   = 4, 20
	faultScrapes, faultTime = 9, 45
)

// A plant is a network in memory with machines, in virtual time. Its machines are scraped.
type plant struct {
	t        *testing.T
	ctx      context.Context
	net      *simnet.Network
	first    *directory.Identity
	hosts    []*machine
	busy     sync.WaitGroup // programs, and connections to directories
	contexts []*rocl.Context
	minutes  int                 // scrapes so far
	wanted   map[string]bool     // metrics that alerts name
	series   map[string][]string // the values of each scrape; "_": none, "stale": none any more
}

// A machine is a host with a daemon, as far as the daemon needs no kernel.
type machine struct {
	*simnet.Host
	p       *plant
	id      *directory.Identity
	proc    *simnet.Process
	w       *watched
	client  *source.Client
	member  *cluster.Cluster
	isMute  atomic.Bool // datagrams of the daemon are lost
	isDown  bool
	metrics http.Handler
}

const (
	directoryPort = ":7000"
	memberPort    = ":7946"
)

// mute is the network of a machine's daemon. The datagrams that the daemon sends are lost while is
// is set.
type mute struct {
	*simnet.Process
	is *atomic.Bool
}

func (m mute) ListenPacket(addr string) (net.PacketConn, error) {
	pc, err := m.Process.ListenPacket(addr)
	return mutePackets{pc, m.is}, err
}

type mutePackets struct {
	net.PacketConn
	is *atomic.Bool
}

func (m mutePackets) WriteTo(b []byte, to net.Addr) (int, error) {
	if m.is.Load() {
		return len(b), nil
	}
	return m.PacketConn.WriteTo(b, to)
}

// add adds a machine.
func (p *plant) add(name string) *machine {
	m := &machine{Host: p.net.AddHost(name), p: p, id: p.first}
	if len(p.hosts) > 0 {
		m.id = p.first.Sibling()
	}
	p.hosts = append(p.hosts, m)
	return m
}

// start starts the daemon, which joins machines, with a limit of series of its programs.
func (m *machine) start(series int, keys [][]byte, join ...*machine) {
	p := m.p
	log := slog.New(slog.DiscardHandler)
	m.proc = m.Start()
	s := directory.NewServer(directory.WithIdentity(m.id), directory.WithLogger(log))
	ln := try.Get(m.proc.Listen(directoryPort))(p.t)
	cfg := cluster.Config{
		Node: s.Node(), DB: s.Database(), Name: "plant", Bind: memberPort, Keys: keys, Serve: s.ServePeer, Sure: s.Recovered, Logger: log, Network: mute{m.proc, &m.isMute},
	}
	for _, o := range join {
		cfg.Join = append(cfg.Join, o.IP().String()+memberPort)
	}
	m.member = try.Get(cluster.Open(cfg))(p.t)
	s.Attach(m.member)
	member := m.member
	m.w = &watched{server: s, cluster: func() *cluster.Cluster { return member }, joins: len(join) > 0, name: "plant", log: log, begun: time.Now()}
	m.w.serving.Store(true)
	m.client = source.NewClient(func(ctx context.Context) (*rocl.Context, error) { return m.open(ctx, m.Start()) })
	m.w.programs = newPrograms(source.New(m.client), s, []string{"name"}, series)
	m.metrics = promhttp.HandlerFor(newRegistry(m.w), promhttp.HandlerOpts{})
	p.busy.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			p.busy.Go(func() { s.ServeConn(nc) })
		}
	})
}

// stop ends the daemon. If the daemon is killed, it does not tell the other members.
func (m *machine) stop(isKilled bool) {
	if isKilled {
		m.proc.Kill()
	}
	m.client.Close()
	m.w.server.Close()
	m.member.Close()
	m.proc.Kill()
}

// open opens a context of a process of the machine.
func (m *machine) open(ctx context.Context, proc *simnet.Process, opts ...rocl.Option) (*rocl.Context, error) {
	return rocl.Open(ctx, append(opts, rocl.WithTransports(proc.Transport()), rocl.WithLinger(0), icontext.WithDirectory(func(ctx context.Context) (net.Conn, error) {
		nc, err := proc.DialContext(ctx, m.IP().String()+directoryPort)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", rocl.ErrNoDirectory, err)
		}
		return nc, nil
	}))...)
}

// program opens a context of a process of its own, at the machine or another host. The context is
// closed with the run.
func (m *machine) program(at *simnet.Host, opts ...rocl.Option) (*rocl.Context, *simnet.Process) {
	if at == nil {
		at = m.Host
	}
	proc := at.Start()
	c := try.Get(m.open(m.p.ctx, proc, opts...))(m.p.t)
	m.p.contexts = append(m.p.contexts, c)
	return c, proc
}

var metricLine = regexp.MustCompile(`^(rocl_[a-z_]+)(?:\{(.*)\})? (\S+)$`)

// get returns the answer of /metrics.
func (m *machine) get() (text string, isUp bool) {
	if m.isDown {
		return "", false
	}
	r := httptest.NewRecorder()
	m.metrics.ServeHTTP(r, httptest.NewRequestWithContext(m.p.ctx, "GET", "/metrics", nil))
	return r.Body.String(), r.Code == 200
}

// scrape reads the metrics of all machines.
func (p *plant) scrape() {
	for _, m := range p.hosts {
		of := fmt.Sprintf("job=%q,instance=%q", "rocl", m.Name())
		text, isUp := m.get()
		p.put("up{"+of+"}", map[bool]string{true: "1", false: "0"}[isUp])
		for line := range strings.Lines(text) {
			if g := metricLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); g != nil && p.wanted[g[1]] {
				if g[2] != "" {
					g[2] += ","
				}
				p.put(g[1]+"{"+g[2]+of+"}", g[3])
			}
		}
	}
	for name, values := range p.series {
		switch last := values[len(values)-1]; {
		case len(values) > p.minutes:
		case last == "_" || last == "stale":
			p.put(name, "_")
		default:
			p.put(name, "stale")
		}
	}
	p.minutes++
}

// put adds the value that a series has now.
func (p *plant) put(series, value string) {
	values := p.series[series]
	for len(values) < p.minutes {
		values = append(values, "_")
	}
	p.series[series] = append(values, value)
}

// record adds a scrape each minute, n of them.
func (p *plant) record(n int) {
	for range n {
		time.Sleep(time.Minute) // of virtual time, until the next scrape
		p.scrape()
	}
}

// repeat repeats the last scrape until there are n.
func (p *plant) repeat(n int) {
	for ; p.minutes < n; p.minutes++ {
		for name, values := range p.series {
			p.series[name] = append(values, values[len(values)-1])
		}
	}
}

// each calls f once in an interval, until the run ends.
func (p *plant) each(interval time.Duration, f func(n int)) {
	p.busy.Go(func() {
		for n := 0; p.ctx.Err() == nil; n++ {
			f(n)
			select {
			case <-time.After(interval):
			case <-p.ctx.Done():
			}
		}
	})
}

// TestAlerts records a run of machines in virtual time, whose metrics are scraped each minute, and
// gives the series to promtool. Nothing is wrong at first. Then all faults begin, and each alert
// fires once.
//
// Promise (Commands): Each alert is silent while nothing is wrong, and fires once.
func TestAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("the run takes some seconds of real time, and minutes with the race detector")
	}
	const folder = "../../monitoring/"
	rules := string(try.Get(os.ReadFile(folder + "alerts.yml"))(t))
	byHand := string(try.Get(os.ReadFile(folder + "alerts_test.yml"))(t))
	wanted := map[string]bool{}
	var alerts []string
	for _, m := range regexp.MustCompile(`(?m)- alert: (\w+)\n +expr: (.*)$`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(byHand, `{alertname="`+m[1]+`"}`) {
			alerts = append(alerts, m[1])
		}
		for _, name := range regexp.MustCompile(`\brocl_[a-z_]+`).FindAllString(m[2], -1) {
			wanted[name] = true
		}
	}
	var series map[string][]string
	var minutes int
	synctest.Test(t, func(t *testing.T) { series, minutes = record(t, wanted) })

	var b bytes.Buffer
	file := try.Get(filepath.Abs(folder + "alerts.yml"))(t)
	fmt.Fprintf(&b, "rule_files: [%q]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n", file)
	for _, name := range slices.Sorted(maps.Keys(series)) {
		fmt.Fprintf(&b, "  - {series: '%s', values: '%s'}\n", strings.ReplaceAll(name, "'", "''"), strings.Join(series[name], " "))
	}
	const takesDay = "RoclKeyChangeUnfinished"
	const firing = `ALERTS{alertstate="firing"}`
	fmt.Fprintf(&b, "  promql_expr_test:\n  - {expr: 'count by (alertname) (count_over_time(%s[%dm]))', eval_time: %[2]dm, exp_samples: []}\n", firing, wellTime-1)
	fmt.Fprintf(&b, "  - expr: group by (alertname) (count_over_time(%s[%dm]))\n    eval_time: %[2]dm\n    exp_samples:\n", firing, minutes-1)
	for _, a := range alerts {
		if a == takesDay {
			continue
		}
		fmt.Fprintf(&b, "    - {labels: '{alertname=%q}', value: 1}\n", a)
	}
	// An alert fires once if it has fired at each evaluation between the first and the last time.
	fmt.Fprintf(&b, "  - {expr: '(max_over_time(timestamp(%[1]s)[%[2]dm:1m]) - min_over_time(timestamp(%[1]s)[%[2]dm:1m])) / 60 + 1 != count_over_time(%[1]s[%[2]dm])', eval_time: %[2]dm, exp_samples: []}\n",
		firing, minutes-1)
	b.WriteString("- interval: 1m\n  input_series:\n")
	for name, values := range series {
		if strings.HasPrefix(name, "rocl_cluster_keys{") {
			fmt.Fprintf(&b, "  - {series: '%s', values: '%s %sx1500'}\n", name, strings.Join(values, " "), values[minutes-1])
		}
	}
	fmt.Fprintf(&b, "  promql_expr_test: [{expr: 'count by (alertname) (%s)', eval_time: 25h, exp_samples: [{labels: '{alertname=%q}', value: 1}]}]\n", firing, takesDay)
	tests := filepath.Join(t.TempDir(), "recorded.yml")
	try.OK(t, os.WriteFile(tests, b.Bytes(), 0o600))
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("ROCL_PROMTOOL") == "must" {
			t.Fatal(err)
		}
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	if out, err := exec.CommandContext(eventually.Context(t), tool, "test", "rules", tests).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// record returns the series of the run, and how many minutes it took.
func record(t *testing.T, wanted map[string]bool) (map[string][]string, int) {
	ctx, end := context.WithCancel(context.Background())
	p := &plant{t: t, ctx: ctx, net: simnet.New(1), first: directory.NewIdentity(), wanted: wanted, series: map[string][]string{}}
	p.net.SetDelay(100*time.Microsecond, 2*time.Millisecond)
	const many = 1000 // series
	a, b, c, d, e := p.add("a"), p.add("b"), p.add("c"), p.add("d"), p.add("e")
	a.start(many, nil)
	b.start(many, nil, a)
	c.start(many, nil, a, b)
	d.start(many, nil, a, b)
	e.start(many, nil, a, b)
	time.Sleep(10 * time.Second) // of virtual time: the members meet

	var isFaulty atomic.Bool
	resource := func(c *rocl.Context, name string, opts ...rocl.RegisterOption) *rocl.Resource {
		return try.Get(c.Register(ctx, rocl.Attrs{"name": name}, opts...))(t)
	}
	front, _ := b.program(nil)
	caller := resource(front, "caller")
	shard, _ := a.program(nil)

	// A mailbox is read, a call has a reply, a handler returns and has no error. With the fault:
	// RoclMailboxStandsStill, RoclSendersWait, RoclCallWaits, RoclHandlerRunsLong, RoclCallsFail.
	box := resource(shard, "box", rocl.MailboxMessages(10))
	receive := func(r *rocl.Resource) {
		for !isFaulty.Load() {
			m, err := r.Recv(ctx)
			if err != nil {
				return
			}
			if m.IsCall() {
				_ = r.ReplyBytes(ctx, m, nil)
			}
			m.Release()
		}
	}
	p.busy.Go(func() { receive(box) })
	server := try.Get(rpc.NewServer(ctx, shard, rocl.Attrs{"name": "server"}))(t)
	try.OK(t, rpc.Register(server, "read", func(context.Context, int) (int, error) {
		if isFaulty.Load() {
			return 0, errors.New("a test")
		}
		return 1, nil
	}))
	try.OK(t, rpc.Register(server, "write", func(context.Context, int) (int, error) {
		if isFaulty.Load() {
			<-ctx.Done()
		}
		return 1, nil
	}))
	client := try.Get(rpc.NewClient(ctx, front))(t)
	for _, call := range []string{"read", "write"} {
		p.each(5*time.Second, func(int) {
			_, _ = rpc.Call[int, int](ctx, client, server.ID(), call, 1)
		})
	}
	p.each(5*time.Second, func(int) { _ = caller.SendBytes(ctx, box.ID(), 1, nil) })
	p.each(time.Minute, func(int) { _, _ = caller.CallBytes(ctx, box.ID(), 1, nil) })

	// Programs that are stopped, killed, and cut off later. The last one runs on a host of its own.
	stopped, ofStopped := a.program(nil)
	killed, ofKilled := a.program(nil)
	island := p.net.AddHost("island")
	cutOff, _ := a.program(island)
	for _, c := range []*rocl.Context{stopped, killed, cutOff} {
		to := resource(c, "target")
		p.busy.Go(func() { receive(to) })
		p.each(time.Second, func(int) { _ = caller.SendBytes(ctx, to.ID(), 1, nil) })
	}

	crowd, _ := e.program(nil)
	heavy, _ := b.program(nil, rocl.WithMemory(4<<20))

	// A resource of b is found from a by b's summary. With the fault, RoclSummariesWrong, the
	// resource has just gone.
	p.each(10*time.Second, func(n int) {
		name := fmt.Sprint("brief ", n)
		r, err := front.Register(ctx, rocl.Attrs{"name": name})
		if err != nil {
			return
		}
		time.Sleep(7 * time.Second) // of virtual time: the summary spreads
		if isFaulty.Load() {
			_ = r.Delete(ctx)
		}
		_, _ = shard.Find(ctx, rocl.Match{"name": name})
		_ = r.Delete(ctx)
	})

	p.record(wellScrapes)
	p.repeat(wellTime)
	isFaulty.Store(true) // receivers, calls, handlers and summaries

	// RoclContextSilent; RoclMessagesUndelivered; RoclLinkDown; RoclLinkFlaps
	ofStopped.Stop()
	ofKilled.Stop()
	p.busy.Go(func() {
		time.Sleep(30 * time.Second) // of virtual time: messages are accepted that it does not get
		ofKilled.Kill()
	})
	p.net.Cut(b.Host, island)
	p.net.Cut(island, b.Host)
	p.each(20*time.Second, func(int) { p.net.Break(b.Host, a.Host, 0) })

	// RoclMemoryNearLimit; RoclSeriesLeftOut
	var kept []*rocl.Buffer
	for one, err := heavy.Buffer(32 << 10); err == nil; one, err = heavy.Buffer(32 << 10) {
		kept = append(kept, one)
	}
	for n := range 300 {
		resource(crowd, fmt.Sprint("one of many ", n))
	}

	// RoclDown, RoclMemberLost; RoclClusterSplit, RoclNodeOverloaded; RoclUDPBlocked,
	// RoclQuestionsFail
	p.busy.Go(func() { c.stop(true) })
	c.isDown = true
	for _, m := range []*machine{a, b, e} {
		p.net.Cut(d.Host, m.Host)
		p.net.Cut(m.Host, d.Host)
	}
	e.isMute.Store(true)

	// RoclMemberRefuses, RoclJoinFails, RoclForeignPackets, RoclKeyChangeUnfinished
	f := p.add("f")
	f.start(many, [][]byte{[]byte("a-key-of-another-cluster"), []byte("the-key-before-that-one")}, a)

	p.record(faultScrapes)
	p.repeat(wellTime + faultTime)
	end()
	for _, b := range kept {
		b.Release()
	}
	_ = client.Close()
	_ = server.Close(ctx)
	for _, c := range p.contexts {
		_ = c.Close()
	}
	for _, m := range p.hosts {
		if !m.isDown {
			m.stop(false)
		}
	}
	p.busy.Wait()
	time.Sleep(time.Hour) // timers that have nothing to do any more fire
	return p.series, p.minutes
}
