// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/libpvm3/numbers"
)

// Flags of pvm_spawn that mean something here.
const (
	spawnHost     = 1
	spawnArch     = 2
	spawnNot      = 32
	spawnNoParent = 64
)

// Kinds of pvm_notify.
const (
	taskExit     = 1
	hostDelete   = 2
	hostAdd      = 3
	routeAdd     = 4
	routeDelete  = 5
	notifyCancel = 256
)

// arches are PVM's names of operating systems and processors, as far as Go runs there.
var arches = map[string]string{
	"linux/amd64":   "LINUX64",
	"linux/386":     "LINUX",
	"linux/arm64":   "LINUXARM64",
	"linux/arm":     "LINUXARM",
	"linux/ppc64le": "LINUXPPC64",
	"linux/s390x":   "LINUXS390X",
	"linux/riscv64": "LINUXRISCV64",
	"darwin/amd64":  "DARWIN",
	"darwin/arm64":  "DARWIN",
	"freebsd/amd64": "FREEBSD",
}

// archName returns PVM's name for a host's GOOS/GOARCH.
func archName(arch string) string {
	if n, ok := arches[arch]; ok {
		return n
	}
	return strings.ToUpper(strings.ReplaceAll(arch, "/", ""))
}

// signature is PVM's pvmgetdsig of a little-endian machine with longs of eight bytes.
const signature = 0x408c41

// hostInfo is struct pvmhostinfo.
type hostInfo struct {
	tid        int
	name, arch string
}

// hosts returns the hosts of the virtual machine, by their numbers.
func (l *library) hosts(ctx context.Context) ([]hostInfo, error) {
	if _, err := l.numbers.Host(ctx, uint64(l.task.ID().Node())); err != nil {
		return nil, err
	}
	hs, err := l.task.Hosts(ctx)
	if err != nil && len(hs) == 0 {
		return nil, err
	}
	slices.SortFunc(hs, func(a, b tpvm.Host) int { return cmp.Compare(a.Node, b.Node) })
	var is []hostInfo
	for _, h := range hs {
		node, err := strconv.ParseUint(h.Node, 16, 64)
		if err != nil {
			continue
		}
		n, err := l.numbers.Host(ctx, node)
		if err != nil {
			return nil, err
		}
		is = append(is, hostInfo{tid: numbers.HostTID(n), name: h.Name, arch: archName(h.Arch)})
	}
	slices.SortFunc(is, func(a, b hostInfo) int { return cmp.Compare(a.tid, b.tid) })
	return is, nil
}

// taskInfo is struct pvmtaskinfo.
type taskInfo struct {
	tid, parent, host int
	program           string
	pid               int
}

// tasks returns the tasks of the virtual machine: where 0, all of them; a host's number, those
// on it; a task's, that one.
func (l *library) tasks(ctx context.Context, where int) ([]taskInfo, error) {
	if where < 0 {
		return nil, badParam
	}
	var ts []taskInfo
	for i, err := range l.task.Tasks(ctx) {
		if err != nil {
			if errors.Is(err, rocl.ErrPartial) {
				break
			}
			return nil, err
		}
		t := taskInfo{pid: i.PID}
		if t.tid, err = l.numbers.Number(ctx, i.ID); err == nil {
			t.parent, err = l.numbers.Number(ctx, i.Parent)
		}
		if err != nil {
			return nil, err
		}
		if t.parent != 0 { // as in PVM, a program that was started by hand has no name
			t.program = i.Name
		}
		t.host = t.tid &^ (1<<18 - 1)
		if where == 0 || where == t.tid || where == t.host {
			ts = append(ts, t)
		}
	}
	slices.SortFunc(ts, func(a, b taskInfo) int { return cmp.Compare(a.tid, b.tid) })
	return ts, nil
}

// spawn starts n tasks. It returns their numbers, and behind them the codes of those that were
// not started.
func (l *library) spawn(ctx context.Context, name string, args []string, flags int, where string, n int) (tids []int, started int, err error) {
	if n < 1 || name == "" {
		return nil, 0, badParam
	}
	opts := []tpvm.SpawnOption{tpvm.Args(args...), tpvm.Env(l.environ()...)}
	where, dir, _ := strings.Cut(where, ":")
	if dir != "" {
		opts = append(opts, tpvm.Dir(dir))
	}
	switch {
	case flags&spawnHost != 0:
		opts = append(opts, tpvm.OnHost(where))
	case flags&spawnArch != 0:
		hs, err := l.hosts(ctx)
		if err != nil {
			return nil, 0, err
		}
		i := slices.IndexFunc(hs, func(h hostInfo) bool { return h.arch == where })
		if i < 0 && flags&spawnNot == 0 {
			return fill(nil, n, noHost), 0, nil
		}
		opts = append(opts, tpvm.OnArch(goArch(where)))
	}
	if flags&spawnNot != 0 {
		opts = append(opts, tpvm.Complement())
	}
	if flags&spawnNoParent != 0 {
		opts = append(opts, tpvm.Env(envNoParent+"=1"))
	}
	var ids []tpvm.TID
	_, err = l.settle(context.Background(), &ids, name, n, opts)
	if tids, e := l.toNumbers(ctx, ids); e != nil {
		return nil, 0, e
	} else if err == nil {
		return tids, len(tids), nil
	} else {
		var failed *tpvm.SpawnError
		var codes []int
		if errors.As(err, &failed) {
			for _, e := range failed.Slots {
				switch {
				case e == nil:
				case errors.Is(e, tpvm.ErrNotEnrolled): // to PVM, any program is a task
					l.unenrolled++
					tids = append(tids, l.tid|1<<18-1-l.unenrolled%1000)
				default:
					codes = append(codes, int(codeOf(e)))
				}
			}
		}
		started = len(tids)
		return fill(append(tids, codes...), n, codeOf(err)), started, nil
	}
}

