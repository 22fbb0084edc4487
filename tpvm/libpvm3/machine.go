// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/libpvm3/internal/numbers"
)

// The flags of pvm_spawn that have a meaning in this library.
const (
	spawnHost     = 1
	spawnArch     = 2
	spawnNot      = 32
	spawnNoParent = 64
)

// arches lists PVM's names of operating systems and processors, as far as Go runs on them.
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

// signature is the result of PVM's pvmgetdsig on a little-endian machine with longs of eight bytes.
const signature = 0x408c41

// hostInfo is PVM's struct pvmhostinfo.
type hostInfo struct {
	tid        int
	id         tpvm.TID
	name, arch string
	node       string
	own        string // the machine's own name, if AddHosts has given it another one
	launcher   string // see tpvm.Host
}

// hostOf returns the number of the host of a task.
func hostOf(tid int) int { return tid &^ (1<<18 - 1) }

// hosts returns the hosts of the virtual machine, sorted by their numbers.
func (l *library) hosts(ctx context.Context) ([]hostInfo, error) {
	if l.task == nil { // another thread of the program has called pvm_exit
		return nil, sysErr
	}
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
		is = append(is, hostInfo{
			tid: numbers.HostTID(n), id: h.ID, node: h.Node, name: cmp.Or(h.Added, h.Name), own: h.Name, arch: archName(h.Arch), launcher: h.Launcher,
		})
	}
	slices.SortFunc(is, func(a, b hostInfo) int { return cmp.Compare(a.tid, b.tid) })
	return is, nil
}

// taskInfo is PVM's struct pvmtaskinfo.
type taskInfo struct {
	tid, parent, host int
	program           string
	pid, flag         int
}

// The flags of a task, which PVM's console prints as "c" and "f".
const (
	flagSpawned   = 2
	flagConnected = 4
)

// tasks returns the tasks of the virtual machine, and the programs that were spawned and have not
// enrolled. where is 0 for all, the number of a host for those on the host, or the number of a task
// for that task.
func (l *library) tasks(ctx context.Context, where int) ([]taskInfo, error) {
	if where != 0 {
		if _, ok, err := l.hostWith(ctx, hostOf(where)); err != nil || !ok {
			return nil, cmp.Or(err, error(noHost))
		}
	}
	var ts []taskInfo
	add := func(list iter.Seq2[tpvm.TaskInfo, error], flag int) error {
		for i, err := range list {
			if errors.Is(err, rocl.ErrPartial) {
				break
			}
			if err != nil {
				return err
			}
			t := taskInfo{pid: i.PID, flag: flag}
			if t.tid, err = l.numbers.Number(ctx, i.ID); err == nil {
				t.parent, err = l.numbers.Number(ctx, i.Parent)
			}
			if err != nil {
				return err
			}
			if t.parent != 0 { // as in PVM, a program that was started by hand has no name
				t.program = i.Name
				t.flag |= flagSpawned
			}
			t.host = hostOf(t.tid)
			if where == 0 || where == t.tid || where == t.host {
				ts = append(ts, t)
			}
		}
		return nil
	}
	if err := errors.Join(add(l.task.Tasks(ctx), flagConnected), add(l.task.Programs(ctx), 0)); err != nil {
		return nil, err
	}
	slices.SortFunc(ts, func(a, b taskInfo) int { return cmp.Compare(a.tid, b.tid) })
	return ts, nil
}

// spawn starts n tasks. results has their numbers, and behind them the codes of the tasks that were
// not started.
func (l *library) spawn(ctx context.Context, name string, args []string, flags int, where string, n int) (results []int, started int, err error) {
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
		opts = append(opts, tpvm.NoParent(), tpvm.Env(envNoParent+"=1"))
	}
	ids, err := l.begin(name, n, opts)
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	tids, e := l.toNumbers(ctx, ids)
	if e != nil {
		return nil, 0, e
	}
	started = len(tids)
	var failed *tpvm.SpawnError
	if errors.As(err, &failed) {
		for _, e := range failed.Unwrap() {
			tids = append(tids, int(codeOf(e)))
		}
	}
	if err != nil {
		tids = fill(tids, n, codeOf(err))
	}
	return tids, started, nil
}

// begin starts n threads, or tasks that run a program, without the lock. It returns the identifiers
// of the started ones. A program that has not enrolled, because it knows nothing of PVM or has
// ended, has the identifier of its start.
func (l *library) begin(name string, n int, opts []tpvm.SpawnOption) (ids []tpvm.TID, err error) {
	ctx := context.Background() // starting may take any time
	err = l.unlocked(func(t *tpvm.Task) error {
		var some *tpvm.SpawnError
		ids, err = t.Spawn(ctx, name, n, append(opts, tpvm.Threads())...)
		if !errors.Is(err, tpvm.ErrNoProgram) || errors.As(err, &some) {
			return err
		}
		ps, err := t.Start(ctx, name, n, opts...)
		wait, cancel := context.WithTimeout(ctx, enrolTime())
		defer cancel()
		ids = make([]tpvm.TID, len(ps))
		var all sync.WaitGroup
		for i, p := range ps {
			all.Go(func() {
				var e error
				if ids[i], e = p.Task(wait); e != nil {
					ids[i] = p.ID()
				}
			})
		}
		all.Wait()
		return err
	})
	return ids, err
}

