// SPDX-License-Identifier: Apache-2.0

//go:build unix

package programs

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// A Guard ends programs when this process is killed. The kernel alone would signal only the first
// process of each (Pdeathsig). A guard is a shell in a session of its own, which reads the numbers
// of groups from a pipe. At the end of the pipe it sends SIGTERM to the groups. A program whose
// Start or Add has not returned when this process is killed may go on.
type Guard struct {
	cmd *exec.Cmd
	mu  sync.Mutex // guards in
	in  io.WriteCloser
}

// script is what the shell of a guard runs.
const script = `trap '' HUP INT TERM QUIT
all=
while read -r op group; do
	case $op in
	+) all="$all $group" ;;
	-) rest=; for g in $all; do [ "$g" = "$group" ] || rest="$rest $g"; done; all=$rest ;;
	q) exit 0 ;;
	esac
done
for g in $all; do kill -s TERM -- "-$g"; done
`

// NewGuard starts a guard.
func NewGuard() (*Guard, error) {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = own.start(cmd)
	}
	if err != nil {
		return nil, fmt.Errorf("programs: start a guard: %w", err)
	}
	return &Guard{cmd: cmd, in: in}, nil
}

// Add makes the guard end p, until p has ended.
func (g *Guard) Add(p *Program) {
	g.tell("+", p)
	go func() {
		<-p.ended
		g.tell("-", p)
	}()
}

// tell tells the shell about a program.
func (g *Guard) tell(op string, p *Program) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, _ = fmt.Fprintln(g.in, op, p.cmd.Process.Pid)
}

// Close ends the guard. The programs go on.
func (g *Guard) Close() {
	g.mu.Lock()
	_, _ = fmt.Fprintln(g.in, "q")
	_ = g.in.Close()
	g.mu.Unlock()
	_ = g.cmd.Wait()
	own.ended(g.cmd)
}
