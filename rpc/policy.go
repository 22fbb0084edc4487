// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
)

// Errors of calls with a [Policy].
var (
	ErrCircuit = errors.New("rpc: the provider is left alone, because calls to it have failed")
	ErrPolicy  = errors.New("rpc: the policy is invalid")
	ErrTooFew  = errors.New("rpc: fewer answers than the policy wants")
)

// A Policy says what [CallAny] and [CallAll] do beside a call: deadlines, further attempts at other
// providers, and which providers are left alone. The zero Policy does nothing. [WithPolicy] and
// [CallPolicies] set policies, and [ParsePolicies] reads them from JSON.
//
// Another attempt is made only if that does no work twice, or if the program says that this does no
// harm: if [MayRetry] reports true for the error, or the call is Idempotent. Interceptors of the
// client see each attempt as a call.
type Policy struct {
	Timeout time.Duration // of the whole call, all attempts and pauses; 0: only the caller's context limits it
	Attempt time.Duration // of each attempt; 0: no limit of its own

	Attempts int     // most attempts; 0 and 1: one. CallAll makes them at the same provider
	Backoff  Backoff // pauses between attempts

	// RetryOn limits further attempts to errors that match one of these. Without it, further
	// attempts follow errors for which MayRetry reports true, except that the types do not fit or
	// a value is too large, and, if the call is Idempotent, those that say that the provider has
	// failed: rocl.ErrGone, rocl.ErrUnreachable, rocl.ErrNoReply, and the end of an Attempt.
	RetryOn []error

	// Idempotent says that the handler may run several times for one call, also at the same time.
	Idempotent bool
	// Hedge, if not 0, makes CallAny call a further provider, up to Attempts, each time that so
	// long has passed without an answer, and at once after an error that allows a further attempt.
	// The first result counts, and the contexts of the other handlers end. The call must be
	// Idempotent. There are no pauses.
	Hedge time.Duration

	WaitForReady bool // CallAny waits until a provider matches, as long as its context lasts
	Enough       int  // CallAll ends after so many results; 0: it yields all answers

	Circuit Circuit
}

// A Backoff says how long the pauses between attempts are: the first one Initial, each further one
// Multiplier times as long, but at most Max. Each is varied by a fifth. Zero fields are 10 ms, 1 s
// and 2.
type Backoff struct {
	Initial, Max time.Duration
	Multiplier   float64
}

// A Circuit leaves a provider alone for the time Rest, 1 s if that is 0, after Failures calls in a
// row have failed. Then one call goes there, on which the next Rest or the end of it depends. A
// provider fails if it has ended, cannot be reached, has no room, drains, or does not answer before
// the deadlines of the policy. Errors of handlers are no failures. 0 Failures: there is no circuit.
//
// Circuits belong to the [Client]: all its calls with a policy share them.
type Circuit struct {
	Failures int
	Rest     time.Duration
}

// WithPolicy makes a CallAny or CallAll follow a policy, which replaces that of [CallPolicies]. The
// other forms of calls ignore it. The option may be used for any number of calls.
func WithPolicy(p Policy) Option { return func(c *config) { c.policy = &p } }

// CallPolicies gives the calls of a client policies by their names. The key "" is for all calls
// without an own policy, and a key that ends in "/" for all calls whose name begins with it. The
// longest key counts.
func CallPolicies(p Policies) ClientOption {
	return func(c *Client) {
		c.policies = map[string]*Policy{}
		for name, v := range p {
			c.policies[name] = &v
		}
	}
}

// Policies has policies by the names of calls: see [CallPolicies].
type Policies map[string]Policy

var noPolicy Policy // does nothing; it is not changed

// policy returns the policy of a call.
func (c *Client) policy(name string, cfg *config) *Policy {
	switch p := c.policies[name]; {
	case cfg.policy != nil:
		return cfg.policy
	case p != nil:
		return p
	case len(c.policies) == 0:
		return &noPolicy
	}
	for {
		name = name[:strings.LastIndexByte(name, '/')+1]
		if p := c.policies[name]; p != nil {
			return p
		}
		if name == "" {
			return &noPolicy
		}
		name = name[:len(name)-1]
	}
}

// A Picker chooses the provider of a call, but none of not, if it can: those are the providers of
// earlier attempts, and those that a circuit leaves alone. If there is no other one it fails, for
// example with rocl.ErrNotFound, and is asked again without those of earlier attempts. If done is
// not nil, it is called once, when the attempt has ended, with its error; nil also stands for an
// attempt that was not made. A Picker may wait until ctx ends. Goroutines call it at once.
type Picker func(ctx context.Context, not []rocl.GID) (provider rocl.GID, done func(error), err error)

// Among makes [CallAny] call the provider that a Picker chooses, such as one of a set that is kept
// up to date, in place of a search for one. The attributes of the call, Finding and Nearest are
// then not used.
func Among(p Picker) Option { return func(c *config) { c.pick = p } }

