// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/programs"
)

// Environment variables of AddHosts.
const (
	// EnvSSH is the command, with its options, that is used in place of ssh; see SSH.
	EnvSSH = "TPVM_SSH"
	// EnvPod is the command that serves a pod on other hosts, by default "tpvm pod".
	EnvPod = "TPVM_POD"
)

const (
	foundTime   = 10 * time.Second // the default of Task.foundTime
	foundEvery  = 20 * time.Millisecond
	shellTime   = 5 * time.Second // the time that a remote shell has to end when the pod has been released
	mostHosts   = 32              // the number of hosts that are added at the same time
	mostOutput  = 4 << 10         // bytes of a remote shell's output in an error
	mostGreeted = 1 << 20         // bytes that a remote shell may write before the pod does
)

// A HostStarter runs commands on other hosts, for AddHosts.
type HostStarter interface {
	// Command returns the command, to be started on this host, that runs argv on another one. Its
	// standard input, output and error are connected to those of argv. It ends when argv has ended.
	Command(ctx context.Context, host string, argv []string) *exec.Cmd
}

// SSH runs commands on other hosts by the system's ssh. The zero SSH takes the command from the
// environment variable TPVM_SSH. Without that, it is "ssh -o BatchMode=yes -o ConnectTimeout=10".
type SSH struct {
	// Args is the command with its options; the host and the remote command are added.
	Args []string
	// Config is a file that has, for each host, the port, the user, the key and other settings that
	// ssh_config(5) describes. ssh reads it in place of its own files, as with its option -F.
	Config string
}

// Command implements HostStarter.
func (s SSH) Command(ctx context.Context, host string, argv []string) *exec.Cmd {
	args := s.Args
	if len(args) == 0 {
		args = strings.Fields(os.Getenv(EnvSSH))
	}
	if len(args) == 0 {
		args = []string{"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"}
	}
	if s.Config != "" {
		args = slices.Concat(args, []string{"-F", s.Config})
	}
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	args = slices.Concat(args, []string{host, strings.Join(quoted, " ")})
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// WithHostStarter sets the HostStarter by which AddHosts runs commands on other hosts. The default
// is SSH{}.
func WithHostStarter(s HostStarter) Option { return func(f *config) { f.starter = s } }

// A HostError says why a host could not be added or removed.
type HostError struct {
	Host   string
	Err    error
	Output string // the end of the remote shell's output
	Advice string // what to do
}

func (e *HostError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "host %s: %v", e.Host, e.Err)
	if e.Output != "" {
		fmt.Fprintf(&s, ": %q", e.Output)
	}
	if e.Advice != "" {
		fmt.Fprintf(&s, ": %s", e.Advice)
	}
	return s.String()
}

// Unwrap returns the cause.
func (e *HostError) Unwrap() error { return e.Err }

// A HostsError says which of several hosts could not be added or removed, and why.
type HostsError struct {
	Op    string // "add" or "delete"
	Of    int    // the number of hosts in the call
	Hosts []*HostError
}

func (e *HostsError) Error() string {
	texts := make([]string, len(e.Hosts))
	for i, h := range e.Hosts {
		texts[i] = h.Error()
	}
	return fmt.Sprintf("tpvm: %s hosts: %d of %d failed: %s", e.Op, len(e.Hosts), e.Of, strings.Join(texts, "; "))
}

// Unwrap returns the error of each host.
func (e *HostsError) Unwrap() (errs []error) {
	for _, h := range e.Hosts {
		errs = append(errs, h)
	}
	return errs
}

