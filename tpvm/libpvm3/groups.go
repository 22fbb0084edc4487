// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/rocl-go/rocl/tpvm"
)

// join makes the task a member of a group and returns its instance number.
func (l *library) join(ctx context.Context, group string) (int, error) {
	g, err := l.task.Join(ctx, group)
	if err != nil {
		return 0, err
	}
	return g.Instance(), nil
}

func (l *library) leave(ctx context.Context, group string) (int, error) {
	return 0, l.task.LeaveGroup(ctx, group)
}

// groupSize returns the number of members. A group without members does not exist.
func (l *library) groupSize(ctx context.Context, group string) (int, error) {
	n, err := l.task.GroupSize(ctx, group)
	if err == nil && n == 0 {
		err = noGroup
	}
	return n, err
}

// instance returns the instance number of a task in a group.
func (l *library) instance(ctx context.Context, group string, tid int) (int, error) {
	if _, err := l.groupSize(ctx, group); err != nil {
		return 0, err
	}
	id, ok, err := l.lookup(ctx, tid)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, notInGroup
	}
	return l.task.GroupInstance(ctx, group, id)
}

// member returns the number of the task with an instance number.
func (l *library) member(ctx context.Context, group string, inst int) (int, error) {
	id, err := l.task.GroupTID(ctx, group, inst)
	if err != nil {
		return 0, err
	}
	return l.numbers.Number(ctx, id)
}

// group returns the membership of the task.
func (l *library) group(ctx context.Context, group string) (*tpvm.Group, error) {
	g, ok := l.task.Group(group)
	if ok {
		return g, nil
	}
	if _, err := l.groupSize(ctx, group); err != nil {
		return nil, err
	}
	return nil, notInGroup
}

// freeze fixes the size of a group to count.
func (l *library) freeze(ctx context.Context, group string, count int) (int, error) {
	g, err := l.group(ctx, group)
	if err != nil {
		return 0, err
	}
	return 0, l.unlocked(func(*tpvm.Task) error { return g.Freeze(context.Background(), count) })
}

// barrier waits for count members. -1 stands for all members.
func (l *library) barrier(ctx context.Context, group string, count int) (int, error) {
	g, err := l.group(ctx, group)
	if err != nil {
		return 0, err
	}
	if count == -1 {
		if count, err = g.Size(ctx); err != nil {
			return 0, err
		}
	}
	if count < 1 {
		return 0, badParam
	}
	return 0, l.unlocked(func(*tpvm.Task) error { return g.Barrier(context.Background(), count) })
}

// broadcast sends the active send buffer to the members of a group other than this task.
func (l *library) broadcast(ctx context.Context, group string, tag int) (int, error) {
	if tag < 0 {
		return 0, badParam
	}
	b, err := l.buffers.toPack()
	if err != nil {
		return 0, err
	}
	err = l.unlocked(func(t *tpvm.Task) error { return t.GroupBcast(context.Background(), group, tag, b) })
	if err != nil && !errors.Is(err, tpvm.ErrMemberGone) {
		return 0, err
	}
	l.stamp(tag)
	return 0, nil
}

// operands returns the memory of count values of a type, and the membership of the task in the
// group. Each member has such values.
func (l *library) operands(ctx context.Context, p unsafe.Pointer, count, typ int, group string) ([]byte, *tpvm.Group, error) {
	t, err := typeFor(p, count, typ)
	if err != nil {
		return nil, nil, err
	}
	g, err := l.group(ctx, group)
	return unsafe.Slice((*byte)(p), count*t.size), g, err
}

// gather stores the values of all members at the root, in the order of their instance numbers.
func (l *library) gather(ctx context.Context, result, data unsafe.Pointer, count, typ, tag int, group string, root int) (int, error) {
	own, g, err := l.operands(ctx, data, count, typ, group)
	if err != nil {
		return 0, err
	}
	var parts [][]byte
	err = l.unlocked(func(*tpvm.Task) (err error) {
		parts, err = tpvm.Gather(context.Background(), g, tag, root, own)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, p := range parts {
		if p == nil { // no member has the number
			continue
		}
		if len(p) != len(own) || result == nil {
			return 0, badParam
		}
		copy(unsafe.Slice((*byte)(result), len(p)), p)
		result = unsafe.Add(result, len(p))
	}
	return 0, nil
}

// scatter gives each member its part of the values at the root.
func (l *library) scatter(ctx context.Context, result, data unsafe.Pointer, count, typ, tag int, group string, root int) (int, error) {
	into, g, err := l.operands(ctx, result, count, typ, group)
	if err != nil {
		return 0, err
	}
	var parts [][]byte
	if g.Instance() == root {
		ms, err := g.Members(ctx)
		if err != nil {
			return 0, err
		}
		if data == nil && count > 0 {
			return 0, badParam
		}
		parts = make([][]byte, ms[len(ms)-1].Instance+1)
		for i, m := range ms {
			parts[m.Instance] = unsafe.Slice((*byte)(unsafe.Add(data, i*len(into))), len(into))
		}
	}
	var own []byte
	err = l.unlocked(func(*tpvm.Task) (err error) {
		own, err = tpvm.Scatter(context.Background(), g, tag, root, parts)
		return err
	})
	if err != nil {
		return 0, err
	}
	if len(own) != len(into) {
		return 0, badParam
	}
	copy(into, own)
	return 0, nil
}

// A combiner combines n values of y into x. It is a function of the program or of PVM.
type combiner func(typ int, x, y unsafe.Pointer, n int) code

// reduce combines the values of all members at the root.
func (l *library) reduce(ctx context.Context, f combiner, data unsafe.Pointer, count, typ, tag int, group string, root int) (int, error) {
	own, g, err := l.operands(ctx, data, count, typ, group)
	if err != nil {
		return 0, err
	}
	var all []byte
	info := code(0)
	err = l.unlocked(func(*tpvm.Task) (err error) {
		all, err = tpvm.Reduce(context.Background(), g, tag, root, slices.Clone(own), func(acc, x []byte) {
			if len(acc) > 0 {
				info = min(info, f(typ, unsafe.Pointer(&acc[0]), unsafe.Pointer(&x[0]), count))
			}
		})
		return err
	})
	if err == nil && info < 0 {
		err = info
	}
	if err == nil {
		copy(own, all) // the other members get nothing
	}
	return 0, err
}