// check returns an error if the policy is invalid.
func (p *Policy) check() error {
	switch {
	case p.Timeout < 0 || p.Attempt < 0 || p.Hedge < 0 || p.Circuit.Rest < 0 || p.Backoff.Initial < 0 || p.Backoff.Max < 0:
		return fmt.Errorf("%w: a duration is negative", ErrPolicy)
	case p.Attempts < 0 || p.Attempts > mostAttempts || p.Enough < 0 || p.Circuit.Failures < 0:
		return fmt.Errorf("%w: %d attempts, %d answers, %d failures; attempts are at most %d, and none is negative", ErrPolicy, p.Attempts, p.Enough, p.Circuit.Failures, mostAttempts)
	case !(p.Backoff.Multiplier >= 0): // also NaN
		return fmt.Errorf("%w: a multiplier of %v", ErrPolicy, p.Backoff.Multiplier)
	case p.Hedge > 0 && !p.Idempotent:
		return fmt.Errorf("%w: hedging of a call that is not Idempotent", ErrPolicy)
	}
	return nil
}

// mostAttempts is the most attempts of one call.
const mostAttempts = 100

// retries reports whether a further attempt may follow one that ended with err. ctx is the context
// of the program.
func (p *Policy) retries(ctx context.Context, err error) bool {
	may := MayRetry(err)
	switch {
	case !may && !p.Idempotent:
		return false
	case p.RetryOn != nil:
		return slices.ContainsFunc(p.RetryOn, func(kind error) bool { return errors.Is(err, kind) })
	case may:
		return !errors.Is(err, rocl.ErrValue) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrStream)
	}
	return outcomeOf(ctx, err) == outcomeFailed
}

// pause returns the length of the pause after n attempts, n from 1.
func (b *Backoff) pause(n int) time.Duration {
	d := float64(cmp.Or(b.Initial, 10*time.Millisecond))
	most := float64(cmp.Or(b.Max, time.Second))
	for range n - 1 {
		if d *= cmp.Or(b.Multiplier, 2); d >= most {
			break
		}
	}
	return time.Duration(min(d, most) * (0.8 + 0.4*rand.Float64()))
}

// wait waits for a pause. It reports false at once if ctx would end before.
func wait(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A target says where the attempts of a call go: to one provider, or to any that pick or a search
// with the pattern attrs gives.
type target struct {
	fixed rocl.GID // zero: there is a choice
	attrs rocl.Attributes
	tried [8]rocl.GID // providers of the attempts so far, as many as have room
	n     int         // choices so far
}

// has reports whether an attempt has gone to a provider.
func (t *target) has(id rocl.GID) bool { return slices.Contains(t.tried[:min(t.n, len(t.tried))], id) }

// A choice is the provider of an attempt.
type choice struct {
	id      rocl.GID
	isTrial bool
	done    func(error) // nil: nothing is to be done
}

// end records that an attempt has ended with err. caller is the context of the program.
func (at *choice) end(caller context.Context, c *Client, p *Policy, err error) {
	if at.done != nil {
		at.done(err)
	}
	if p.Circuit.Failures > 0 {
		c.circuits.leave(at.id, &p.Circuit, at.isTrial, outcomeOf(caller, err))
	}
}

// choose returns the provider for the next attempt: one that the circuits let pass, and if there is
// one, another than those before.
func (c *Client) choose(ctx context.Context, t *target, cfg *config, p *Policy) (at choice, err error) {
	switch {
	case !t.fixed.IsZero():
		at.id = t.fixed
		if !c.lets(&at, p) {
			return at, ErrCircuit
		}
		return at, nil
	case cfg.pick != nil:
		at, err = c.pick(ctx, t, cfg, p)
	default:
		at, err = c.search(ctx, t, cfg, p)
	}
	if err == nil {
		if t.n < len(t.tried) {
			t.tried[t.n] = at.id
		}
		t.n++
	}
	return at, err
}

// lets reports whether the circuits let a call pass.
func (c *Client) lets(at *choice, p *Policy) (may bool) {
	if p.Circuit.Failures > 0 {
		may, at.isTrial = c.circuits.enter(at.id)
		return may
	}
	return true
}

// picksMost is how often a Picker is asked for the provider of one attempt.
const picksMost = 32

// pick returns a provider that the Picker chooses.
func (c *Client) pick(ctx context.Context, t *target, cfg *config, p *Policy) (at choice, err error) {
	not := slices.Clone(t.tried[:min(t.n, len(t.tried))])
	tried := len(not) // of not, which has those left alone behind them
	for range picksMost {
		at.id, at.done, err = cfg.pick(ctx, slices.Clone(not))
		switch {
		case err == nil && c.lets(&at, p):
			return at, nil
		case err == nil:
			if at.done != nil {
				at.done(nil)
			}
			if slices.Contains(not[tried:], at.id) {
				return at, ErrCircuit
			}
			not = append(not, at.id)
		case tried > 0 && ctx.Err() == nil:
			not, tried = not[tried:], 0
		case len(not) > 0:
			return at, ErrCircuit
		default:
			return at, err
		}
	}
	return at, ErrCircuit
}

// findsMost is how many searches for one provider are made before all are listed. Several spread
// the calls over the providers that are not left alone.
const findsMost = 3

// search returns a provider that the directory finds.
func (c *Client) search(ctx context.Context, t *target, cfg *config, p *Policy) (at choice, err error) {
	for range findsMost {
		at.id, err = c.provider(ctx, t.attrs, cfg)
		if errors.Is(err, rocl.ErrNotFound) && p.WaitForReady {
			if err = c.awaitProvider(ctx, t.attrs, cfg); err == nil {
				continue
			}
		}
		if err != nil {
			return at, err
		}
		if !t.has(at.id) && c.lets(&at, p) {
			return at, nil
		}
	}
	err = rocl.ErrNotFound
	var again choice // a provider of an earlier attempt
	for id, e := range c.providers(ctx, t.attrs, cfg) {
		if e != nil {
			if errors.Is(e, rocl.ErrPartial) {
				break
			}
			return at, e
		}
		if at.id, err = id, ErrCircuit; t.has(id) {
			again.id = cmp.Or(again.id, id)
		} else if c.lets(&at, p) {
			return at, nil
		}
	}
	if !again.id.IsZero() && c.lets(&again, p) {
		return again, nil
	}
	return at, err
}

// awaitProvider waits until a provider matches a.
func (c *Client) awaitProvider(ctx context.Context, a rocl.Attributes, cfg *config) error {
	l, err := servers(a)
	if err == nil {
		_, err = c.c.Await(ctx, l, 1, cfg.find...)
	}
	return err
}

// callAnyOf makes the attempts of a call.
func callAnyOf[In, Out any](ctx context.Context, c *Client, t *target, name string, in In, cfg *config, p *Policy) (a Answer[Out], err error) {
	if err := p.check(); err != nil {
		return a, fmt.Errorf("rpc: call %q: %w", name, err)
	}
	caller := ctx
	if p.Timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, p.Timeout)
		defer end()
	}
	if p.Hedge > 0 && t.fixed.IsZero() {
		return hedge[In, Out](ctx, caller, c, t, name, in, cfg, p)
	}
	mayHaveRun := false
	for n := 1; ; n++ {
		at, err := c.choose(ctx, t, cfg, p)
		if err != nil {
			err = fmt.Errorf("rpc: call %q: find a provider: %w", name, unsentError{err})
		} else {
			a.Provider = at.id
			a.Value, err = attempt[In, Out](ctx, c, at.id, name, in, cfg, p)
			at.end(caller, c, p, err)
		}
		if err == nil {
			return a, nil
		}
		mayHaveRun = mayHaveRun || !MayRetry(err)
		if n >= p.Attempts || ctx.Err() != nil || !p.retries(caller, err) || !wait(ctx, p.Backoff.pause(n)) {
			return a, afterAttempts(n, mayHaveRun, err)
		}
	}
}

