// SPDX-License-Identifier: Apache-2.0

//go:build unix

package programs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// own has the processes that this package has started and that exec.Cmd.Wait reaps.
var own = processes{all: map[int]struct{}{}}

// processes is a set of processes by number.
type processes struct {
	mu  sync.Mutex // held while a process is started, so that no process is taken for an orphan
	all map[int]struct{}
}

// start starts cmd and adds its process.
func (o *processes) start(cmd *exec.Cmd) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := StartUnblocked(cmd)
	if err == nil {
		o.all[cmd.Process.Pid] = struct{}{}
	}
	return err
}

// ended removes the process of cmd, which has been reaped.
func (o *processes) ended(cmd *exec.Cmd) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, cmd.Process.Pid)
}

// ReapOrphans reaps the orphans that the kernel gives to this process, until stop is called. It
// does so if this process is process 1, as in a container, or a subreaper; otherwise no orphans
// come. All other child processes must have been started by this package.
func ReapOrphans() (stop func()) {
	if !getsOrphans() {
		return func() {}
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	ended := make(chan struct{})
	var reaper sync.WaitGroup
	reaper.Go(func() {
		for {
			own.reapOrphans()
			select {
			case <-died:
			case <-ended:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		signal.Stop(died)
		close(ended)
		reaper.Wait()
	})
}

// reapOrphans reaps the children that have ended and that no exec.Cmd waits for.
func (o *processes) reapOrphans() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pid := range children() {
		if _, isOwn := o.all[pid]; isOwn {
			continue
		}
		if s, ok := statOf(pid); ok && s.hasEnded && s.parent == os.Getpid() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// A procStat is what the kernel says of a process.
type procStat struct {
	hasEnded      bool // the process has ended and was not reaped
	parent, group int
}

// statOf returns what the kernel says of a process. It reports false if there is none.
func statOf(pid int) (s procStat, ok bool) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // number (name) state parent group …
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 3 {
		return s, false
	}
	s.hasEnded = string(f[0]) == "Z" || string(f[0]) == "X"
	s.parent, _ = strconv.Atoi(string(f[1]))
	s.group, _ = strconv.Atoi(string(f[2]))
	return s, true
}

// processNumbers yields the numbers of all processes that are visible.
func processNumbers(yield func(int) bool) {
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		if pid, err := strconv.Atoi(e.Name()); err == nil && !yield(pid) {
			return
		}
	}
}

// children returns the numbers of processes among which are all children of this one.
func children() (all []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range lists {
		b, _ := os.ReadFile(file)
		for f := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				all = append(all, pid)
			}
		}
	}
	if len(lists) == 0 { // a kernel without these files
		all = slices.Collect(processNumbers)
	}
	return all
}
