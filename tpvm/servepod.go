// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
)

// EnvAdded is set by AddHosts for the command that starts a pod. Its value is the name under which
// the host is added. RunPod reads it, and unsets it.
const EnvAdded = "TPVM_ADDED"

// envDetached is set for the process of a pod that RunPod has put into the background.
const envDetached = "TPVM_DETACHED"

// The values of Host.Launcher.
const (
	LauncherTask      = "task"      // tasks that run on the host
	LauncherPod       = "pod"       // a pod that AddHosts, or the command tpvm pod, has started
	LauncherDirserver = "dirserver" // the pod of the node's dirserver
)

// endTime is how long programs have, after SIGTERM, before a pod that ends kills them.
const endTime = 5 * time.Second

var errAbandoned = errors.New("tpvm: the process that added the host gave it up")

// endPod is the request that a pod ends.
type endPod struct{}

// WithEnv adds variables, each as NAME=VALUE, to the environment of the programs that the task or
// pod starts.
func WithEnv(env ...string) Option { return func(f *config) { f.env = append(f.env, env...) } }

// WithLauncher sets the Host.Launcher that Hosts reports for the host of the pod. By default it is
// LauncherPod for ServePod and RunPod, and LauncherTask for Enrol. DelHosts ends only the pods of a
// LauncherPod.
func WithLauncher(what string) Option {
	return func(f *config) { f.podAttr(attrServedBy, what) }
}

// WithReady makes ServePod call f when programs can be started. pod identifies the pod.
func WithReady(f func(pod TID)) Option { return func(c *config) { c.ready = f } }

// podAttr sets an attribute of the pod.
func (f *config) podAttr(name, value string) {
	if f.podAttrs == nil {
		f.podAttrs = rocl.Attrs{}
	}
	f.podAttrs[name] = value
}

// ServePod serves a pod: tasks of the virtual machine can start programs on this host until ctx
// ends, or until a task ends the pod by DelHosts. The pod is no task. The programs that it has
// started end with it, and the processes that these have started: they get SIGTERM, and SIGKILL
// after five seconds. If the process of the pod is killed, they get SIGTERM. ServePod returns nil
// if the pod ended as it was asked to.
func ServePod(ctx context.Context, opts ...Option) (err error) {
	defer wrap(&err, "tpvm: serve a pod")
	f := configure(append([]Option{WithLauncher(LauncherPod)}, opts...))
	f.servesPod = true
	t, err := newTask(ctx, f)
	if err != nil {
		return err
	}
	if err := t.startPod(ctx); err != nil {
		return t.abandon(err)
	}
	if f.ready != nil {
		f.ready(t.pod.r.ID())
	}
	select {
	case <-ctx.Done():
	case <-t.pod.asked:
	}
	t.pod.endChildren()
	last, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), endTime, errLateExit)
	defer cancel()
	return t.leave(last)
}

// endPod answers the request to end. The pod's handler then ends the pod.
func (p *pod) endPod(context.Context, endPod) (done, error) {
	if p.t.podAttrs[attrServedBy] != LauncherPod {
		return done{}, ErrNoPod
	}
	return done{}, nil
}

// endChildren ends the programs that the pod has started, and waits for them. From then on the pod
// starts no programs.
func (p *pod) endChildren() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	cs := p.running()
	for _, c := range cs {
		_ = c.signal(syscall.SIGTERM)
	}
	late := time.NewTimer(endTime)
	defer late.Stop()
	for _, c := range cs {
		select {
		case <-c.exited:
			continue
		case <-late.C:
		}
		for _, c := range cs {
			_ = c.signal(syscall.SIGKILL)
		}
		return
	}
}

// RunPod is the body of a command such as tpvm pod. If a user has started the command, RunPod calls
// ServePod. If AddHosts has started it, RunPod starts a background process of the same command that
// serves the pod, and returns when AddHosts has found that pod.
func RunPod(ctx context.Context, opts ...Option) error {
	name := os.Getenv(EnvAdded)
	if name == "" {
		return ServePod(ctx, opts...)
	}
	if os.Getenv(envDetached) == "" {
		err := detachPod(ctx)
		wrap(&err, "tpvm: serve the pod of host %s", name)
		return err
	}
	_, _ = os.Unsetenv(EnvAdded), os.Unsetenv(envDetached) // programs that the pod starts must not get them
	return serveDetached(ctx, name, opts)
}

// The files of the background process.
const (
	fdIn       = 3 + iota // standard input of the command, from AddHosts
	fdOut                 // standard output of the command, to AddHosts
	fdDetached            // a pipe on which the command waits for a byte or the end
)

// detachPod starts this command again in the background, and waits until AddHosts has released that
// process.
func detachPod(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), envDetached+"=1")
	cmd.ExtraFiles = []*os.File{os.Stdin, os.Stdout, w}
	cmd.SysProcAttr = ownSession()
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if n, _ := r.Read(make([]byte, 1)); n == 1 {
		return cmd.Process.Release()
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	return errAbandoned
}

// The lines that the background process writes for AddHosts, and the line that it waits for.
const (
	lineReady  = "tpvm-pod ready "  // followed by the identifier of the pod
	lineFailed = "tpvm-pod failed " // followed by the reason
	lineGo     = "go\n"
)

// serveDetached serves a pod in the background. Until AddHosts has found the pod, the end of the
// remote shell ends the pod.
func serveDetached(ctx context.Context, name string, opts []Option) error {
	in, out, detached := os.NewFile(fdIn, "in"), os.NewFile(fdOut, "out"), os.NewFile(fdDetached, "detached")
	for _, f := range []*os.File{in, out, detached} {
		if f == nil {
			return fmt.Errorf("tpvm: serve the pod of host %s: %w: the environment variable %s was not set by AddHosts", name, ErrBadParam, envDetached)
		}
		defer f.Close()
		keepFromPrograms(f)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // returns at the end of the command's standard input
		line, _ := bufio.NewReader(io.LimitReader(in, int64(len(lineGo)))).ReadString('\n')
		if line != lineGo {
			cancel(errAbandoned)
			return
		}
		_, _ = in.Close(), out.Close()
		_, _ = detached.Write([]byte{1})
		_ = detached.Close()
	}()
	ready := func(id TID) { fmt.Fprintf(out, "%s%v\n", lineReady, id) }
	err := ServePod(ctx, append(opts, func(f *config) { f.podAttr(attrAdded, name) }, WithReady(ready))...)
	if err == nil && errors.Is(context.Cause(ctx), errAbandoned) {
		err = errAbandoned
	}
	if err != nil {
		fmt.Fprintf(out, "%s%s\n", lineFailed, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return err
}
