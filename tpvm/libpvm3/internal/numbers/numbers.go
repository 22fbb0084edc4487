// SPDX-License-Identifier: Apache-2.0

// Package numbers gives the tasks and hosts of a virtual machine numbers like those of PVM: a
// positive int, with the number of the host in bits 18 to 29 and the number of the task on that
// host in the lower 18 bits.
//
// The number of a task follows from its identifier and from the number of its host. So every
// process computes the same number, without asking, even for a task that has ended. A host gets its
// number from the first process that needs one: the lowest that no other host of the virtual
// machine has. Each process registers a resource with the number of its host, so the number stays
// as long as a process on the host runs.
//
//	type=tidhost  vm, node, index   the number of a host
//	type=tid      vm, index, local  the number of a task of libpvm3, unique; its context's
//
// A task that has not claimed its number, such as a thread or a program in Go, may have the same
// number as another one. The probability is one to 262,144 for each pair on a host. Task returns
// one of the two.
package numbers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/rocl-go/rocl"
)

const (
	localBits = 18
	localMask = 1<<localBits - 1
	hostMax   = 1<<12 - 1

	typeHost = "tidhost"
	typeTask = "tid"
)

// ErrFull is returned when the virtual machine has more hosts than there are numbers.
var ErrFull = errors.New("numbers: no number is free")

// Numbers holds the numbers of one virtual machine that a process has learned. Its methods may be
// called by several goroutines.
type Numbers struct {
	c  *rocl.Context
	vm string

	mu     sync.Mutex
	hosts  map[uint64]int          // from node to number
	tasks  map[int]rocl.GID        // from number to task
	number map[rocl.GID]int        // from task to number
	owned  map[*rocl.Resource]bool // the claims of this process
}

// New returns the numbers of the virtual machine vm. It registers resources in the context c.
func New(c *rocl.Context, vm string) *Numbers {
	return &Numbers{
		c: c, vm: vm, hosts: map[uint64]int{}, tasks: map[int]rocl.GID{},
		number: map[rocl.GID]int{}, owned: map[*rocl.Resource]bool{},
	}
}

// local returns the lower bits of the number of a task.
func local(id rocl.GID) int {
	// A server of the directory counts its contexts from 1. Its epoch distinguishes the contexts
	// that a later server counts. The serial distinguishes the tasks and threads of one context.
	n, epoch := id.Ctx()&(1<<24-1), id.Ctx()>>24
	return int((n + epoch*4099 + uint64(id.Serial())*40503) & localMask)
}

// Claim claims the number of the main task of the context, before the task is registered. It fails
// with rocl.ErrExists if another task of libpvm3 has the number. The caller then tries another
// context.
func (n *Numbers) Claim(ctx context.Context) error {
	h, err := n.Host(ctx, uint64(n.c.ID().Node()))
	if err != nil {
		return err
	}
	a := rocl.Attrs{"type": typeTask, "vm": n.vm, "index": strconv.Itoa(h), "local": strconv.Itoa(local(n.c.ID()))}
	r, err := n.c.Register(ctx, a, rocl.Unique("type", "vm", "index", "local"))
	if errors.Is(err, rocl.ErrPartial) { // a node that cannot be asked has tasks of another host only
		r, err = n.c.Register(ctx, a)
	}
	if r != nil {
		n.own(r)
	}
	return err
}

func (n *Numbers) own(r *rocl.Resource) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owned[r] = true
}

// Host returns the number of a node, from 1 to 4095.
func (n *Numbers) Host(ctx context.Context, node uint64) (int, error) {
	n.mu.Lock()
	h, ok := n.hosts[node]
	n.mu.Unlock()
	if ok {
		return h, nil
	}
	name := fmt.Sprintf("%012x", node)
	for range 100 { // until a claim succeeds, or the claim of another process is found
		used := map[int]bool{}
		var claim rocl.GID // of the number that the node has, or zero
		i := 1
		for f, err := range n.c.FindAll(ctx, rocl.Match{"type": typeHost, "vm": n.vm}) {
			if err != nil {
				if errors.Is(err, rocl.ErrPartial) {
					break
				}
				return 0, fmt.Errorf("numbers: number host %s: %w", name, err)
			}
			index, _ := strconv.Atoi(f.Attrs.GetString("index"))
			if f.Attrs.GetString("node") == name && index > 0 && index <= hostMax {
				claim, i = f.ID, index
				break
			}
			used[index] = true
		}
		if !claim.IsZero() {
			if isKept, err := n.keepHost(ctx, node, i, claim); isKept || err != nil {
				return i, err
			}
			continue
		}
		for used[i] {
			i++
		}
		if i > hostMax {
			return 0, fmt.Errorf("numbers: number host %s: %w", name, ErrFull)
		}
		r, err := n.c.Register(ctx, n.hostAttrs(node, i), rocl.Unique("type", "vm", "index"))
		if errors.Is(err, rocl.ErrExists) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("numbers: number host %s: %w", name, err)
		}
		n.own(r)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.hosts[node] = i
		return i, nil
	}
	return 0, fmt.Errorf("numbers: number host %s: %w", name, ErrFull)
}

