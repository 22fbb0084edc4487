// SPDX-License-Identifier: Apache-2.0

// Package programs starts and ends the programs of users, for commands and pods. A program may
// start processes of its own. It forms a process group with them, which is signalled and ended as a
// whole. A process that makes a group or a session of its own is not reached.
//
//	programs.go  a program: starting, signals, the end
//	guard*.go    ending programs when this process is killed
//	orphans*.go  reaping as process 1
//	signals*.go  starting without blocked signals
//	group*.go    groups of processes
package programs

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Grace is the time between SIGTERM and SIGKILL for a program that is being ended.
const Grace = 5 * time.Second

// killedMost limits how long the end of a group is waited for after SIGKILL. A process that the
// kernel does not end meanwhile is stuck in the kernel.
const killedMost = time.Second

// A Program is a program that has been started. Its methods may be called concurrently.
type Program struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of exec.Cmd.Wait; valid after ended

	mu        sync.Mutex    // guards the following fields
	grace     time.Duration // Grace, except in tests
	hasExited bool          // the first process of the group has ended
	isEnding  bool          // a signal that ends programs was sent
}

// Start starts cmd as the first process of a new group. With the Setsid of cmd.SysProcAttr the
// group has a session of its own too. The calling thread is the one that Pdeathsig watches.
func Start(cmd *exec.Cmd) (*Program, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	beginGroup(cmd.SysProcAttr)
	if err := own.start(cmd); err != nil {
		return nil, err
	}
	p := &Program{cmd: cmd, ended: make(chan struct{}), grace: Grace}
	go p.wait()
	return p, nil
}

// wait waits for the end of the program. It runs in a goroutine of its own.
func (p *Program) wait() {
	p.err = p.cmd.Wait()
	own.ended(p.cmd)
	p.mu.Lock()
	p.hasExited = true
	isEnding, grace := p.isEnding, p.grace
	p.mu.Unlock()
	if isEnding && !p.awaitGroup(grace) {
		_ = p.kill(syscall.SIGKILL)
		p.awaitGroup(killedMost)
	}
	close(p.ended)
}

// awaitGroup waits until no process of the group is left, at most for a time. It reports whether
// none is left. No event tells that; the kernel keeps the group's number while there is one.
func (p *Program) awaitGroup(most time.Duration) bool {
	end := time.Now().Add(most)
	for pause := 100 * time.Microsecond; p.kill(0) == nil && hasLiving(p.cmd.Process.Pid); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Ended returns a channel that is closed when the first process has ended. If the program was
// signalled to end, the channel is closed when no process of the group is left: those that are left
// for longer than Grace are killed.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Wait waits as Ended says, and returns what exec.Cmd.Wait has returned.
func (p *Program) Wait() error {
	<-p.ended
	return p.err
}

// Signal sends a signal to all processes of the group. It fails with os.ErrProcessDone if the
// program has ended.
func (p *Program) Signal(s syscall.Signal) error {
	select {
	case <-p.ended: // another group may have the number
		return os.ErrProcessDone
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasExited && !p.isEnding {
		return os.ErrProcessDone // the rest of the group was left behind on purpose
	}
	switch s {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGKILL:
		p.isEnding = true
	}
	return p.kill(s)
}

// End ends the program: by SIGTERM, and after Grace by SIGKILL. It does not wait.
func (p *Program) End() {
	if p.Signal(syscall.SIGTERM) != nil {
		return
	}
	p.mu.Lock()
	grace := p.grace
	p.mu.Unlock()
	go func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			_ = p.Signal(syscall.SIGKILL)
		case <-p.ended:
		}
	}()
}
