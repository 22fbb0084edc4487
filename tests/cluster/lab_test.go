// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A lab is a number of machines on one wire: network namespaces joined by a bridge. The bridge has
// a namespace of its own, so that nothing of it can be seen in the namespace of the test.
// Everything in a lab ends with the test. Processes end with the test's process too, and the next
// lab removes namespaces that a crash left behind.
type lab struct {
	t     *testing.T
	dir   string
	key   string
	args  []string // of all daemons, besides the necessary ones
	six   bool     // the nodes use IPv6 among each other
	nodes []*node
}

// A node is one machine: its namespace, the daemon of its directory, its faults.
type node struct {
	lab      *lab
	i        int
	ns       string
	host     string // its address on the wire
	six      string // its IPv6 address, if it has one
	dir      string // for its socket; stays when the daemon ends
	hostname string // the name of the machine for the node's daemon; "": that of this machine
	box      bool   // processes that are started now have their own process and mount namespaces

	daemon *subprocess.Process
	heard  chan struct{} // closed when the whole log has been read

	mu   sync.Mutex
	id   string               // of the node, after it has served
	view map[string]time.Time // the members that it sees alive, and since when
	lost map[string]time.Time // the members that it has lost, and when
	tail []string             // the last lines of the log

	loss int // per cent of arriving packets that are lost
	deaf map[*node]bool
}

var labs atomic.Int32

// newLab makes n machines on which nothing runs yet. It skips the test if it cannot.
func newLab(t *testing.T, n int) *lab {
	t.Helper()
	need(t)
	l := &lab{t: t}
	var err error
	if l.dir, err = scratch("lab"); err != nil { // short, because sockets lie in it
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("rocl-%d-%d-", os.Getpid(), labs.Add(1))
	t.Cleanup(func() { l.remove(prefix) })
	l.key = filepath.Join(l.dir, "key")
	try.OK(t, os.WriteFile(l.key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	wire := prefix + "wire"
	ip(t, "netns add "+wire)
	ip(t, "-n "+wire+" link add wire type bridge")
	ip(t, "-n "+wire+" link set wire up")
	for i := range n {
		m := &node{lab: l, i: i, ns: prefix + strconv.Itoa(i), host: fmt.Sprintf("10.91.0.%d", i+1), dir: filepath.Join(l.dir, strconv.Itoa(i)), deaf: map[*node]bool{}}
		try.OK(t, os.Mkdir(m.dir, 0o700))
		ip(t, "netns add "+m.ns)
		ip(t, fmt.Sprintf("-n %s link add port%d type veth peer name wire netns %s", wire, i, m.ns))
		ip(t, fmt.Sprintf("-n %s link set port%d master wire up", wire, i))
		ip(t, fmt.Sprintf("-n %s addr add %s/24 dev wire", m.ns, m.host))
		if hasSix() {
			m.six = fmt.Sprintf("fd91::%x", i+1)
			ip(t, fmt.Sprintf("-n %s addr add %s/64 dev wire nodad", m.ns, m.six))
		}
		ip(t, "-n "+m.ns+" link set lo up")
		ip(t, "-n "+m.ns+" link set wire up")
		l.nodes = append(l.nodes, m)
	}
	return l
}

// need skips the test if no namespaces can be made. With ROCL_NETNS it fails the test instead.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a minute")
	}
	if err := able(); err != nil {
		if os.Getenv("ROCL_NETNS") == "must" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// able returns the reason why no namespaces can be made, or nil.
var able = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces are made by root only")
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("no network namespaces: %w (packages iproute2, nftables)", err)
		}
	}
	sweep()
	try := fmt.Sprintf("rocl-%d-try", os.Getpid())
	for _, what := range []string{"add", "del"} {
		if out, err := exec.Command("ip", "netns", what, try).CombinedOutput(); err != nil {
			return fmt.Errorf("no network namespaces: %w: %s", err, out)
		}
	}
	return nil
})

// hasSix reports whether this machine has IPv6.
func hasSix() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// scratch makes a folder that sweep can find. Its name is short, because sockets lie in it.
func scratch(what string) (string, error) {
	return os.MkdirTemp("", fmt.Sprintf("rocl-%d-%s-", os.Getpid(), what))
}

// sweep removes the namespaces and folders of labs whose processes have ended.
func sweep() {
	stale := func(name string) bool {
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, "rocl-"), "-")
		n, err := strconv.Atoi(pid)
		return err == nil && posix.Kill(n, 0) == syscall.ESRCH
	}
	for _, ns := range namespaces() {
		if stale(ns) {
			_ = exec.Command("ip", "netns", "del", ns).Run()
		}
	}
	for _, what := range []string{"lab", "bin"} {
		dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "rocl-*-"+what+"-*"))
		for _, dir := range dirs {
			if stale(filepath.Base(dir)) {
				os.RemoveAll(dir)
			}
		}
	}
}

