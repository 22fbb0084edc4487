// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/resource"
)

// DefaultMemory returns the default of WithMemory in control groups with these limits; 0 is no
// limit.
func DefaultMemory(l cgroup.Limits) int64 { return defaultMemory(l) }

// CacheSizes returns the numbers of owners, flows and addresses that are cached.
func CacheSizes(c *Context) (owners, flows, addrs int) { return c.targets.Sizes() }

// CacheOwner puts owner into the cache as the context that owns the resource id.
func CacheOwner(c *Context, id, owner GID) {
	c.targets.Forget(id)
	c.targets.Remember(&resource.Record{ID: id, Owner: owner})
}

// CacheAddrs puts urls into the cache as the addresses of the context peer.
func CacheAddrs(c *Context, peer GID, urls ...string) {
	r := resource.Record{ID: peer, Owner: peer}
	for _, u := range urls {
		_ = r.Attrs.AddString(AttrAddr, u)
	}
	c.targets.Remember(&r)
}

// AskRoutes sends a question for routes and does not wait for the answer.
func AskRoutes(c *Context, ctx context.Context, of GID, from *Resource) error {
	f, err := c.disp.Flow(of, 0)
	if err == nil {
		err = f.SendBytes(ctx, from.id.Serial(), 0x524f555445530001, nil)
	}
	return err
}

// Answers returns how many answers to questions for routes are under way.
func Answers(c *Context) int { return c.questions.Answers() }

// UseUpSerials lets the context have no serial number left.
func UseUpSerials(c *Context) { c.serial.Store(dispatch.LastSerial) }

// ActiveResources returns how many resources of a context have an activity.
func ActiveResources(c *Context) (n int) {
	c.active.Range(func(any, any) bool { n++; return true })
	return n
}

// NameOf returns the short form of attributes.
func NameOf(l *List) string { return nameOf(l) }

// EncodeSnapshot returns a snapshot in at most most bytes, and shortens it.
func EncodeSnapshot(s *Snapshot, most int) ([]byte, error) { return s.encode(most) }

// EncodeSummary returns what another node gets of a summary, and shortens the summary.
func EncodeSummary(s *NodeSummary) ([]byte, error) { return s.encode() }

// DecodeSummary returns the summary that another node has sent.
func DecodeSummary(b []byte) (s NodeSummary, err error) {
	err = s.decode(b)
	return s, err
}