// afterAttempts returns the error of a call after n attempts. err is that of the last one.
func afterAttempts(n int, mayHaveRun bool, err error) error {
	if n < 2 {
		return err
	}
	return &triedError{fmt.Errorf("after %d attempts: %w", n, err), mayHaveRun}
}

// attempt calls a provider once.
func attempt[In, Out any](ctx context.Context, c *Client, id rocl.GID, name string, in In, cfg *config, p *Policy) (Out, error) {
	if p.Attempt > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, p.Attempt)
		defer end()
	}
	return callWith[In, Out](ctx, c, id, name, in, cfg)
}

// hedge makes the attempts of a call beside each other. Each has a goroutine, which may outlive
// hedge for as long as its call takes to end. A Picker that waits does not delay the result of an
// earlier attempt.
func hedge[In, Out any](ctx, caller context.Context, c *Client, t *target, name string, in In, cfg *config, p *Policy) (a Answer[Out], err error) {
	type result struct {
		Answer[Out]
		err error
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	most := max(p.Attempts, 1)
	results := make(chan result, most)
	choosing := make(chan struct{}, 1) // has a value while an attempt uses t
	begun, running, mayHaveRun := 0, 0, false
	next := time.NewTimer(p.Hedge)
	defer next.Stop()
	begin := func() {
		if begun++; begun == most {
			next.Stop()
		} else {
			next.Reset(p.Hedge)
		}
		running++
		go func() {
			choosing <- struct{}{}
			at, err := c.choose(ctx, t, cfg, p)
			<-choosing
			if err != nil {
				results <- result{err: fmt.Errorf("rpc: call %q: find a provider: %w", name, unsentError{err})}
				return
			}
			v, err := attempt[In, Out](ctx, c, at.id, name, in, cfg, p)
			at.end(caller, c, p, err)
			results <- result{Answer[Out]{at.id, v}, err}
		}()
	}
	begin()
	for {
		select {
		case <-next.C:
			begin()
			continue
		case r := <-results:
			running--
			if r.err == nil {
				return r.Answer, nil
			}
			a, err = r.Answer, r.err
		}
		mayHaveRun = mayHaveRun || !MayRetry(err)
		retries := ctx.Err() == nil && p.retries(caller, err)
		if retries && begun < most {
			begin()
		} else if !retries || running == 0 {
			return a, afterAttempts(begun, mayHaveRun || running > 0, err)
		}
	}
}
