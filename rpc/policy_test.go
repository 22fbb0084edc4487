// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

// A fleet is servers whose call "do" does what f says of the number of the server.
type fleet struct {
	servers []*rpc.Server
	calls   []atomic.Int64 // handlers that have begun, by server
	c       *rpc.Client
	other   *rocl.Context
	picked  atomic.Int64 // providers of inOrder whose attempts have not ended
}

var errDo = errors.New("on purpose")

// inFleet runs run in virtual time with a fleet of n servers.
func inFleet(t *testing.T, n int, f func(ctx context.Context, server int) error, run func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		fl := &fleet{calls: make([]atomic.Int64, n), other: cl.Open(0)}
		for i := range n {
			s := try.Get(rpc.NewServer(t.Context(), cl.Open(0), rocl.Attrs{"type": "do"}, rpc.WithCall("do", func(ctx context.Context, _ int) (int, error) {
				fl.calls[i].Add(1)
				return i, f(ctx, i)
			})))(t)
			fl.servers = append(fl.servers, s)
			defer s.Close(context.Background())
		}
		fl.c = try.Get(rpc.NewClient(t.Context(), fl.other))(t)
		defer fl.c.Close()
		run(t, fl)
		synctest.Wait()
		try.Equal(t, fl.picked.Load(), 0, "picks that were not given back")
	})
}

// inOrder is a Picker that prefers the servers in their order.
func (f *fleet) inOrder(_ context.Context, not []rocl.GID) (rocl.GID, func(error), error) {
	for _, s := range f.servers {
		if !slices.Contains(not, s.ID()) {
			f.picked.Add(1)
			return s.ID(), func(error) { f.picked.Add(-1) }, nil
		}
	}
	return rocl.GID{}, nil, rocl.ErrNotFound
}

// do calls "do", and returns which server has answered, and how long that took in virtual time.
func (f *fleet) do(ctx context.Context, p rpc.Policy, opts ...rpc.Option) (server int, took time.Duration, err error) {
	begun := time.Now()
	a, err := rpc.CallAny[int, int](ctx, f.c, rocl.Match{"type": "do"}, "do", 0, append(opts, rpc.WithPolicy(p))...)
	return a.Value, time.Since(begun), err
}

func is(ms int, took time.Duration) bool {
	return took.Round(time.Millisecond) == time.Duration(ms)*time.Millisecond
}

// hangs waits until the context of a handler ends.
func hangs(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }

// Promise (Package rpc): A policy makes another attempt only if MayRetry reports true, or the call
// is declared idempotent. See also TestHedge.
func TestPolicyRetries(t *testing.T) {
	inFleet(t, 3, func(context.Context, int) error { return nil }, func(t *testing.T, f *fleet) {
		f.servers[0].Deregister("do")
		f.servers[1].Deregister("do")
		for range 20 { // also by search: each attempt goes to another server
			if n, _, err := f.do(t.Context(), rpc.Policy{Attempts: 3}); n != 2 || err != nil {
				t.Errorf("server %d, %v", n, err)
			}
		}
		_, _, err := f.do(t.Context(), rpc.Policy{Attempts: 2}, rpc.Among(f.inOrder))
		if !errors.Is(err, rpc.ErrUnknownCall) || !rpc.MayRetry(err) || !strings.Contains(err.Error(), "after 2 attempts") {
			t.Error(err)
		}
		_, _, err = f.do(t.Context(), rpc.Policy{Attempts: 3, RetryOn: []error{rpc.ErrBusy}}, rpc.Among(f.inOrder))
		if !errors.Is(err, rpc.ErrUnknownCall) || strings.Contains(err.Error(), "attempts") {
			t.Error(err)
		}
		a, err := rpc.CallAny[string, int](t.Context(), f.c, nil, "do", "text", rpc.Among(f.inOrder), rpc.WithPolicy(rpc.Policy{Attempts: 9}))
		if a.Provider != f.servers[2].ID() || !errors.Is(err, rocl.ErrValue) { // the types do not fit, wherever
			t.Error(a, err)
		}
	})
	fails := func(context.Context, int) error { return fmt.Errorf("%w: %w", errDo, rpc.ErrBusy) }
	inFleet(t, 2, fails, func(t *testing.T, f *fleet) {
		for _, x := range []struct {
			p    rpc.Policy
			want int64
		}{
			{rpc.Policy{Attempts: 4}, 1}, // the handler has run
			{rpc.Policy{Attempts: 4, Idempotent: true}, 1},
			{rpc.Policy{Attempts: 4, Idempotent: true, RetryOn: []error{rpc.ErrBusy}}, 4},
			{rpc.Policy{Attempts: 4, RetryOn: []error{rpc.ErrBusy}}, 1},
		} {
			f.calls[0].Store(0)
			f.calls[1].Store(0)
			_, _, err := f.do(t.Context(), x.p)
			if n := f.calls[0].Load() + f.calls[1].Load(); n != x.want || !errors.Is(err, rpc.ErrBusy) || rpc.MayRetry(err) {
				t.Errorf("%+v: %d handlers, %v", x.p, n, err)
			}
		}
	})
}

