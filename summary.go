// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/resource"
)

// A NodeSummary is what goes on in the contexts of a node: their snapshots, shortened to what is
// most interesting. [Context.Summaries] gets it from other nodes, each in at most 64 KiB.
type NodeSummary struct {
	Version  int             `json:"version"` // SnapshotVersion
	Node     resource.NodeID `json:"node"`
	Taken    time.Time       `json:"taken"`            // by the clock of that node
	Contexts []Snapshot      `json:"contexts"`         // the most interesting first: those that senders wait for, then by waiting messages; without Stats
	Silent   []GID           `json:"silent,omitempty"` // contexts that have not answered
	Cut      map[string]int  `json:"cut,omitempty"`    // how many entries of "contexts" and "silent" were left out
}

const (
	askWithin   = time.Second // a context that has not answered within it is silent
	askMost     = 64 << 10    // bytes of the answer of a context
	askedAtOnce = 64          // nodes that are asked at the same time
	entriesMost = 4096        // entries of each list that all contexts of a summary have together
	summaryMost = 1 << 20     // bytes of a summary that is not compressed
)

// Summarize asks contexts of this context's node what goes on in them, all at the same time, and
// returns a [NodeSummary] as [Context.Summaries] reads it, in at most 64 KiB. A context that has
// not answered within a second, or when ctx ends, is silent. Summarize is for
// [directory.WithSummary] of a process that serves the directory. A context that serves it uses
// Summarize itself.
func (c *Context) Summarize(ctx context.Context, contexts []GID) ([]byte, error) {
	s := NodeSummary{Version: SnapshotVersion, Node: c.self.Node(), Taken: time.Now(), Contexts: []Snapshot{}, Cut: map[string]int{}}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var mu sync.Mutex // guards s
	var asked sync.WaitGroup
	for _, id := range contexts {
		asked.Go(func() {
			one, err := c.snapshotOf(ctx, id, askMost)
			one.Stats = Stats{}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				s.Contexts = append(s.Contexts, one)
			case !errors.Is(err, directory.ErrNotFound) && !errors.Is(err, dispatch.ErrGone): // it has not ended meanwhile
				s.Silent = append(s.Silent, id)
			}
		})
	}
	asked.Wait()
	b, err := s.encode()
	if err != nil {
		err = fmt.Errorf("rocl: sum up node %012x: %w", uint64(s.Node), err)
	}
	return b, err
}

// encode returns the summary in at most directory.MaxSummary bytes, and leaves out what is too
// much.
func (s *NodeSummary) encode() ([]byte, error) {
	slices.SortFunc(s.Contexts, func(a, b Snapshot) int {
		x, y := a.interest(), b.interest()
		return cmp.Or(slices.Compare(y[:], x[:]), a.Context.Compare(b.Context))
	})
	slices.SortFunc(s.Silent, GID.Compare)
	for most := max(entriesMost/max(len(s.Contexts), 1), 1); ; {
		for i := range s.Contexts {
			s.Contexts[i].keep(func(int) int { return most })
		}
		plain, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		part := summaryMost / float64(len(plain)) // of the entries that may stay
		if part >= 1 {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, err = z.Write(plain)
			if err = errors.Join(err, z.Close()); err != nil || b.Len() <= directory.MaxSummary {
				return b.Bytes(), err
			}
			part = directory.MaxSummary / float64(b.Len())
		}
		less := func(n int) int { return int(0.9 * part * float64(n)) }
		if most > 1 {
			most = max(less(most), 1)
		} else {
			s.Contexts = shorten(s.Cut, "contexts", s.Contexts, less(len(s.Contexts)))
			s.Silent = shorten(s.Cut, "silent", s.Silent, less(len(s.Silent)))
		}
	}
}

// interest returns how interesting the context is: whether senders wait for its resources, how many
// messages wait there, and how much has come.
func (s *Snapshot) interest() (of [3]uint64) {
	for i := range s.Resources {
		r := &s.Resources[i]
		of[0] += uint64(r.SendersWaiting())
		of[1] += uint64(r.Messages)
		of[2] += r.Arrived
	}
	return of
}

// decode reads what encode has written on another node, which may lie.
func (s *NodeSummary) decode(b []byte) error {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return err
	}
	plain, err := io.ReadAll(io.LimitReader(z, summaryMost+1))
	if err == nil {
		err = icontext.Decode(plain, summaryMost, s)
	}
	if err == nil && s.Version != SnapshotVersion {
		err = fmt.Errorf("its version is %d, not %d", s.Version, SnapshotVersion)
	}
	display.Clean(s)
	return err
}

// Summaries asks nodes for summaries of what goes on there, and yields the summaries as they come.
// Without nodes it asks each node of the cluster, this one too. If a node could not be asked,
// Summaries yields an error, which matches ErrPartial or ErrNoSummary, and a summary that has only
// Node. Another error is that of the directory, and the last. The numbers of a summary are not
// negative, and texts are short and safe to show, whatever the other node says.
func (c *Context) Summaries(ctx context.Context, nodes ...resource.NodeID) iter.Seq2[NodeSummary, error] {
	return func(yield func(NodeSummary, error) bool) {
		if len(nodes) == 0 {
			all, err := c.nodes(ctx)
			if err != nil {
				yield(NodeSummary{}, fmt.Errorf("rocl: ask the nodes for summaries: %w", err))
				return
			}
			nodes = all
		}
		type answer struct {
			NodeSummary
			error
		}
		answers, free := make(chan answer), make(chan struct{}, askedAtOnce)
		ctx, cancel := context.WithCancel(ctx)
		var asking sync.WaitGroup
		defer asking.Wait()
		defer cancel()
		for _, id := range nodes {
			asking.Go(func() {
				free <- struct{}{}
				s, err := c.summaryOf(ctx, id)
				<-free
				select {
				case answers <- answer{s, err}:
				case <-ctx.Done(): // nobody receives any more
				}
			})
		}
		for range nodes {
			var a answer
			select {
			case a = <-answers:
			case <-ctx.Done():
				yield(NodeSummary{}, fmt.Errorf("rocl: ask the nodes for summaries: %w", context.Cause(ctx)))
				return
			}
			if !yield(a.NodeSummary, a.error) {
				return
			}
		}
	}
}

// nodes returns the nodes of the cluster.
func (c *Context) nodes(ctx context.Context) (all []resource.NodeID, err error) {
	var covered Coverage
	for f, err := range c.FindAll(ctx, Match{AttrKind: "node"}, Want(AttrNode), Covered(&covered)) {
		if err != nil && !errors.Is(err, directory.ErrPartial) {
			return nil, err
		}
		if err == nil {
			all = append(all, f.ID.Node())
		}
	}
	all = append(all, covered.Failed...)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// summaryOf asks a node for its summary.
func (c *Context) summaryOf(ctx context.Context, id resource.NodeID) (s NodeSummary, err error) {
	b, err := c.dir.Summary(ctx, id)
	if err == nil {
		err = s.decode(b)
	}
	if err == nil && s.Node != id {
		err = fmt.Errorf("it is that of %012x", uint64(s.Node))
	}
	if err != nil {
		return NodeSummary{Node: id}, fmt.Errorf("rocl: the summary of node %012x: %w", uint64(id), err)
	}
	s.Contexts = slices.DeleteFunc(s.Contexts, func(o Snapshot) bool { return o.Context.Node() != id })
	return s, nil
}
