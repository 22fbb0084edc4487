// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// orphan is a script that makes an orphan, and waits until the orphan has ended and was reaped. Its
// argument is a file for the orphan's number. It fails unless process 1 has started it.
const orphan = `[ $PPID = 1 ] || exit 8
(sh -c 'echo $$ >$0.new; mv $0.new $0' "$0" &)
while ! [ -s "$0" ]; do sleep 0.01; done
i=0
while [ -e /proc/$(cat "$0") ]; do
	[ $((i+=1)) -lt 3000 ] || { cat /proc/$(cat "$0")/status >&2; exit 9; }
	sleep 0.01
done
echo reaped`

// processOne starts a command as process 1 of a namespace, as in a container. It skips the test
// where that needs rights or tools that are not there.
func processOne(t *testing.T, args ...string) *child {
	t.Helper()
	unshare := need(t, "unshare")
	if os.Geteuid() != 0 {
		t.Skip("only root makes namespaces")
	}
	return launch(t, exec.Command(unshare, append([]string{"--pid", "--fork", "--kill-child", "--mount", "--mount-proc"}, args...)...))
}

// As process 1 rocl serve reaps the orphans that its commands leave.
func TestServeAsProcessOne(t *testing.T) {
	sock := socket(t)
	p := processOne(t, rocl, "serve", "--socket", sock, "name=one", "--", "sh", "-c", orphan, filepath.Join(t.TempDir(), "pid"))
	p.until(t, "serving as")
	cmd := exec.Command(rocl, "call", "--socket", sock, "--timeout", eventually.Timeout.String(), "name=one")
	cmd.Stdin = bytes.NewReader(nil)
	if out, errOut, code := runCommand(t, eventually.Timeout, cmd); code != 0 || out != "reaped\n" {
		t.Errorf("exit code %d, %q, %q", code, out, errOut)
	}
}

// As process 1 dirserver --tpvm reaps the orphans that the programs of tasks leave.
func TestDirserverAsProcessOne(t *testing.T) {
	key, bind := clusterKey(t), [2]string{freePort(t), freePort(t)}
	ctx := eventually.Context(t)
	// A task on another node, since a task starts the programs of its own node itself.
	task := try.Get(tpvm.Enrol(ctx, tpvm.WithVM("one"), tpvm.WithoutLaunch(), tpvm.WithRocl(lib.WithSocket(socket(t)),
		lib.WithCluster("one"), lib.WithMember(cluster.Member{Bind: bind[0], KeyFile: key}))))(t)
	processOne(t, dirserver, "--socket", socket(t), "--tpvm", "one", "--cluster", "one", "--bind", bind[1], "--join", bind[0], "--key-file", key)
	node := ""
	eventually.True(t, "the pod serves", func() bool {
		hosts, err := task.Hosts(ctx)
		for _, h := range hosts {
			if h.Launcher == tpvm.LauncherDirserver {
				node = h.Node
			}
		}
		return err == nil && node != ""
	})
	defer func() { try.OK(t, task.Exit(ctx)) }()
	var out bytes.Buffer
	try.OK(t, task.Catchout(&out))
	ps := try.Get(task.Start(ctx, "sh", 1, tpvm.OnHost(node), tpvm.Args("-c", orphan, filepath.Join(t.TempDir(), "pid"))))(t)
	try.Equal(t, try.Get(ps[0].Wait(ctx))(t).ExitCode(), 0, "%s", &out)
}