// AddHosts makes the virtual machine start programs on hosts on which no task runs. On each it runs
// the command "tpvm pod", by ssh or by the HostStarter of WithHostStarter (see RunPod and EnvPod).
// The pod on that host lives until DelHosts, even if this task ends. It finds the cluster by the
// host's dirserver, or by the host's environment (ROCL_BIND, ROCL_JOIN, ROCL_KEY_FILE).
//
// Spawn knows the hosts by the names given here, besides their own. AddHosts returns the hosts that
// were added. If some could not be added, the error is a *HostsError that says which and why. A
// host that has a pod already fails with ErrHostAdded.
func (t *Thread) AddHosts(ctx context.Context, names ...string) ([]Host, error) {
	nodes := make([]string, len(names))
	errs := make([]*HostError, len(names))
	limit := make(chan struct{}, mostHosts)
	if len(names) > 0 {
		together(len(names), func(i int) {
			limit <- struct{}{}
			defer func() { <-limit }()
			if slices.Contains(names[:i], names[i]) {
				errs[i] = &HostError{Host: names[i], Err: ErrHostAdded, Advice: "the name is given twice"}
				return
			}
			nodes[i], errs[i] = t.task.addHost(ctx, names[i])
		})
	}
	added, err := t.addedHosts(ctx, t.task.foundTime, names, nodes, errs)
	if err != nil {
		return nil, err
	}
	e := &HostsError{Op: "add", Of: len(names)}
	for _, err := range errs {
		if err != nil {
			e.Hosts = append(e.Hosts, err)
		}
	}
	if len(e.Hosts) > 0 {
		return added, e
	}
	return added, nil
}

// addedHosts returns the hosts whose nodes are given, but for those with an error. A host that is
// not found among the members of the cluster for the time wait gets an error.
func (t *Thread) addedHosts(ctx context.Context, wait time.Duration, names, nodes []string, errs []*HostError) (added []Host, err error) {
	tick := time.NewTicker(foundEvery)
	defer tick.Stop()
	late := time.NewTimer(wait)
	defer late.Stop()
	for isLate := false; ; {
		added = added[:0]
		hs, err := t.Hosts(ctx)
		if err != nil {
			return nil, err
		}
		missing := 0
		for i, node := range nodes {
			if errs[i] != nil {
				continue
			}
			if k := slices.IndexFunc(hs, func(h Host) bool { return h.Node == node }); k >= 0 {
				added = append(added, hs[k])
				continue
			}
			if missing++; isLate {
				errs[i] = &HostError{Host: names[i], Err: rocl.ErrUnreachable, Advice: "its pod was found, and its node has left the cluster since: see that it runs"}
			}
		}
		if missing == 0 || isLate {
			return added, nil
		}
		select { // the cluster has taken a member for dead, which may be back soon
		case <-tick.C:
		case <-late.C:
			isLate = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// addHost starts a pod on a host, and returns the number of its node.
func (t *Task) addHost(ctx context.Context, name string) (string, *HostError) {
	if name == "" || name[0] == '-' || strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "", &HostError{Host: name, Err: ErrBadParam, Advice: "a host's name has no spaces and does not begin with -"}
	}
	pod := strings.Fields(os.Getenv(EnvPod))
	if len(pod) == 0 {
		pod = []string{"tpvm", "pod"}
	}
	var starter HostStarter = SSH{}
	if t.starter != nil {
		starter = t.starter
	}
	argv := append([]string{"env", EnvVM + "=" + t.vm, EnvAdded + "=" + name}, pod...)
	s, err := startShell(ctx, starter.Command(ctx, name, argv))
	if err != nil {
		return "", &HostError{Host: name, Err: err, Advice: "install ssh, or name another command in " + EnvSSH}
	}
	defer s.end()
	id, err := s.ready()
	if err != nil {
		return "", s.failed(ctx, name, pod[0], err)
	}
	node, err := t.foundPod(ctx, id)
	if err != nil {
		e := &HostError{Host: name, Err: err}
		switch {
		case errors.Is(err, ErrHostAdded):
			e.Advice = "it can be used as it is"
		case errors.Is(err, rocl.ErrNotFound), errors.Is(err, rocl.ErrPartial):
			e.Err = fmt.Errorf("the pod %v is not found from here", id)
			e.Advice = "its node and this one are not members of one cluster: run dirservers with --bind, --join and the same --key-file and --cluster on both"
		}
		return "", e
	}
	if err := s.release(); err != nil {
		return "", s.failed(ctx, name, pod[0], err)
	}
	return node, nil
}

// foundPod waits until a pod that was started can be found, and returns the number of its node. It
// fails with ErrHostAdded if the node has another pod that is not a task's.
func (t *Task) foundPod(ctx context.Context, id TID) (node string, err error) {
	tick := time.NewTicker(foundEvery)
	defer tick.Stop()
	late := time.NewTimer(t.foundTime)
	defer late.Stop()
	for node == "" {
		f, err := t.c.Lookup(ctx, id, attrNode)
		switch {
		case err == nil:
			node = attr(f, attrNode)
		case !errors.Is(err, rocl.ErrNotFound) && !errors.Is(err, rocl.ErrPartial):
			return "", err
		default:
			select {
			case <-tick.C:
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-late.C:
				return "", err
			}
		}
	}
	pods, err := t.pods(ctx, new(error), nil)
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		if p.node == node && p.pod != id && p.launcher != LauncherTask {
			return "", fmt.Errorf("%w: pod %v starts them", ErrHostAdded, p.pod)
		}
	}
	return node, nil
}

// A shell is a command that runs on another host.
type shell struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	output *tail
	stop   func() bool
	wait   func() error // waits for the command, and returns its error
}

