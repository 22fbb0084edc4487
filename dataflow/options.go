// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"fmt"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// An Option is a setting of a part. What is said of sending holds for a node's own channels, for
// those of the left nodes of [AllToAll], and for the channels that lead into a [Farm]. A node's own
// options win.
type Option func(*options)

// options are the settings of a part. A zero field is not set.
type options struct {
	name    string
	choice  plan.Choice
	demand  int // of OnDemand
	key     any // of ByKey: func(T) uint64
	codec   any // rocl.Codec[T]; the last of codecs
	codecs  []any
	onLoss  any // func(T, error) error
	batch   batchLimits
	window  int
	ordered int
	items   int // of Size

	needsContext bool // of an elastic farm
	errs         []error
}

// batchLimits say when a batch leaves. A zero field is not set.
type batchLimits struct {
	count, bytes int
	delay        time.Duration
}

// Defaults of the options.
const (
	defaultCount  = 1
	defaultBytes  = 64 << 10
	defaultDelay  = time.Millisecond
	defaultWindow = 1024

	batchesUnderWay = 64 // by default, if that is more items
)

func newOptions(os []Option) options {
	var s options
	for _, o := range os {
		if o != nil {
			o(&s)
		}
	}
	return s
}

// Name gives a node its name, by which errors and figures name it. Two nodes of a graph must not
// have the same name. The nodes of a [Farm] get their number at the end of the name, and a worker
// without a name has the name of the farm. Other nodes without a name are called node0, node1 and
// so on, in declaration order.
func Name(name string) Option { return func(o *options) { o.name = name } }

// Codec is the format in which items of type T cross to another process. It is an option of the
// node that sends them. Without it they are sent as [rocl.SendValue] sends them.
func Codec[T any](c rocl.Codec[T]) Option {
	return func(o *options) {
		if c != nil {
			o.codec, o.codecs = c, append(o.codecs, c)
		}
	}
}

// Batch lets items travel together: a batch leaves when it has that many items or bytes, or when
// its first item has waited for delay. It also leaves at the end of the stream, by [Out] Flush, and
// before an item that is sent back. Zero stands for the default: 1 item, 64 KiB and 1 ms. Bytes are
// counted only between groups. Small items that leave one by one for another group travel together
// while their consumer has many items to take.
func Batch(count, bytes int, delay time.Duration) Option {
	return func(o *options) {
		o.batch = batchLimits{count, bytes, delay}
		if count < 0 || bytes < 0 || delay < 0 {
			o.errs = append(o.errs, fmt.Errorf("%w: Batch(%d, %d, %v) is negative", ErrGraph, count, bytes, delay))
		}
	}
}

// Window limits how many items may be under way on each channel: sent, and not yet taken by the
// consumer. The default is 1,024, or 64 batches if that is more. Feedback has no limit.
func Window(items int) Option {
	return func(o *options) {
		o.window = items
		if items < 1 {
			o.errs = append(o.errs, fmt.Errorf("%w: Window(%d) is below 1", ErrGraph, items))
		}
	}
}

// Ordered is an option of a [Farm]: its outputs leave in the order of the inputs that they belong
// to. At most window inputs are in the farm at once, but at least three for each worker. So a
// worker that lags holds the others up when they are that far ahead. The workers must be single
// stages. What a worker sends when its inputs have ended, or before the first, has no place in the
// order.
//
// The farm gets two more nodes, before and behind the workers. If no group was given to them, they
// belong to the groups of the nodes with which they are connected. [Codec] is the format of the
// farm's inputs on the way to the workers.
func Ordered(window int) Option {
	return func(o *options) {
		o.ordered = window
		if window < 1 {
			o.errs = append(o.errs, fmt.Errorf("%w: Ordered(%d) is below 1", ErrGraph, window))
		}
	}
}

// Size says how many items a source will send on all its channels together. It is for those that
// watch the run.
func Size(items int) Option { return func(o *options) { o.items = max(items, 0) } }

// Policy says how Send chooses a channel.
func Policy(c Choice) Option {
	return func(o *options) {
		if c != nil {
			c.set(o)
		}
	}
}

// A Choice is an argument of [Policy].
type Choice interface{ set(*options) }

// The choices without a parameter.
const (
	// Balanced chooses the channel with the fewest items under way. It is the default.
	Balanced = choice(plan.Balanced)
	// RoundRobin chooses the channels in turn. It waits for a channel whose window is used up.
	RoundRobin = choice(plan.RoundRobin)
	// PreferLocal chooses a channel within the group while one has room, and otherwise any.
	PreferLocal = choice(plan.PreferLocal)
	// Broadcast sends each item on each channel. The consumers share what the item refers to.
	Broadcast = choice(plan.Broadcast)
	// OneToOne connects the first node with the first of the next stage, and so on. Both stages
	// must have the same number of nodes.
	OneToOne = choice(plan.OneToOne)
)

// choice is a Choice without a parameter.
type choice plan.Choice

func (c choice) set(o *options) { o.choice = plan.Choice(c) }

type onDemand int

func (n onDemand) set(o *options) {
	o.choice, o.demand = plan.OnDemand, int(n)
	if n < 1 {
		o.errs = append(o.errs, fmt.Errorf("%w: OnDemand(%d) is below 1", ErrGraph, int(n)))
	}
}

// OnDemand chooses the channel with the fewest items under way, and waits while each has n. So a
// consumer that is faster gets more. OnDemand(1) gives each consumer one item to work on and one
// that waits.
func OnDemand(n int) Choice { return onDemand(n) }

type byKey[T any] func(T) uint64

func (f byKey[T]) set(o *options) {
	o.choice, o.key = plan.ByKey, (func(T) uint64)(f)
	if f == nil {
		o.errs = append(o.errs, fmt.Errorf("%w: the function of ByKey is nil", ErrGraph))
	}
}

// ByKey sends all items with the same key on the same channel. f must give an item the same key in
// every process.
func ByKey[T any](f func(T) uint64) Choice { return byKey[T](f) }
