// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// beginGroup makes a new process the first one of a group, which the interrupt of this process's
// console does not reach.
func beginGroup(a *syscall.SysProcAttr) { a.CreationFlags |= windows.CREATE_NEW_PROCESS_GROUP }

// hasLiving reports false: this system does not tell what is left of a group.
func hasLiving(int) bool { return false }

// kill ends the first process of the group by any signal other than 0.
func (p *Program) kill(s syscall.Signal) error {
	if s == 0 {
		return nil
	}
	return p.cmd.Process.Kill()
}

// processes is not needed on this system, which has no orphans.
type processes struct{}

var own processes

func (processes) start(cmd *exec.Cmd) error { return cmd.Start() }

func (processes) ended(*exec.Cmd) {}

// ReapOrphans does nothing on this system, which has no orphans.
func ReapOrphans() (stop func()) { return func() {} }

// A Guard ends programs, with all that they have started, when this process is killed. It is a job
// object, which ends its processes when its last handle is closed. A program whose Add has not
// returned when this process is killed may go on.
type Guard struct{ job windows.Handle }

// NewGuard makes a guard.
func NewGuard() (*Guard, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("programs: make a guard: %w", os.NewSyscallError("CreateJobObject", err))
	}
	g := &Guard{job}
	if err := g.limit(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE); err != nil {
		_ = windows.CloseHandle(job)
		return nil, fmt.Errorf("programs: make a guard: %w", err)
	}
	return g, nil
}

// limit sets the flags of the job.
func (g *Guard) limit(flags uint32) error {
	var l windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	l.BasicLimitInformation.LimitFlags = flags
	_, err := windows.SetInformationJobObject(g.job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&l)), uint32(unsafe.Sizeof(l)))
	return os.NewSyscallError("SetInformationJobObject", err)
}

// Add makes the guard end p.
func (g *Guard) Add(p *Program) {
	h, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(p.cmd.Process.Pid))
	if err != nil {
		return // it has ended
	}
	_ = windows.AssignProcessToJobObject(g.job, h)
	_ = windows.CloseHandle(h)
}

// Close ends the guard. The programs go on.
func (g *Guard) Close() {
	_ = g.limit(0)
	_ = windows.CloseHandle(g.job)
}
