// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/flowfile"
	"github.com/rocl-go/rocl/internal/programs"
	"github.com/rocl-go/rocl/tpvm"
)

// keeper is the shell script that runs the command $1 of a group, here and behind ssh. When its
// input ends, because the launcher or the connection has, it ends its process group: by SIGTERM,
// and after 5 s by SIGKILL. When the command has ended, it ends the processes that the command has
// left. Its exit code is that of the command.
const keeper = `trap : TERM INT HUP
exec 3<&0
sh -c "$1" </dev/null 3<&- &
program=$!
(trap : TERM; cat <&3 >/dev/null; kill -s TERM 0; sleep 5; kill -s KILL 0) >/dev/null 2>&1 &
watcher=$!
exec 3<&- 2>/dev/null
wait $program; code=$?
while kill -0 $program 2>/dev/null; do wait $program; code=$?; done
kill -s KILL $watcher
kill -s TERM 0
exit $code
`

// outputTime is how long the output of a group may go on after the keeper has ended.
const outputTime = time.Second

// A group is the process of a group.
type group struct {
	*flowfile.Group
	host     string // empty: this one
	program  *programs.Program
	input    io.Closer // its end ends the group
	out, err *lines
	last     tail
}

// A failure is the end of a group that has not ended well.
type failure struct {
	group *group
	err   error
	code  int // 0: the group was not started
}

// Error names the group and how it ended.
func (f *failure) Error() string {
	what := fmt.Sprintf("group %q failed: ", f.group.Name)
	switch {
	case f.code == 0:
		return what + f.err.Error()
	case f.code > 128 && f.code <= 128+64:
		return what + fmt.Sprintf("signal %d: %v", f.code-128, syscall.Signal(f.code-128))
	}
	return what + fmt.Sprintf("exit code %d", f.code)
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

// isOwn reports whether the cause lies in the group: not in another group, and not in a signal that
// ended it.
func (f *failure) isOwn() bool {
	return f.code != flowfile.ExitOther && f.code != 130 && f.code != 128+15
}

// quote returns a text as one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// command returns the shell text that runs a program for the group.
func (g *group) command(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = quote(a)
	}
	text := strings.Join(words, " ")
	if g.PreCmd != "" {
		return g.PreCmd + " " + text
	}
	return "exec " + text
}

// export returns the shell text that sets variables of the environment.
func export(env []string) string {
	var s strings.Builder
	for _, e := range env {
		name, v, _ := strings.Cut(e, "=")
		fmt.Fprintf(&s, "export %s=%s; ", name, quote(v))
	}
	return s.String()
}

// start starts the group. ended is called when it and its output have ended.
func (g *group) start(env, args []string, ssh tpvm.SSH, ended func(*failure)) error {
	script := []string{"sh", "-c", keeper, "sh", export(env) + g.command(args)}
	cmd := exec.Command("/bin/sh", script[1:]...)
	if g.host != "" {
		cmd = ssh.Command(context.Background(), g.host, append([]string{"exec"}, script...)) // exec: no other shell is in the process group
	}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = g.out, g.err, outputTime
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if g.program, err = programs.Start(cmd); err != nil {
		return errors.Join(err, input.Close())
	}
	g.input = input
	go func() {
		err := g.program.Wait()
		_ = input.Close()
		g.out.end()
		g.err.end()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			ended(&failure{g, err, codeOf(exit)})
		case err != nil && !errors.Is(err, exec.ErrWaitDelay): // a process that was left had the output open
			ended(&failure{g, err, 0})
		default:
			ended(nil)
		}
	}()
	return nil
}

// codeOf returns the exit code as a shell would, with 128 added to the number of a signal.
func codeOf(e *exec.ExitError) int {
	if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return e.ExitCode()
}

// end ends the group. It does not wait. A keeper that does not end in time is ended itself.
func (g *group) end() {
	if g.program == nil {
		return
	}
	_ = g.input.Close()
	go func() {
		late := time.NewTimer(programs.Grace + 2*time.Second)
		defer late.Stop()
		select {
		case <-late.C:
			g.program.End()
		case <-g.program.Ended():
		}
	}()
}

// find returns the absolute path of a program.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// otherHost returns the host, or an empty text if that is this one: the loopback interface, this
// machine's name, the value of DFF_RUN_HOSTNAME, or a name of one of this machine's addresses. A
// name without an address may be one that ssh knows.
func otherHost(ctx context.Context, host string) string {
	if name, err := os.Hostname(); host == "" || host == os.Getenv("DFF_RUN_HOSTNAME") || err == nil && host == name {
		return ""
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return host
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, _ := net.DefaultResolver.LookupIPAddr(ctx, host)
	for _, a := range addrs {
		if a.IP.IsLoopback() {
			return ""
		}
		for _, m := range mine {
			if n, ok := m.(*net.IPNet); ok && n.IP.Equal(a.IP) {
				return ""
			}
		}
	}
	return host
}