// settle spawns without the lock.
func (l *library) settle(ctx context.Context, ids *[]tpvm.TID, name string, n int, opts []tpvm.SpawnOption) (int, error) {
	err := l.unlocked(func(t *tpvm.Task) (err error) {
		*ids, err = t.Spawn(ctx, name, n, opts...)
		return err
	})
	return len(*ids), err
}

// fill appends c until there are n results.
func fill(tids []int, n int, c code) []int {
	for len(tids) < n {
		tids = append(tids, int(c))
	}
	return tids[:n]
}

// goArch returns the GOOS/GOARCH for PVM's name of an architecture.
func goArch(name string) string {
	for g, p := range arches {
		if p == name {
			return g
		}
	}
	return name
}

// signal sends a signal to a task. As with PVM, one that has ended is no error.
func (l *library) signal(ctx context.Context, tid int, s syscall.Signal) error {
	id, ok, err := l.lookup(ctx, tid)
	if err != nil || !ok {
		return err
	}
	err = l.task.Signal(ctx, id, s)
	if isEnd(err) || errors.Is(err, tpvm.ErrNoTask) {
		l.numbers.Forget(tid)
		return nil
	}
	return err
}

// status reports whether a task runs.
func (l *library) status(ctx context.Context, tid int) error {
	if !numbers.Valid(tid) {
		return badParam
	}
	ts, err := l.tasks(ctx, tid)
	if err == nil && len(ts) == 0 {
		return noTask
	}
	return err
}

// notify has messages sent when tasks end.
func (l *library) notify(ctx context.Context, what, tag int, tids []int) error {
	cancel := what&notifyCancel != 0
	what &^= notifyCancel
	if what < taskExit || what > routeDelete || tag < 0 || what == taskExit && len(tids) == 0 {
		return badParam
	}
	switch what {
	case routeAdd, routeDelete: // rocl chooses routes, and tells nobody
		return notImpl
	case hostAdd:
		return l.notifyHosts(ctx, what, tag, nil, cancel)
	case hostDelete:
		return l.notifyHosts(ctx, what, tag, tids, cancel)
	}
	for _, tid := range tids {
		if !numbers.Valid(tid) {
			return badParam
		}
	}
	for _, tid := range tids {
		key := notice{what, tag, tid}
		if cancel {
			stop, ok := l.notices[key]
			if !ok {
				continue
			}
			stop()
			delete(l.notices, key)
			if err := l.tell(tag, l.context, l.task.ID(), tid); err != nil {
				return err
			}
			continue
		}
		id, ok, err := l.lookup(ctx, tid)
		if err == nil && !ok {
			err = l.tell(tag, l.context, l.task.ID(), tid)
		} else if err == nil {
			l.notices[key], err = l.task.Notify(context.Background(), tag, id) // until it is told or withdrawn
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// host returns the number of the host of a task.
func (l *library) host(ctx context.Context, tid int) (int, error) {
	if !numbers.Valid(tid) {
		return 0, badParam
	}
	return tid &^ (1<<18 - 1), nil
}

// hostNamed returns the number of a host, by its name.
func (l *library) hostNamed(ctx context.Context, name string) (int, error) {
	hs, err := l.hosts(ctx)
	if err != nil {
		return 0, err
	}
	for _, h := range hs {
		if h.name == name || name == "." && h.tid == l.tid&^(1<<18-1) {
			return h.tid, nil
		}
	}
	return 0, noHost
}

// halt ends every task of the virtual machine, this one last.
func (l *library) halt(ctx context.Context) error {
	var errs []error
	for i, err := range l.task.Tasks(ctx) {
		if err != nil {
			errs = append(errs, fmt.Errorf("halt: %w", err))
			break
		}
		if i.ID != l.task.ID() && !i.IsThread {
			errs = append(errs, l.task.Kill(ctx, i.ID))
		}
	}
	return errors.Join(append(errs, l.task.Kill(ctx, l.task.ID()))...)
}

// notifyHosts has messages sent when hosts come or go.
func (l *library) notifyHosts(ctx context.Context, what, tag int, tids []int, cancel bool) error {
	return notImpl
}

// changeHost returns why a host cannot be added to the virtual machine, or removed: a host is in
// it as long as a node of the cluster runs there, which the library neither starts nor ends.
func (l *library) changeHost(ctx context.Context, host string, add bool) code {
	_, err := l.hostNamed(ctx, host)
	switch {
	case add && err == nil:
		return dupHost
	case add && codeOf(err) == noHost:
		return cantStart
	case err != nil:
		return codeOf(err)
	}
	return notImpl
}
