// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The environment of an agent: the socket of its node, and how long a peer may be out of reach.
const envAgent, envGiveUp = "ROCL_LAB_AGENT", "ROCL_LAB_GIVE_UP"

// An agent is a program of a node: the test's own binary, run again in the node's namespace, with
// one context. The test calls its methods over its standard input and output.
type agent struct {
	*rpc.Client
	node *node
	p    *subprocess.Process
}

// agent starts an agent on the node.
func (n *node) agent() *agent { return n.agentWithGiveUp(5 * time.Second) }

// agentWithGiveUp starts an agent whose context gives up a peer that is out of reach for that long.
func (n *node) agentWithGiveUp(giveUp time.Duration) *agent {
	t := n.lab.t
	t.Helper()
	exe, err := os.Executable()
	try.OK(t, err)
	cmd := n.command(exe)
	cmd.Env = append(os.Environ(), envAgent+"="+n.socket(), envGiveUp+"="+giveUp.String())
	cmd.Stderr = os.Stderr
	toR, toW, err := os.Pipe()
	try.OK(t, err)
	fromR, fromW, err := os.Pipe()
	try.OK(t, err)
	cmd.Stdin, cmd.Stdout = toR, fromW
	a := &agent{node: n}
	a.p, err = in(n.ns, cmd)
	toR.Close()
	fromW.Close()
	try.OK(t, err)
	a.Client = jsonrpc.NewClient(&pipes{fromR, toW})
	t.Cleanup(func() {
		a.Close() // the process ends by itself
		select {
		case <-a.p.Ended():
		case <-time.After(eventually.Timeout):
			a.p.Kill()
			t.Errorf("the agent of node %d does not end", n.i)
		}
	})
	return a
}

type pipes struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p *pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p *pipes) Close() error                { return errors.Join(p.w.Close(), p.ReadCloser.Close()) }

// do calls a method of the agent, and fails the test if the call fails.
func do[A, R any](a *agent, method string, args A) (r R) {
	t := a.node.lab.t
	t.Helper()
	try.OK(t, a.Call("Agent."+method, args, &r), "%s of node %d", method, a.node.i)
	return r
}

func (a *agent) register(attrs rocl.Attrs) rocl.GID {
	a.node.lab.t.Helper()
	return do[rocl.Attrs, rocl.GID](a, "Register", attrs)
}

func (a *agent) find(m rocl.Match) Answer {
	a.node.lab.t.Helper()
	return do[rocl.Match, Answer](a, "Find", m)
}

func (a *agent) all(m rocl.Match) Answer {
	a.node.lab.t.Helper()
	return do[rocl.Match, Answer](a, "FindAll", m)
}

func (a *agent) lookup(id rocl.GID) Answer {
	a.node.lab.t.Helper()
	return do[rocl.GID, Answer](a, "Lookup", id)
}

// say sends a message from the agent's resource to the resource id of the agent to, and fails the
// test unless it arrives.
func (a *agent) say(to *agent, id rocl.GID, data string) {
	t := a.node.lab.t
	t.Helper()
	if e := do[Letter, string](a, "Send", Letter{id, data}); e != "" {
		t.Fatalf("sending from node %d to %d: %s", a.node.i, to.node.i, e)
	}
	try.Equal(t, do[rocl.GID, string](to, "Recv", id), data, "from node %d to %d", a.node.i, to.node.i)
}

// Answer is the result of a question.
type Answer struct {
	IDs  []rocl.GID
	How  string // "" if the question was answered, else no, partial, or another error
	Why  string `json:",omitempty"` // the error of a partial answer
	Took time.Duration
}

const (
	definite = "no"
	partial  = "partial"
)

func answer(began time.Time, err error, ids ...rocl.GID) Answer {
	a := Answer{IDs: ids, Took: time.Since(began)}
	switch {
	case err == nil:
	case errors.Is(err, rocl.ErrNotFound):
		a.How = definite
	case errors.Is(err, directory.ErrPartial):
		a.How, a.Why = partial, err.Error()
	default:
		a.How = err.Error()
	}
	return a
}

// A Letter is a message to send.
type Letter struct {
	To   rocl.GID
	Data string
}

// Load describes questions that an agent asks all the time: one question each Every, of the
// patterns in turn. An answer other than the wanted one counts as failed.
type Load struct {
	Every time.Duration
	Find  []rocl.Match
	Want  []rocl.GID
}

// Report is the result of a load.
type Report struct {
	Asked  int
	Failed []string // the first hundred
	Took   []time.Duration
}

func (r *Report) add(o Report) {
	r.Asked += o.Asked
	r.Failed = append(r.Failed, o.Failed...)
	r.Took = append(r.Took, o.Took...)
}

// quantile returns a quantile of the times taken.
func (r *Report) quantile(q float64) time.Duration {
	if len(r.Took) == 0 {
		return 0
	}
	slices.Sort(r.Took)
	return r.Took[min(int(q*float64(len(r.Took))), len(r.Took)-1)].Round(10 * time.Microsecond)
}

func (r *Report) String() string {
	return fmt.Sprintf("%d questions, %d failed; p50 %v, p99 %v, p99.9 %v, longest %v", r.Asked, len(r.Failed), r.quantile(0.5), r.quantile(0.99), r.quantile(0.999), r.quantile(1))
}