// The error after several attempts says whether a handler of any of them may have run.
func TestMayRetryAfterAttempts(t *testing.T) {
	inFleet(t, 2, func(ctx context.Context, i int) error { return hangs(ctx) }, func(t *testing.T, f *fleet) {
		f.servers[1].Deregister("do")
		_, took, err := f.do(t.Context(), rpc.Policy{Attempts: 2, Attempt: time.Second, Idempotent: true, Backoff: rpc.Backoff{Initial: 1}}, rpc.Among(f.inOrder))
		if !errors.Is(err, rpc.ErrUnknownCall) || rpc.MayRetry(err) || !is(1000, took) {
			t.Error(took, err)
		}
	})
}

// The deadlines of a policy hold for each attempt and for the whole call.
// Pauses grow as it says.
func TestPolicyTimes(t *testing.T) {
	ended := make(chan error, 10)
	hang := func(ctx context.Context, i int) error {
		if i == 0 {
			err := hangs(ctx)
			ended <- err
			return err
		}
		return nil
	}
	inFleet(t, 2, hang, func(t *testing.T, f *fleet) {
		first := rpc.Among(f.inOrder)
		n, took, err := f.do(t.Context(), rpc.Policy{Attempts: 2, Attempt: time.Second, Idempotent: true, Backoff: rpc.Backoff{Initial: 1}}, first)
		if n != 1 || err != nil || !is(1000, took) {
			t.Error(n, took, err)
		}
		try.Fails(<-ended)(t, context.DeadlineExceeded)
		_, took, err = f.do(t.Context(), rpc.Policy{Attempts: 2, Attempt: time.Second}, first)
		if !errors.Is(err, context.DeadlineExceeded) || rpc.MayRetry(err) || !is(1000, took) {
			t.Error(took, err)
		}
		_, took, err = f.do(t.Context(), rpc.Policy{Timeout: 3 * time.Second}, first)
		if !errors.Is(err, context.DeadlineExceeded) || !is(3000, took) {
			t.Error(took, err)
		}
		f.servers[0].Deregister("do")
		f.servers[1].Deregister("do")
		pauses := rpc.Policy{Attempts: 4, Backoff: rpc.Backoff{Initial: time.Second, Max: 3 * time.Second, Multiplier: 2}}
		_, took, err = f.do(t.Context(), pauses)
		if !errors.Is(err, rpc.ErrUnknownCall) || took < 4800*time.Millisecond || took > 7200*time.Millisecond { // 1 + 2 + 3 s, each varied by a fifth
			t.Error(took, err)
		}
		pauses.Timeout = 1500 * time.Millisecond // it would end in the second pause
		_, took, err = f.do(t.Context(), pauses)
		if !errors.Is(err, rpc.ErrUnknownCall) || took > 1300*time.Millisecond {
			t.Error(took, err)
		}
	})
}