// startShell starts a command that runs on another host. The end of ctx kills the command.
func startShell(ctx context.Context, cmd *exec.Cmd) (*shell, error) {
	s := &shell{cmd: cmd, output: &tail{}}
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(io.LimitReader(out, mostGreeted))
	cmd.Stderr = s.output
	cmd.WaitDelay = time.Second // for a background process that keeps the standard error open
	if err := programs.StartUnblocked(cmd); err != nil {
		return nil, err
	}
	s.wait = sync.OnceValue(func() error {
		err := cmd.Wait()
		if errors.Is(err, exec.ErrWaitDelay) {
			return nil
		}
		return err
	})
	s.stop = context.AfterFunc(ctx, func() {
		_ = cmd.Process.Kill()
		_ = out.Close() // a process that the command has started may hold it open
	})
	return s, nil
}

// errPod is the reason that a pod gave for its failure.
type errPod struct{ text string }

func (e *errPod) Error() string { return e.text }

// ready waits until the pod writes that it is ready, and returns its identifier. The lines before
// that are the remote shell's.
func (s *shell) ready() (TID, error) {
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the remote command ended before the pod was ready")
			}
			return TID{}, err
		}
		line = strings.TrimSpace(line)
		if why, ok := strings.CutPrefix(line, lineFailed); ok {
			return TID{}, &errPod{why}
		}
		if id, ok := strings.CutPrefix(line, lineReady); ok {
			return rocl.ParseGID(id)
		}
		_, _ = s.output.Write([]byte(line + "\n"))
	}
}