// namespaces returns the names of the namespaces that labs have made.
func namespaces() (all []string) {
	out, _ := exec.Command("ip", "netns", "list").Output()
	for line := range strings.Lines(string(out)) {
		if ns, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(ns, "rocl-") {
			all = append(all, ns)
		}
	}
	return all
}

func (l *lab) remove(prefix string) {
	for _, n := range l.nodes {
		if n.daemon != nil {
			n.daemon.Kill()
		}
		if l.t.Failed() {
			n.mu.Lock()
			for _, line := range n.tail[max(0, len(n.tail)-8):] {
				l.t.Logf("node %d (%s): %s", n.i, n.id, line)
			}
			n.mu.Unlock()
		}
	}
	for _, ns := range namespaces() {
		if strings.HasPrefix(ns, prefix) {
			_ = exec.Command("ip", "netns", "del", ns).Run()
		}
	}
	os.RemoveAll(l.dir)
}

func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// inside returns what f returns in the namespace of a node, such as a connection or a listener.
func inside[T any](n *node, f func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err = enter(n.ns); err == nil {
			v, err = f()
		}
	}()
	<-done
	return v, err
}

// in starts a command in a namespace.
func in(ns string, cmd *exec.Cmd) (*subprocess.Process, error) {
	return subprocess.Start(cmd, subprocess.Prepared(func() error {
		if err := enter(ns); err != nil {
			return err
		}
		// The node should be like a machine of its own: other work of this machine should not make
		// its timers late.
		raise()
		return nil
	}))
}

func (n *node) socket() string { return filepath.Join(n.dir, "d.sock") }
func (n *node) bind() string {
	if n.lab.six {
		return "[" + n.six + "]:7946"
	}
	return n.host + ":7946"
}

// command returns a command that runs on the node.
func (n *node) command(exe string, args ...string) *exec.Cmd {
	if n.box {
		return exec.Command("unshare", append([]string{"--pid", "--fork", "--kill-child", "--mount", "--mount-proc", exe}, args...)...)
	}
	if n.hostname != "" {
		return exec.Command("unshare", append([]string{"--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, n.hostname, exe}, args...)...)
	}
	return exec.Command(exe, args...)
}

// serve starts the node's daemon with the addresses of some members, and waits until it serves.
func (n *node) serve(join ...*node) {
	t := n.lab.t
	t.Helper()
	args := []string{"--socket", n.socket(), "--bind", n.bind(), "--cluster", "lab", "--log-format", "json"}
	if n.lab.key != "" {
		args = append(args, "--key-file", n.lab.key)
	}
	args = append(args, n.lab.args...)
	for _, j := range join {
		args = append(args, "--join", j.bind())
	}
	if v := os.Getenv("ROCL_LAB_LOG"); v != "" {
		args = append(args, "--log-level", v)
	}
	cmd := n.command(dirserver, args...)
	r, w := io.Pipe()
	cmd.Stderr = w
	if n.heard != nil {
		<-n.heard // the whole log of the previous daemon has been read
	}
	n.mu.Lock()
	n.view, n.lost = map[string]time.Time{}, map[string]time.Time{}
	n.mu.Unlock()
	p := try.Get(in(n.ns, cmd))(t)
	n.daemon, n.heard = p, make(chan struct{})
	go func() {
		<-p.Ended()
		w.Close()
	}()
	ready := make(chan struct{})
	go n.read(r, ready, n.heard)
	select {
	case <-ready:
	case <-n.heard:
		t.Fatalf("the daemon of node %d ended", n.i)
	case <-time.After(eventually.Timeout):
		t.Fatalf("the daemon of node %d does not serve", n.i)
	}
}

// read follows the daemon's log, and records which members it sees alive.
func (n *node) read(r io.Reader, ready, end chan struct{}) {
	defer close(end)
	s := bufio.NewScanner(r)
	for s.Scan() {
		var l struct {
			Time  time.Time
			Msg   string
			Node  string
			Event string
		}
		err := json.Unmarshal(s.Bytes(), &l)
		n.mu.Lock()
		n.tail = append(n.tail, s.Text())
		switch {
		case err != nil:
		case l.Msg == "serving" && l.Node != "":
			n.id = l.Node
			close(ready)
		case l.Msg == "cluster: this node is a member", l.Msg == "cluster: member" && slices.Contains(arrivals, l.Event):
			n.view[l.Node] = l.Time
			delete(n.lost, l.Node)
		case l.Msg == "cluster: member":
			delete(n.view, l.Node)
			n.lost[l.Node] = l.Time
		}
		n.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r)
}

// arrivals are the events of a member that is alive.
var arrivals = []string{"joined", "restarted", "reached again"}

// sees returns the members that the node sees alive.
func (n *node) sees() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.view))
}

