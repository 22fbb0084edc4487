// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/resource"
)

// mostExamined limits the contexts, and the nodes, that an exam looks at.
const mostExamined = 10_000

// An exam is what can be seen of a node and its cluster at one moment. It is made once, and then
// judged by the checks of doctor. Each part has an error if it could not be had.
type exam struct {
	path   string // of the directory's socket, or its tcp:// address
	isUnix bool
	err    error // why no process was reached there, or nil
	pid    int   // of the process that serves, as this one sees it; 0 if it does not see it

	status    directory.Status
	statusErr error // why the directory does not tell of itself, or nil
	silent    bool  // the process was reached and did not answer in time
	member    *cluster.Status
	nodes     []nodeJSON
	contexts  []resource.Record // of this node
	listErr   error             // why nodes or contexts are not complete, or nil

	// Of a search of each member by a small question, by a large one, and, if some member has not
	// answered that, by a small one again.
	small, large, again          directory.Trace
	smallErr, largeErr, againErr error

	view    *observe.View // what the contexts of this node tell; nil: they were not asked, or viewErr
	viewErr error
}

// examine looks at the node. It changes nothing. It takes up to a few times --timeout.
func examine(ctx context.Context, g Globals) *exam {
	e := &exam{path: g.path()}
	e.isUnix = !directory.IsTCP(e.path)
	e.reach(ctx, g)
	if e.err == nil {
		e.ask(ctx, g)
	} else {
		e.statusErr = e.err
	}
	return e
}

// reach connects to the socket, and learns which process has it.
func (e *exam) reach(ctx context.Context, g Globals) {
	p := g.withTimeout(ctx)
	defer p.stop()
	nc, err := directory.DialSocket(e.path)(p)
	if err != nil {
		e.err = p.err(err)
		return
	}
	defer nc.Close()
	e.pid = peerPID(nc)
}

// peerPID returns the number of the process at the other end of a Unix socket, 0 if the kernel does
// not tell.
func peerPID(nc net.Conn) (pid int) {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { pid = socketPeer(int(fd)) })
	return max(pid, 0)
}

// ask puts questions to the directory, as a context without resources.
func (e *exam) ask(ctx context.Context, g Globals) {
	p := g.withTimeout(ctx)
	defer p.stop()
	c, err := directory.Join(p, directory.DialSocket(e.path), directory.WithClientLogger(g.logger()))
	if err == nil {
		defer c.Close()
		err = control(p, c, &e.status, "status")
	}
	if err = p.err(err); err != nil {
		var silent *silentError
		e.statusErr, e.silent = err, errors.As(err, &silent)
		if c == nil || e.silent {
			return
		}
	}
	if len(e.status.Member) > 0 {
		e.member = new(cluster.Status)
		if err := json.Unmarshal(e.status.Member, e.member); err != nil {
			e.member, e.statusErr = nil, err
		}
	}
	e.list(ctx, g, c)
	e.search(ctx, g, c)
	e.viewErr = g.ask(ctx, func(p *timeoutContext, c *rocl.Context) (err error) {
		e.view, err = observe.Gather(p.parent, c, false, p.limit) // p may end while it waits for a silent context
		return err
	})
}