// Promise (Package rpc): An idempotent call is hedged after a delay. The first result counts, and
// the other handlers are cancelled.
func TestHedge(t *testing.T) {
	ended := make(chan error, 10)
	hang := func(ctx context.Context, i int) error {
		if i < 2 {
			err := hangs(ctx)
			ended <- err
			return err
		}
		return nil
	}
	inFleet(t, 4, hang, func(t *testing.T, f *fleet) {
		p := rpc.Policy{Attempts: 4, Hedge: 100 * time.Millisecond, Idempotent: true}
		n, took, err := f.do(t.Context(), p, rpc.Among(f.inOrder))
		if n != 2 || err != nil || !is(200, took) {
			t.Error(n, took, err)
		}
		try.Fails(<-ended)(t, context.Canceled)
		try.Fails(<-ended)(t, context.Canceled)
		try.Equal(t, f.calls[3].Load(), 0, "attempts beyond the result")
		p.Attempts = 2
		p.Timeout = time.Second
		_, took, err = f.do(t.Context(), p, rpc.Among(f.inOrder))
		if !errors.Is(err, context.DeadlineExceeded) || rpc.MayRetry(err) || !is(1000, took) {
			t.Error(took, err)
		}
		f.servers[0].Deregister("do")
		f.servers[1].Deregister("do")
		p.Attempts = 3
		n, took, err = f.do(t.Context(), p, rpc.Among(f.inOrder)) // a refusal begins the next attempt
		if n != 2 || err != nil || !is(0, took) {
			t.Error(n, took, err)
		}
		p.Idempotent = false
		_, _, err = f.do(t.Context(), p)
		try.Fails(err)(t, rpc.ErrPolicy)
	})
	slow := func(context.Context, int) error { time.Sleep(300 * time.Millisecond); return nil } // in virtual time
	inFleet(t, 1, slow, func(t *testing.T, f *fleet) {                                          // the second attempt waits for another server
		p := rpc.Policy{Attempts: 3, Hedge: 100 * time.Millisecond, Idempotent: true}
		n, took, err := f.do(t.Context(), p, rpc.Among(func(ctx context.Context, not []rocl.GID) (rocl.GID, func(error), error) {
			id, done, err := f.inOrder(ctx, not)
			if err != nil {
				err = hangs(ctx)
			}
			return id, done, err
		}))
		if n != 0 || err != nil || !is(300, took) {
			t.Error(n, took, err)
		}
	})
}

