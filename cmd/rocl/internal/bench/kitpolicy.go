// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// kitPolicyCases measure calls with a policy that meet no failure, beside the same calls without.
var kitPolicyCases = []comparison{
	policyCase("kit policy", "CallAny without a policy",
		rpc.Policy{Attempts: 4, Circuit: rpc.Circuit{Failures: 5}}, 0),
	policyCase("kit policy with deadlines", "CallAny with a context that has a deadline",
		rpc.Policy{Attempts: 4, Attempt: policyTime, Circuit: rpc.Circuit{Failures: 5}}, policyTime),
}

// policyTime is the deadline of a call.
const policyTime = 10 * time.Second

// policyCase compares calls with a policy to calls without, whose contexts last for d, if that is
// not 0.
func policyCase(name, what string, policy rpc.Policy, d time.Duration) comparison {
	with := rpc.WithPolicy(policy)
	return comparison{bench: "kit", name: name, when: inKit("policy"), set: oneShared, what: what, unit: "µs", limits: []Limit{atMost("ratio", 1.15, 1.03)},
		bare: anyTrip(func(c *caller) {
			ctx, end := c.ctx, func() {}
			if d > 0 {
				ctx, end = context.WithTimeout(ctx, d)
			}
			must(rpc.CallAny[struct{}, struct{}](ctx, c.client, benchCalls, rpcCalls, struct{}{}))
			end()
		}),
		ours: anyTrip(func(c *caller) {
			must(rpc.CallAny[struct{}, struct{}](c.ctx, c.client, benchCalls, rpcCalls, struct{}{}, with))
		}), finish: besideCall}
}

// benchCalls is the pattern of the peer's server.
var benchCalls = rocl.Match{"bench": "calls"}

// anyTrip makes calls by call of a server that runs its handlers inline.
func anyTrip(call func(c *caller)) side {
	return func(p *pair) loop {
		return p.calling("calls-inline", func(c *caller, n int, t *times) { t.round(n, func() { call(c) }) })
	}
}

func besideCall(_ *pair, r *Result, _ []*times) []*Result {
	r.Size = 0
	return nil
}

func oneShared(o *options) {
	one(o)
	o.transport = "shm"
}