// control asks the directory's process for something, and reads the answer into v.
func control(ctx context.Context, c *directory.Client, v any, do string, args ...string) error {
	b, err := c.Control(ctx, do, args...)
	if errors.Is(err, directory.ErrProtocol) {
		return fmt.Errorf("the directory's process is older than this command: %w", err)
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	return err
}

// list lists the nodes of the cluster and the contexts of this node.
func (e *exam) list(ctx context.Context, g Globals, c *directory.Client) {
	each := func(kind string, f func(resource.Record) (more bool)) {
		p := g.withTimeout(ctx)
		defer p.stop()
		l := new(resource.List)
		_ = l.AddString(rocl.AttrKind, kind)
		for r, err := range c.FindAll(p, l) {
			if err != nil {
				e.listErr = p.err(err)
			} else if !f(r) {
				return
			}
		}
	}
	each("node", func(r resource.Record) bool {
		e.nodes = append(e.nodes, newNodeJSON(&rocl.Found{ID: r.ID, Attrs: r.Attrs}))
		return len(e.nodes) < mostExamined
	})
	each("context", func(r resource.Record) bool {
		if r.ID.Node() == c.Self().Node() && r.ID.Context() != c.Self() {
			e.contexts = append(e.contexts, r)
		}
		return len(e.contexts) < mostExamined
	})
}

// largeQuestion is the length of a pattern that fills several datagrams of the directory.
const largeQuestion = 8 << 10

// search asks each member for what no resource is, by a small question and by a large one.
func (e *exam) search(ctx context.Context, g Globals, c *directory.Client) {
	if e.member == nil || e.member.Error != "" {
		return
	}
	ask := func(value string) (directory.Trace, error) {
		p := g.withTimeout(ctx)
		defer p.stop()
		l := new(resource.List)
		_ = l.AddString(resource.SystemPrefix+"doctor", value)
		t, err := c.Trace(p, strategy.Unicast, l)
		return t, p.err(err)
	}
	if e.small, e.smallErr = ask("?"); e.smallErr == nil {
		e.large, e.largeErr = ask(strings.Repeat("?", largeQuestion))
	}
	if e.largeErr == nil && len(silentNodes(&e.large)) > 0 {
		e.again, e.againErr = ask("?")
	}
}

// silentNodes returns the nodes that have not answered a search.
func silentNodes(t *directory.Trace) (nodes []resource.NodeID) {
	for _, s := range t.Steps {
		if s.Outcome == "silent" && !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// name returns how a person knows a node: the name of its machine, if known, and its address.
func (e *exam) name(n resource.NodeID) string {
	host, addr := "", ""
	for i := range e.nodes {
		if e.nodes[i].Node == n {
			host, addr = e.nodes[i].Host, e.nodes[i].Addr
		}
	}
	if e.member != nil {
		for _, m := range e.member.Members {
			if m.Node == n {
				host, addr = m.Host, m.Addr
			}
		}
	}
	text := "node " + nodeName(n)
	if host != "" {
		text = host + ", " + text
	}
	if addr != "" {
		text += " at " + addr
	}
	return text
}

// names is name of several nodes, of which it names a few.
func (e *exam) names(all []resource.NodeID) string {
	const most = 4
	var texts []string
	for _, n := range all[:min(len(all), most)] {
		texts = append(texts, e.name(n))
	}
	if more := len(all) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// process describes a process: its number, its name, and whether it is stopped.
func process(pid int) string {
	if pid == 0 {
		return "a process of another container"
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // number (name) state …
	_, tail, ok := bytes.Cut(b, []byte("("))
	end := bytes.LastIndexByte(tail, ')')
	if !ok || end < 0 || end+2 >= len(tail) {
		return fmt.Sprintf("process %d", pid)
	}
	text := fmt.Sprintf("process %d (%s)", pid, tail[:end])
	if s := tail[end+2]; s == 'T' || s == 't' {
		text += ", which is stopped"
	}
	return text
}

// limitsOf returns the limits of a process that are in force, by their name in /proc. A missing
// name is no limit.
func limitsOf(pid int) (map[string]uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		if len(line) < 26 { // the name has 25 columns, then come the limit in force and the highest one
			continue
		}
		if f := strings.Fields(line[25:]); len(f) > 0 {
			if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
				all[strings.TrimSpace(line[:25])] = n
			}
		}
	}
	return all, nil
}

// groupUse returns what the control groups (version 2) of a process use of their limit of a figure,
// memory or pids: the highest share, and its group. share is 0 if nothing is limited.
func groupUse(pid int, figure string) (share float64, group string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return 0, "", err
	}
	_, dir, ok := strings.Cut("\n"+string(b), "\n0::")
	if !ok {
		return 0, "", errors.New("the process is in no control group of version 2")
	}
	dir, _, _ = strings.Cut(dir, "\n")
	number := func(dir, name string) float64 {
		b, _ := os.ReadFile("/sys/fs/cgroup" + dir + "/" + name)
		n, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
		return n
	}
	for ; dir != "" && dir != "/"; dir = dir[:max(0, strings.LastIndexByte(dir, '/'))] {
		if most := number(dir, figure+".max"); most > 0 {
			if s := number(dir, figure+".current") / most; s > share {
				share, group = s, dir
			}
		}
	}
	return share, group, nil
}

// seconds returns a duration that a person reads.
func seconds(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