// Promise (Package rpc): While the circuit of a provider is open, no call with a policy goes there.
func TestCircuitOfCalls(t *testing.T) {
	var isWell atomic.Bool
	f := func(ctx context.Context, i int) error {
		if i == 0 && !isWell.Load() {
			return hangs(ctx)
		}
		return nil
	}
	inFleet(t, 2, f, func(t *testing.T, f *fleet) {
		p := rpc.Policy{Attempts: 2, Attempt: 100 * time.Millisecond, Idempotent: true, Circuit: rpc.Circuit{Failures: 3, Rest: 10 * time.Second}}
		call := func(want int) {
			t.Helper()
			if n, _, err := f.do(t.Context(), p, rpc.Among(f.inOrder)); n != want || err != nil {
				t.Fatalf("server %d, %v", n, err)
			}
		}
		for range 10 {
			call(1)
		}
		try.Equal(t, f.calls[0].Load(), 3, "calls before the circuit is open")
		for range 30 { // the search leaves the provider out too
			if n, _, err := f.do(t.Context(), p); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		isAlone := func(yield func(rpc.Answer[int], error) bool) {
			rpc.CallAll[int, int](t.Context(), f.c, rocl.Match{"type": "do"}, "do", 0, rpc.WithPolicy(p))(yield)
		}
		for a, err := range isAlone {
			if (a.Provider == f.servers[0].ID()) != errors.Is(err, rpc.ErrCircuit) {
				t.Error(a, err)
			}
		}
		time.Sleep(11 * time.Second) // virtual: the circuit is half open
		call(1)
		try.Equal(t, f.calls[0].Load(), 4, "calls with the trial")
		call(1)
		isWell.Store(true)
		call(1)
		time.Sleep(11 * time.Second) // virtual: it is half open again
		call(0)
		call(0)
	})
	inFleet(t, 1, func(ctx context.Context, _ int) error { return hangs(ctx) }, func(t *testing.T, f *fleet) {
		p := rpc.Policy{Attempt: time.Second, Circuit: rpc.Circuit{Failures: 1}}
		try.Fails(f.do(t.Context(), p))(t, context.DeadlineExceeded)
		_, _, err := f.do(t.Context(), p)
		if !errors.Is(err, rpc.ErrCircuit) || !rpc.MayRetry(err) {
			t.Error(err)
		}
		_, _, err = f.do(t.Context(), p, rpc.Among(f.inOrder))
		try.Fails(err)(t, rpc.ErrCircuit)
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		p.Circuit.Failures, p.Attempt = 0, 0
		try.Fails(f.do(ctx, p))(t, context.DeadlineExceeded)
	})
}

// A caller that gives up says nothing about its provider.
func TestCircuitOfCallers(t *testing.T) {
	inFleet(t, 1, func(ctx context.Context, _ int) error { return hangs(ctx) }, func(t *testing.T, f *fleet) {
		for range 3 {
			ctx, end := context.WithTimeout(t.Context(), time.Second)
			try.Fails(f.do(ctx, rpc.Policy{Circuit: rpc.Circuit{Failures: 1}}))(t, context.DeadlineExceeded)
			end()
		}
	})
}

func TestWaitForReady(t *testing.T) {
	inFleet(t, 0, nil, func(t *testing.T, f *fleet) {
		p := rpc.Policy{WaitForReady: true, Timeout: time.Minute}
		_, took, err := f.do(t.Context(), p)
		if !errors.Is(err, context.DeadlineExceeded) || !rpc.MayRetry(err) || !is(60_000, took) {
			t.Error(took, err)
		}
		time.AfterFunc(10*time.Second, func() {
			_ = rpc.Serve(t.Context(), f.other, rocl.Attrs{"type": "do"}, rpc.WithCall("do", func(context.Context, int) (int, error) { return 7, nil }))
		})
		n, took, err := f.do(t.Context(), p)
		if n != 7 || err != nil || !is(10_000, took) {
			t.Error(n, took, err)
		}
	})
}

// CallAll ends when enough have answered, and says if too few have.
func TestEnough(t *testing.T) {
	ended := make(chan error, 10)
	f := func(ctx context.Context, i int) error {
		if i == 0 {
			err := hangs(ctx)
			ended <- err
			return err
		}
		if i == 1 {
			return errDo
		}
		return nil
	}
	inFleet(t, 5, f, func(t *testing.T, f *fleet) {
		all := func(p rpc.Policy) (n int, errs []error) {
			for a, err := range rpc.CallAll[int, int](t.Context(), f.c, rocl.Match{"type": "do"}, "do", 0, rpc.WithPolicy(p)) {
				if err != nil {
					errs = append(errs, err)
				} else if n++; a.Value < 2 {
					t.Error(a)
				}
			}
			return n, errs
		}
		if n, errs := all(rpc.Policy{Enough: 3}); n != 3 || len(errs) > 1 {
			t.Error(n, errs)
		}
		synctest.Wait()
		if f.calls[0].Load() > 0 { // it may have been cancelled before it began
			try.Fails(<-ended)(t, context.Canceled)
		}
		n, errs := all(rpc.Policy{Enough: 4, Timeout: time.Second})
		if n != 3 || len(errs) != 3 || !errors.Is(errs[2], rpc.ErrTooFew) || !strings.Contains(errs[2].Error(), "3 of 4") {
			t.Error(n, errs)
		}
	})
}

const service = `{"methodConfig": [
	{"name": [{"service": "store", "method": "put"}], "timeout": "1.5s", "waitForReady": true, "enough": 2,
	 "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "1s", "backoffMultiplier": 1.5,
	                 "retryableStatusCodes": ["UNAVAILABLE", 8], "perAttemptRecvTimeout": "0.3s"},
	 "circuit": {"failures": 5, "rest": "2s"}},
	{"name": [{"service": "store"}, {"method": "get"}], "hedgingPolicy": {"maxAttempts": 3, "hedgingDelay": "0.02s"}},
	{"name": [{}], "idempotent": true}
]}`

// Promise (Package rpc): Policies come from JSON in the form of gRPC's service configuration. Any
// key that has no effect here is refused by name.
func TestParsePolicies(t *testing.T) {
	got := try.Get(rpc.ParsePolicies([]byte(service)))(t)
	put := got["store/put"]
	if put.Timeout != 1500*time.Millisecond || !put.WaitForReady || put.Attempts != 4 || put.Attempt != 300*time.Millisecond || put.Idempotent || put.Enough != 2 ||
		put.Backoff != (rpc.Backoff{Initial: 10 * time.Millisecond, Max: time.Second, Multiplier: 1.5}) || put.Circuit != (rpc.Circuit{Failures: 5, Rest: 2 * time.Second}) {
		t.Errorf("%+v", put)
	}
	on := errors.Join(put.RetryOn...)
	if !errors.Is(on, rocl.ErrGone) || !errors.Is(on, rpc.ErrBusy) || errors.Is(on, rpc.ErrPanic) {
		t.Error(on)
	}
	for _, name := range []string{"store/", "get"} {
		if p := got[name]; !p.Idempotent || p.Attempts != 3 || p.Hedge != 20*time.Millisecond {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if p, has := got[""]; !has || !p.Idempotent || p.Attempts != 0 || len(got) != 4 {
		t.Errorf("%+v", got)
	}
	for config, want := range map[string]string{
		``:                           "the configuration: not an object",
		`[]`:                         "the configuration: not an object",
		`{} {}`:                      "more than one value",
		`{"loadBalancingConfig": 1}`: "loadBalancingConfig: Finding",
		`{"methodConfig": {}}`:       "methodConfig: not an array",
		`{"methodConfig": [{}]}`:     "methodConfig[0].name: the key is missing",
		`{"methodConfig": [{"name": [{}], "x": 1}]}`:                                                                   "methodConfig[0].x: unknown key",
		`{"methodConfig": [{"name": [{}], "name": [{}]}]}`:                                                             "methodConfig[0].name: the key occurs twice",
		`{"methodConfig": [{"name": [{}, {}]}]}`:                                                                       `"" has two policies`,
		`{"methodConfig": [{"name": [{"package": "a"}]}]}`:                                                             "methodConfig[0].name[0].package: unknown key",
		`{"methodConfig": [{"name": [{}], "timeout": "1"}]}`:                                                           "methodConfig[0].timeout: not a duration",
		`{"methodConfig": [{"name": [{}], "timeout": "-1s"}]}`:                                                         "methodConfig[0].timeout: not a duration",
		`{"methodConfig": [{"name": [{}], "waitForReady": null}]}`:                                                     "methodConfig[0].waitForReady: not a bool",
		`{"methodConfig": [{"name": [{}], "maxRequestMessageBytes": 1}]}`:                                              "see CallOverflow",
		`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 2}}]}`:                                        "methodConfig[0].retryPolicy.initialBackoff: the key is missing",
		`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 1}}]}`:                                        "methodConfig[0].retryPolicy.maxAttempts: not a number from 2 to 100",
		`{"methodConfig": [{"name": [{}], "retryPolicy": {"retryableStatusCodes": ["UNKNOWN"]}}]}`:                     `retryableStatusCodes[0]: no error of rocl has the code "UNKNOWN"`,
		`{"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": 2}, "idempotent": false}]}`:                 "methodConfig[0].idempotent: hedging needs",
		`{"methodConfig": [{"name": [{}], "circuit": {"failures": 99999999999999}}]}`:                                  "methodConfig[0].circuit.failures: not a number",
		`{"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": 2, "hedgingDelay": "1s", "retry": true}}]}`: "hedgingPolicy.retry: unknown key",
	} {
		_, err := rpc.ParsePolicies([]byte(config))
		if !errors.Is(err, rpc.ErrPolicy) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}

// FuzzParsePolicies finds no configuration whose policies are refused by calls.
func FuzzParsePolicies(f *testing.F) {
	f.Add([]byte(service))
	f.Add([]byte(`{"methodConfig": [{"name": [{"method": "a/"}], "timeout": "0s"}]}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		all, err := rpc.ParsePolicies(config)
		if err != nil && !errors.Is(err, rpc.ErrPolicy) {
			t.Error(err)
		}
		for name, p := range all {
			if err := p.Check(); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}

// The policy of the longest name counts, and one of a call counts more.
func TestCallPolicies(t *testing.T) {
	for name, want := range map[string]int{"store/put": 4, "store/get": 3, "store": 0, "get": 3, "gets": 0, "a/b/c": 7, "a/c": 0} {
		all := try.Get(rpc.ParsePolicies([]byte(service)))(t)
		all["a/b/"] = rpc.Policy{Attempts: 7}
		try.Equal(t, rpc.PolicyOf(all, name).Attempts, want, "%s", name)
	}
	inFleet(t, 1, func(ctx context.Context, _ int) error { return hangs(ctx) }, func(t *testing.T, f *fleet) {
		c := try.Get(rpc.NewClient(t.Context(), f.other, rpc.CallPolicies(rpc.Policies{"do": {Timeout: time.Second}})))(t)
		defer c.Close()
		begun := time.Now()
		_, err := rpc.CallAny[int, int](t.Context(), c, nil, "do", 0)
		if !errors.Is(err, context.DeadlineExceeded) || !is(1000, time.Since(begun)) {
			t.Error(err)
		}
	})
}