// enrolTime returns how long pvm_spawn waits for programs to enrol.
func enrolTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(envEnrolTime)); err == nil {
		return d
	}
	return defaultEnrolTime
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

// signal sends a signal to a task. As with PVM, it is no error if the task has ended.
func (l *library) signal(ctx context.Context, tid int, s syscall.Signal) error {
	id, ok, err := l.lookup(ctx, tid)
	if err != nil || !ok {
		return err
	}
	err = l.task.Signal(ctx, id, s)
	if tpvm.IsGone(err) || errors.Is(err, tpvm.ErrNoTask) {
		l.numbers.Forget(tid)
		return nil
	}
	return err
}

// status returns nil if a task runs, and noTask if it has ended.
func (l *library) status(ctx context.Context, tid int) error {
	if !numbers.Valid(tid) || numbers.IsHost(tid) {
		return badParam
	}
	_, err := l.numbers.Running(ctx, tid)
	if errors.Is(err, rocl.ErrNotFound) {
		return noTask
	}
	return err
}

// host returns the number of the host of a task.
func (l *library) host(tid int) (int, error) {
	if !numbers.Valid(tid) {
		return 0, badParam
	}
	return hostOf(tid), nil
}

// hostNamed returns a host by its name.
func (l *library) hostNamed(ctx context.Context, name string) (hostInfo, error) {
	hs, err := l.hosts(ctx)
	if err != nil {
		return hostInfo{}, err
	}
	for _, is := range []func(h hostInfo) bool{
		func(h hostInfo) bool { return h.name == name },
		func(h hostInfo) bool { return h.own == name },
		func(h hostInfo) bool { return name == "." && h.tid == hostOf(l.tid) },
	} {
		if i := slices.IndexFunc(hs, is); i >= 0 {
			return hs[i], nil
		}
	}
	return hostInfo{}, noHost
}

// hostWith returns the host with a number. ok is false if there is none.
func (l *library) hostWith(ctx context.Context, tid int) (id tpvm.TID, ok bool, err error) {
	hs, err := l.hosts(ctx)
	i := slices.IndexFunc(hs, func(h hostInfo) bool { return h.tid == tid })
	if err != nil || i < 0 {
		return id, false, err
	}
	return hs[i].id, true, nil
}

// addHosts adds hosts to the virtual machine. It returns the number of each, or a code if the host
// was not added. The code of a host on which programs can be started already is dupHost.
func (l *library) addHosts(names []string) []int {
	ctx := context.Background() // the remote shells may take any time
	infos := make([]int, len(names))
	var missing []string
	for i, name := range names {
		if h, err := l.hostNamed(ctx, name); err == nil && h.launcher != "" || slices.Contains(missing, name) {
			infos[i] = int(dupHost)
		} else {
			missing = append(missing, name)
		}
	}
	err := l.unlocked(func(t *tpvm.Task) error {
		_, err := t.AddHosts(ctx, missing...)
		return err
	})
	for i, name := range names {
		if infos[i] != 0 {
			continue
		}
		why := hostError(err, name)
		if why == nil {
			var h hostInfo
			h, why = l.hostNamed(ctx, name)
			infos[i] = h.tid
		}
		if why != nil {
			infos[i] = int(hostCode(why, cantStart))
		}
	}
	return infos
}

// deleteHosts ends the pods of hosts. It returns 0 for each, or a code if the host has no pod that
// can be ended.
func (l *library) deleteHosts(names []string) []int {
	ctx := context.Background() // the programs on the hosts may take any time to end
	infos := make([]int, len(names))
	for i, name := range names {
		h, err := l.hostNamed(ctx, name)
		if err == nil {
			err = l.unlocked(func(t *tpvm.Task) error { return t.DelHosts(ctx, h.node) })
		}
		infos[i] = int(hostCode(err, codeOf(err)))
	}
	return infos
}

// hostError returns the reason why a host was not added, or nil if it was added.
func hostError(err error, name string) error {
	var all *tpvm.HostsError
	if !errors.As(err, &all) {
		return err
	}
	for _, h := range all.Hosts {
		if h.Host == name {
			return h
		}
	}
	return nil
}

// hostCode returns the code for a host that could not be added or deleted. It returns other if the
// error has no code of its own.
func hostCode(err error, other code) code {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, tpvm.ErrBadParam), errors.Is(err, tpvm.ErrNoPod):
		return badParam
	case errors.Is(err, tpvm.ErrHostAdded):
		return dupHost
	}
	return other
}

// halt ends every task of the virtual machine and every program that has not enrolled. This task is
// the last.
func (l *library) halt(ctx context.Context) error {
	var errs []error
	for _, list := range []iter.Seq2[tpvm.TaskInfo, error]{l.task.Programs(ctx), l.task.Tasks(ctx)} {
		for i, err := range list {
			if err != nil {
				errs = append(errs, fmt.Errorf("halt: %w", err))
				break
			}
			if i.ID != l.task.ID() && !i.IsThread {
				errs = append(errs, l.task.Kill(ctx, i.ID))
			}
		}
	}
	return errors.Join(append(errs, l.task.Kill(ctx, l.task.ID()))...)
}