// lostAt returns when the node lost another node, and whether it did.
func (n *node) lostAt(o *node) (time.Time, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.lost[o.id]
	return at, ok
}

// deaths counts how often the node's daemons have lost another node.
func (n *node) deaths() (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.tail {
		if strings.Contains(l, `"cluster: member"`) && !slices.ContainsFunc(arrivals, func(e string) bool { return strings.Contains(l, `"event":"`+e+`"`) }) {
			c++
		}
	}
	return c
}

func (n *node) kill() { n.daemon.Kill() }

// stop ends the daemon as an operator does.
func (n *node) stop() {
	n.lab.t.Helper()
	n.daemon.Signal(syscall.SIGTERM)
	select {
	case <-n.daemon.Ended():
	case <-time.After(eventually.Timeout):
		n.lab.t.Fatalf("the daemon of node %d does not stop", n.i)
	}
}

func (n *node) pause()  { n.daemon.Signal(posix.SIGSTOP) }
func (n *node) resume() { n.daemon.Signal(posix.SIGCONT) }

// whole reports whether each of the nodes sees exactly these nodes.
func (l *lab) whole(nodes ...*node) bool {
	var want []string
	for _, n := range nodes {
		want = append(want, n.id)
	}
	slices.Sort(want)
	return !slices.ContainsFunc(nodes, func(n *node) bool { return !slices.Equal(n.sees(), want) })
}

// together waits until whole reports true.
func (l *lab) together(nodes ...*node) {
	l.t.Helper()
	eventually.True(l.t, "one view", func() bool { return l.whole(nodes...) })
}

// deathSeen waits until all other nodes have lost the dead one. It returns how long after since the
// first and the last one did.
func (l *lab) deathSeen(dead *node, since time.Time) (first, last time.Duration) {
	l.t.Helper()
	first = time.Hour
	for _, n := range l.nodes {
		if n == dead {
			continue
		}
		eventually.True(l.t, "the death is seen", func() bool { _, ok := n.lostAt(dead); return ok })
		at, _ := n.lostAt(dead)
		first, last = min(first, at.Sub(since)), max(last, at.Sub(since))
	}
	return first, last
}

// Faults are made where packets arrive: a node drops the packets that it should not hear.

// apply sets up the faults of a node as its fields say.
func (n *node) apply() {
	n.lab.t.Helper()
	var b strings.Builder
	b.WriteString("table inet faults\ndelete table inet faults\n")
	if n.loss > 0 || len(n.deaf) > 0 {
		b.WriteString("table inet faults { chain in { type filter hook input priority 0; iifname lo accept\n")
		for o := range n.deaf {
			fmt.Fprintf(&b, "ip saddr %s drop\n", o.host)
			if o.six != "" {
				fmt.Fprintf(&b, "ip6 saddr %s drop\n", o.six)
			}
		}
		if n.loss > 0 {
			fmt.Fprintf(&b, "numgen random mod 100 < %d drop\n", n.loss)
		}
		b.WriteString("}\n}\n")
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(b.String())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p := try.Get(in(n.ns, cmd))(n.lab.t)
	<-p.Ended()
	if !cmd.ProcessState.Success() {
		n.lab.t.Fatalf("nft: %s: %s", b.String(), out.String())
	}
}

// lose makes all nodes drop percent of all packets.
func (l *lab) lose(percent int) {
	l.t.Helper()
	for _, n := range l.nodes {
		n.loss = percent
		n.apply()
	}
}

// cut separates two groups: neither hears the other.
func (l *lab) cut(a, b []*node) {
	l.t.Helper()
	deafen(a, b)
	deafen(b, a)
}

// deafen makes the nodes ears drop the packets of the nodes to. In the other direction packets
// arrive.
func deafen(ears, to []*node) {
	for _, n := range ears {
		for _, o := range to {
			if o != n {
				n.deaf[o] = true
			}
		}
		n.apply()
	}
}

// heal ends all faults.
func (l *lab) heal() {
	l.t.Helper()
	for _, n := range l.nodes {
		n.loss = 0
		clear(n.deaf)
		n.apply()
	}
}

// dirserver is the path of the daemon, which is built once.
var dirserver string

// built is the folder that has the commands. If it is empty, the tests build them.
var built = os.Getenv("ROCL_BUILT")

func build() error {
	if built != "" {
		dirserver = filepath.Join(built, "dirserver")
		return nil
	}
	dir, err := scratch("bin")
	if err != nil {
		return err
	}
	dirserver = filepath.Join(dir, "dirserver")
	cmd := exec.Command("go", "build", "-o", dirserver, "./cmd/dirserver")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("building dirserver: %w\n%s", err, out), os.RemoveAll(dir))
	}
	return nil
}