func (n *Numbers) hostAttrs(node uint64, i int) rocl.Attrs {
	return rocl.Attrs{"type": typeHost, "vm": n.vm, "node": fmt.Sprintf("%012x", node), "index": strconv.Itoa(i)}
}

// keepHost records the number of a node, which another process has claimed. For this process's node
// it registers the number once more, so that the number stays when that process has ended. If
// claim, the resource of that process, has ended before, another node may have claimed the number,
// and keepHost returns false.
func (n *Numbers) keepHost(ctx context.Context, node uint64, i int, claim rocl.GID) (bool, error) {
	if node == uint64(n.c.ID().Node()) {
		r, err := n.c.Register(ctx, n.hostAttrs(node, i))
		if err != nil {
			return false, err
		}
		if _, err := n.c.Lookup(ctx, claim); err != nil {
			if errors.Is(err, rocl.ErrNotFound) {
				err = nil
			}
			return false, errors.Join(err, r.Close())
		}
		n.own(r)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[node] = i
	return true, nil
}

// HostTID returns the number that stands for a host itself, like that of a pvmd in PVM.
func HostTID(host int) int { return host << localBits }

// IsHost reports whether tid is the number of a host.
func IsHost(tid int) bool { return tid > 0 && tid&localMask == 0 }

// Valid reports whether tid can be the number of a task.
func Valid(tid int) bool { return tid > localMask && tid < 1<<30 }

// Number returns the number of a task. The number of the zero identifier is 0.
func (n *Numbers) Number(ctx context.Context, id rocl.GID) (int, error) {
	if id.IsZero() {
		return 0, nil
	}
	n.mu.Lock()
	i, ok := n.number[id]
	n.mu.Unlock()
	if ok {
		return i, nil
	}
	h, err := n.Host(ctx, uint64(id.Node()))
	if err != nil {
		return 0, err
	}
	i = h<<localBits | local(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.number[id], n.tasks[i] = i, id
	return i, nil
}

// Task returns the task or thread, or the start of a program, whose number is tid. It is one that
// has ended if this process knows that it had the number. Otherwise Task fails as Running does.
func (n *Numbers) Task(ctx context.Context, tid int) (rocl.GID, error) {
	n.mu.Lock()
	id, ok := n.tasks[tid]
	n.mu.Unlock()
	if ok {
		return id, nil
	}
	return n.Running(ctx, tid)
}

// Running returns the running task or thread, or the start of a program, whose number is tid. It
// fails with rocl.ErrNotFound if none has the number, and with rocl.ErrPartial if the node of the
// number's host did not answer or is not known.
func (n *Numbers) Running(ctx context.Context, tid int) (rocl.GID, error) {
	if !Valid(tid) || IsHost(tid) {
		return rocl.GID{}, fmt.Errorf("numbers: find task %x: %w", tid, rocl.ErrNotFound)
	}
	var partial error
	isAlone, silent := false, map[uint64]bool{} // the nodes that did not answer
	for _, typ := range []string{"task", "thread", "tmp"} {
		var v rocl.Coverage
		for f, err := range n.c.FindAll(ctx, rocl.Match{"type": typ, "vm": n.vm}, rocl.Covered(&v)) {
			if errors.Is(err, rocl.ErrPartial) { // this node has reached no other one
				partial, isAlone = err, true
				break
			}
			if err != nil {
				return rocl.GID{}, fmt.Errorf("numbers: find task %x: %w", tid, err)
			}
			if local(f.ID) != tid&localMask {
				continue
			}
			if i, err := n.Number(ctx, f.ID); err == nil && i == tid {
				return f.ID, nil
			}
		}
		if err := v.Err(); err != nil {
			partial = err
		}
		for _, node := range v.Failed {
			silent[uint64(node)] = true
		}
	}
	if partial != nil {
		node, ok := n.node(ctx, tid>>localBits)
		if !ok || silent[node] || isAlone && node != uint64(n.c.ID().Node()) {
			return rocl.GID{}, fmt.Errorf("numbers: find task %x: %w", tid, partial)
		}
	}
	return rocl.GID{}, fmt.Errorf("numbers: find task %x: %w", tid, rocl.ErrNotFound)
}

// node returns the node of the host with the number h. ok is false if that is not known.
func (n *Numbers) node(ctx context.Context, h int) (node uint64, ok bool) {
	for f, err := range n.c.FindAll(ctx, rocl.Match{"type": typeHost, "vm": n.vm, "index": strconv.Itoa(h)}) {
		if err != nil {
			break
		}
		if node, err := strconv.ParseUint(f.Attrs.GetString("node"), 16, 64); err == nil {
			return node, true
		}
	}
	return 0, false
}

// Forget forgets which task has a number, because the task has ended. The next call of Task
// searches for the number again.
func (n *Numbers) Forget(tid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.tasks, tid)
}