// Agent is the side of an agent that runs in the agent's process. Its methods are called over rpc.
type Agent struct {
	c  *rocl.Context
	mu sync.Mutex
	rs map[rocl.GID]*rocl.Resource
	me *rocl.Resource

	stop   chan struct{}
	report chan Report

	ends  Ends
	term  *election.Term
	views []*view
	churn *churn
}

const testTimeout = 20 * time.Second

// brief returns the context of one operation.
func brief() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), testTimeout)
}

// resource returns a resource of the agent.
func (a *Agent) resource(id rocl.GID) (*rocl.Resource, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.rs[id]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("%v is not here", id)
}

func (a *Agent) Register(attrs rocl.Attrs, id *rocl.GID) error {
	ctx, cancel := brief()
	defer cancel()
	r, err := a.c.Register(ctx, attrs)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.rs[r.ID()], a.me = r, r
	a.mu.Unlock()
	*id = r.ID()
	return nil
}

func (a *Agent) Find(m rocl.Match, out *Answer) error {
	*out = a.find(m)
	return nil
}

func (a *Agent) find(m rocl.Match) Answer {
	ctx, cancel := brief()
	defer cancel()
	began := time.Now()
	f, err := a.c.Find(ctx, m)
	return answer(began, err, f.ID)
}

func (a *Agent) FindAll(m rocl.Match, out *Answer) error {
	ctx, cancel := brief()
	defer cancel()
	began := time.Now()
	var ids []rocl.GID
	var end error
	for f, err := range a.c.FindAll(ctx, m) {
		if err != nil {
			end = err
			break
		}
		ids = append(ids, f.ID)
	}
	slices.SortFunc(ids, rocl.GID.Compare)
	*out = answer(began, end, ids...)
	return nil
}

func (a *Agent) Lookup(id rocl.GID, out *Answer) error {
	ctx, cancel := brief()
	defer cancel()
	began := time.Now()
	f, err := a.c.Lookup(ctx, id)
	*out = answer(began, err, f.ID)
	return nil
}

func (a *Agent) Send(l Letter, how *string) error {
	ctx, cancel := brief()
	defer cancel()
	if err := a.me.SendBytes(ctx, l.To, 1, []byte(l.Data)); err != nil {
		*how = err.Error()
	}
	return nil
}

func (a *Agent) Recv(id rocl.GID, data *string) error {
	r, err := a.resource(id)
	if err != nil {
		return err
	}
	ctx, cancel := brief()
	defer cancel()
	m, err := r.Recv(ctx)
	if err != nil {
		return err
	}
	*data = string(m.Bytes())
	m.Release()
	return nil
}

// Addresses appends to out the addresses at which the context of a resource can be reached.
func (a *Agent) Addresses(id rocl.GID, out *[]string) error {
	ctx, cancel := brief()
	defer cancel()
	f, err := a.c.Lookup(ctx, id.Context())
	if err != nil {
		return err
	}
	for name, value := range f.Attrs.All() {
		if string(name) == rocl.AttrAddr {
			*out = append(*out, string(value))
		}
	}
	return nil
}

// Routes returns the routes of the agent's context.
func (a *Agent) Routes(_ struct{}, out *[]rocl.Route) error {
	*out = a.c.Routes()
	return nil
}

// Get reads a page of the node's daemon.
func (a *Agent) Get(url string, body *string) error {
	c := http.Client{Timeout: testTimeout}
	r, err := c.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	*body = string(b)
	return err
}

// Begin begins a load.
func (a *Agent) Begin(l Load, _ *struct{}) error {
	a.stop, a.report = make(chan struct{}), make(chan Report, 1)
	go a.load(l)
	return nil
}

func (a *Agent) load(l Load) {
	var mu sync.Mutex
	var r Report
	var busy sync.WaitGroup
	tick := time.NewTicker(l.Every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-a.stop:
			busy.Wait()
			a.report <- r
			return
		}
		busy.Go(func() {
			m, want := l.Find[i%len(l.Find)], l.Want[i%len(l.Find)]
			at := time.Now()
			got := a.find(m)
			mu.Lock()
			defer mu.Unlock()
			r.Asked++
			r.Took = append(r.Took, got.Took)
			if (got.How != "" || got.IDs[0] != want) && len(r.Failed) < 100 {
				r.Failed = append(r.Failed, fmt.Sprintf("%s %v: %s after %v", at.Format("15:04:05.000"), m, got.How, got.Took))
			}
		})
	}
}

// End ends the load and returns its report.
func (a *Agent) End(_ struct{}, r *Report) error {
	close(a.stop)
	*r = <-a.report
	return nil
}

// agentMain is the main function of the agent's process.
func agentMain(socket string) int {
	ctx, cancel := brief()
	defer cancel()
	giveUp, err := time.ParseDuration(os.Getenv(envGiveUp))
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	a := &Agent{rs: map[rocl.GID]*rocl.Resource{}}
	c, err := rocl.Open(ctx, rocl.JoinOnly(), rocl.WithSocket(socket), rocl.WithGiveUp(giveUp), rocl.WithLinger(time.Second))
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	defer c.Close()
	s := rpc.NewServer()
	a.c = c
	defer a.unwatch()
	if err := s.Register(a); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	s.ServeCodec(jsonrpc.NewServerCodec(&pipes{os.Stdin, os.Stdout}))
	return 0
}