// release tells the pod that it has been found, and waits until the pod has detached from the
// shell.
func (s *shell) release() error {
	if _, err := io.WriteString(s.in, lineGo); err != nil {
		return err
	}
	kill := time.AfterFunc(shellTime, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	_, _ = io.Copy(io.Discard, s.out)
	return s.wait()
}

// end ends the command if it still runs, and with it a pod that was not released. It returns the
// error of the command.
func (s *shell) end() error {
	s.stop()
	_ = s.in.Close()
	kill := time.AfterFunc(shellTime, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	return s.wait()
}

// probe returns the command of the shell with "true" in place of the remote command, which is the
// last argument.
func (s *shell) probe() string {
	args := s.cmd.Args
	return strings.Join(append(slices.Clone(args[:max(0, len(args)-1)]), "true"), " ")
}

// failed returns the error of a host whose pod could not be started for the reason err.
func (s *shell) failed(ctx context.Context, host, pod string, err error) *HostError {
	ended := s.end()
	e := &HostError{Host: host, Err: err, Output: s.output.String()}
	var podErr *errPod
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		e.Err = context.Cause(ctx)
	case errors.As(err, &podErr):
		e.Advice = fmt.Sprintf("see that a dirserver runs on %s, or %q by hand", host, pod)
	case errors.As(ended, &exit) && exit.ExitCode() == 255:
		e.Err, e.Advice = ended, fmt.Sprintf("see that '%s' works and asks for nothing", s.probe())
	case errors.As(ended, &exit) && exit.ExitCode() == 127:
		e.Err, e.Advice = ended, fmt.Sprintf("%s is not in the PATH of commands on %s: install it there, or name it with its path in %s", pod, host, EnvPod)
	case ended != nil:
		e.Err = fmt.Errorf("%w: %w", err, ended)
	}
	return e
}

// A tail keeps the end of what is written to it. Its methods may be called by several goroutines.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - mostOutput; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}

// at returns the pods of a host by its name: the name given to AddHosts, else the number of its
// node, or else its own name, which several hosts may have.
func at(name string, pods []hostEntry) (ps []hostEntry) {
	for _, nameOf := range []func(hostEntry) string{
		func(p hostEntry) string { return p.added },
		func(p hostEntry) string { return p.node },
		func(p hostEntry) string { return p.host },
	} {
		for _, p := range pods {
			if name != "" && nameOf(p) == name {
				ps = append(ps, p)
			}
		}
		if len(ps) > 0 {
			break
		}
	}
	return ps
}

// DelHosts ends the pods of hosts, and waits until they have ended. A host is named as AddHosts
// named it, by the number of its node, or by its own name, which means all hosts that have it and
// whose nodes answer. The programs that these pods have started end too: they get SIGTERM, and
// SIGKILL after five seconds. Tasks that were started there otherwise go on.
//
// If some hosts could not be removed, the error is a *HostsError that says which and why. ErrNoPod
// means that the host has no pod that AddHosts or tpvm pod has started. The error matches
// rocl.ErrPartial too if a node did not answer, which may have the pod.
func (t *Thread) DelHosts(ctx context.Context, names ...string) error {
	var partial error
	pods, err := t.task.pods(ctx, &partial, nil)
	if err != nil {
		return fmt.Errorf("tpvm: delete hosts: %w", err)
	}
	e := &HostsError{Op: "delete", Of: len(names)}
	for _, name := range names {
		if err := t.task.delHost(ctx, name, pods, partial); err != nil {
			e.Hosts = append(e.Hosts, err)
		}
	}
	if len(e.Hosts) > 0 {
		return e
	}
	return nil
}

// delHost ends the pods among pods that belong to a host. It returns nil if it has ended one or
// more. partial is not nil if a node did not answer; see absent.
func (t *Task) delHost(ctx context.Context, name string, pods []hostEntry, partial error) *HostError {
	found, ended := "", false
	for _, p := range at(name, pods) {
		if p.launcher != LauncherPod {
			found = p.launcher
			continue
		}
		if err := t.endPodAt(ctx, p.pod); err != nil {
			return &HostError{Host: name, Err: err}
		}
		ended = true
	}
	if ended {
		return nil
	}
	e := &HostError{Host: name, Err: ErrNoPod}
	switch found {
	case "":
		if ok, err := t.hasHost(ctx, &partial, name); err == nil && !ok && partial == nil {
			e.Err = &textError{fmt.Sprintf("there is no host %q", name), ErrNoPod}
		}
		e.Err = absent(e.Err, partial)
	case LauncherDirserver:
		e.Advice = "its dirserver starts programs: restart it without --tpvm"
	case LauncherTask:
		e.Advice = "a task there starts programs: kill it, or let it exit"
	}
	return e
}

// hasHost reports whether a node of the cluster has the name or the number. For partial see
// findNoting.
func (t *Task) hasHost(ctx context.Context, partial *error, name string) (bool, error) {
	hs, err := t.hosts(ctx, partial, nil)
	return slices.ContainsFunc(hs, func(h Host) bool { return h.Name == name || h.Node == name }), err
}

// endPodAt asks a pod to end, and waits until it has ended.
func (t *Task) endPodAt(ctx context.Context, id TID) error {
	r, err := t.c.Register(ctx, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.Monitor(ctx, id, 0); err != nil {
		return err
	}
	if _, err := ask[done](ctx, t, id, podEnd, endPod{}); err != nil && !IsGone(err) && !errors.Is(err, rocl.ErrNoReply) {
		return err
	}
	m, err := r.Recv(ctx)
	if err != nil {
		return err
	}
	m.Release()
	return nil
}
