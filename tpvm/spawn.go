// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rocl-go/rocl"
)

// A spawn holds the options of a Spawn or Start, and what its look-up did not learn.
type spawn struct {
	args          []string
	env           []string
	dir           string
	host, arch    string
	where         rocl.Match
	conditions    []rocl.FindOption
	byCores       bool
	complement    bool
	noThreads     bool
	noPrograms    bool
	endWithParent bool
	noOutput      bool
	noParent      bool

	unasked error // nil, or that a node did not answer, on which a task may export the name
}

// A SpawnOption changes one default of Spawn.
type SpawnOption func(*spawn)

// Args gives the arguments of the threads or programs.
func Args(args ...string) SpawnOption { return func(s *spawn) { s.args = args } }

// Env adds variables, each as NAME=VALUE, to the environment of programs.
func Env(env ...string) SpawnOption { return func(s *spawn) { s.env = append(s.env, env...) } }

// Dir sets the directory in which programs start. The default is the directory of the task that
// starts them.
func Dir(path string) SpawnOption { return func(s *spawn) { s.dir = path } }

// OnHost chooses a host by its name, by the name under which AddHosts added it, or by the number of
// its node. "." is the caller's host.
func OnHost(name string) SpawnOption { return func(s *spawn) { s.host = name } }

// OnArch chooses hosts of an architecture, as GOOS/GOARCH.
func OnArch(arch string) SpawnOption { return func(s *spawn) { s.arch = arch } }

// Where chooses hosts whose node resources match a pattern, such as
// rocl.Match{"zone": "a"} for a label of their dirservers, and satisfy conditions, such as
// rocl.At(rocl.AttrCores, rocl.Ge, 8).
func Where(m rocl.Match, conditions ...rocl.FindOption) SpawnOption {
	return func(s *spawn) {
		if s.where = m; m == nil {
			s.where = rocl.Match{}
		}
		s.conditions = conditions
	}
}

// ByCores spreads in proportion to the number of processors of each host. By default all get the
// same number.
func ByCores() SpawnOption { return func(s *spawn) { s.byCores = true } }

// Complement chooses the hosts that OnHost, OnArch and Where do not choose.
func Complement() SpawnOption { return func(s *spawn) { s.complement = true } }

// Programs makes Spawn ignore exported functions.
func Programs() SpawnOption { return func(s *spawn) { s.noThreads = true } }

// Threads makes Spawn ignore programs.
func Threads() SpawnOption { return func(s *spawn) { s.noPrograms = true } }

// EndWithParent makes the programs get SIGTERM when the task or thread that spawned them has ended.
// Without EndWithParent they go on.
func EndWithParent() SpawnOption { return func(s *spawn) { s.endWithParent = true } }

// NoParent hides the spawner from the threads or programs: their Parent returns the zero TID, as if
// a user had started them. Nothing else changes. The spawner gets the output, Wait and
// EndWithParent work, and TaskInfo.Parent is the spawner.
func NoParent() SpawnOption { return func(s *spawn) { s.noParent = true } }

// Self, as the name to spawn or to start, is the program of the caller's process.
const Self = "."

// NoOutput discards the output of programs.
func NoOutput() SpawnOption { return func(s *spawn) { s.noOutput = true } }

// String describes the conditions on hosts, for errors.
func (s *spawn) String() string {
	var b strings.Builder
	if s.complement {
		b.WriteString(" (complement)")
	}
	if s.host != "" {
		fmt.Fprintf(&b, " on host %q", s.host)
	}
	if s.arch != "" {
		fmt.Fprintf(&b, " of architecture %s", s.arch)
	}
	if s.where != nil {
		fmt.Fprintf(&b, " where %v", map[string]string(s.where))
	}
	if len(s.conditions) > 0 {
		fmt.Fprintf(&b, " with %d conditions on numbers", len(s.conditions))
	}
	return b.String()
}

// A hostEntry is a pod on which a thread or program may be started.
type hostEntry struct {
	pod      TID
	node     string
	host     string // the host's own name
	added    string // the name under which AddHosts added the host, or ""
	launcher string // of a host for programs: the kind of process that serves the pod
	weight   int    // its share; 0 counts as 1
}

// name returns the name of the host, for errors.
func (p hostEntry) name() string { return cmp.Or(p.added, p.host) }

// Spawn starts n threads of the function that tasks export under a name. If no task exports it,
// Spawn starts n tasks that run the program of that name. It returns their identifiers. The name
// Self is the caller's own program.
//
// The threads are spread evenly over the tasks that export the name, and programs over the hosts,
// in rotation; options restrict these. The first thread goes to the caller's own task if that
// exports the name, and the first program to its host. Successive calls continue the rotation: ten
// calls that spawn one thread each are spread like one call that spawns ten.
//
// Each program is the leader of a session without a terminal. An interrupt at the terminal of its
// launcher does not reach it.
//
// Spawn returns when the threads run and the tasks have enrolled: messages may be sent to them. If
// some could not be started, the error is a *SpawnError that says why, and the identifiers of the
// rest are returned with it. An error that matches ErrNoHost or ErrNoProgram matches
// rocl.ErrPartial too if a node did not answer, on which there may be the host or the function.
func (t *Thread) Spawn(ctx context.Context, name string, n int, opts ...SpawnOption) ([]TID, error) {
	s, name, err := newSpawn(name, n, opts)
	if err != nil {
		return nil, fmt.Errorf("tpvm: spawn %d of %q: %w", n, name, err)
	}
	hosts, isProgram, err := t.task.hostEntries(ctx, name, s)
	if err != nil {
		return nil, fmt.Errorf("tpvm: spawn %q: %w", name, err)
	}
	return t.start(ctx, hosts, isProgram, name, n, s)
}

// newSpawn returns the options of a spawn, and its name, with the path of the program in place of
// Self.
func newSpawn(name string, n int, opts []SpawnOption) (s *spawn, path string, err error) {
	s = new(spawn)
	for _, o := range opts {
		if o != nil {
			o(s)
		}
	}
	s.noThreads = s.noThreads || name == Self
	if name == "" || n < 1 || n > mostThreads || s.noThreads && s.noPrograms {
		return nil, name, ErrBadParam
	}
	if name == Self {
		name, err = os.Executable()
	}
	return s, name, err
}

// start spreads n threads or programs over hosts.
func (t *Thread) start(ctx context.Context, hosts []hostEntry, isProgram bool, name string, n int, s *spawn) ([]TID, error) {
	number, record := t.task.pod.beginSpawn()
	defer close(record.done)
	shares := t.task.pod.spread(hosts, n)
	answers := make([]started, len(shares))
	errs := make([]error, len(shares))
	out, release := t.task.outputs(s)
	defer release()
	own := t.task.pod
	together(len(shares), func(i int) {
		p := shares[i]
		if isProgram {
			q := t.programs(name, n, p, number, s, out)
			answers[i], errs[i] = askPod(ctx, t.task, p.pod, podPrograms, q, own.startPrograms)
		} else {
			q := spawnThreads{parentage: t.children(number, s), Name: name, Args: s.args, N: p.count}
			answers[i], errs[i] = askPod(ctx, t.task, p.pod, podThreads, q, own.startThreads)
		}
	})
	e := &SpawnError{Name: name}
	var ids []TID
	for i, a := range answers {
		ids = append(ids, a.IDs...)
		if isProgram {
			own.launched.add(shares[i].pod, a.IDs...)
		}
		for range a.IDs {
			e.add(shares[i].name(), nil)
		}
		for k := len(a.IDs); k < shares[i].count; k++ {
			text := ""
			if len(a.Errors) > 0 {
				text = a.Errors[min(k-len(a.IDs), len(a.Errors)-1)]
			}
			e.add(shares[i].name(), s.notStarted(shares[i], errs[i], text))
		}
	}
	record.ids = slices.Clone(ids)
	return ids, e.orNil()
}

// notStarted returns the reason why a thread or program of a share was not started: the error of
// the request to its pod, or the pod's answer.
func (s *spawn) notStarted(p share, err error, answer string) error {
	if err != nil {
		return fmt.Errorf("host %s: %w", p.name(), err)
	}
	if answer == "" {
		return fmt.Errorf("host %s: the pod answered for fewer than were asked for", p.name())
	}
	if err = remoteError(answer); errors.Is(err, ErrNoProgram) {
		err = absent(err, s.unasked)
	}
	return err
}

// together calls f for 0 to n-1, at the same time if n is more than 1, and waits for all calls.
func together(n int, f func(int)) {
	if n == 1 {
		f(0)
		return
	}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// askPod returns the answer of a pod to a request. It calls own if the pod is the task's own, and
// sends a message otherwise.
func askPod[Q, A any](ctx context.Context, t *Task, pod TID, tag uint64, q Q, own func(context.Context, Q) (A, error)) (A, error) {
	if pod == t.pod.r.ID() {
		return own(ctx, q)
	}
	return ask[A](ctx, t, pod, tag, q)
}

// sentinels are the errors that remoteError recognises.
var sentinels = []error{
	ErrNoProgram, ErrNotEnrolled, ErrNoTask, ErrNoHost, ErrTooMany, ErrExited, ErrBadParam, ErrNoPod, ErrDenied, ErrNoStatus,
	ErrNoEntry, errOldInfo, errTaking,
}

// errorText returns the text of an error for another task. Errors of this package come first, where
// remoteError recognises them.
func errorText(err error) string {
	text := err.Error()
	if i := slices.IndexFunc(sentinels, func(s error) bool { return errors.Is(err, s) }); i >= 0 && !strings.HasPrefix(text, sentinels[i].Error()) {
		return sentinels[i].Error() + ": " + text
	}
	return text
}

// remoteError returns the error with a text that another task has sent. Errors of this package are
// recognised by the beginning of the text.
func remoteError(text string) error {
	for _, s := range sentinels {
		if strings.HasPrefix(text, s.Error()) {
			return &textError{text: text, is: s}
		}
	}
	return &textError{text: text}
}

// hostEntries returns the hostEntries where a spawn may start: one for each task that exports the
// name or, if no task does, one for each host. The caller's own host is the first.
func (t *Task) hostEntries(ctx context.Context, name string, s *spawn) (ps []hostEntry, isProgram bool, err error) {
	var partial error
	nodes, err := t.nodes(ctx, &partial, s)
	if err != nil {
		return nil, false, err
	}
	if !s.noThreads {
		ps, err := t.find(ctx, &partial, t.match(typeExport, rocl.Match{attrName: name}), nodes)
		if err != nil {
			return nil, false, err
		}
		if len(ps) > 0 {
			return ps, false, t.weigh(ctx, ps, s)
		}
		if s.noPrograms {
			return nil, false, absent(ErrNoProgram, partial)
		}
		s.unasked = partial
	}
	if ps, err = t.pods(ctx, &partial, nodes); err != nil {
		return nil, false, err
	}
	if own := (hostEntry{pod: t.pod.r.ID(), node: t.node, host: t.host, launcher: LauncherTask}); nodes == nil || nodes[t.node] { // also with WithoutLaunch
		ps = slices.Insert(slices.DeleteFunc(ps, func(p hostEntry) bool { return p.pod == own.pod }), 0, own)
	}
	if ps = onePerNode(ps, t.pod.r.ID()); len(ps) == 0 {
		err = fmt.Errorf("%w%v: nothing starts programs there: run a task, tpvm pod or dirserver --tpvm there, or tpvm add from here", ErrNoHost, s)
		return nil, false, absent(err, partial)
	}
	return ps, true, t.weigh(ctx, ps, s)
}

// pods returns the pods that start programs for any task on the nodes. nil stands for all nodes.
// For partial see findNoting.
func (t *Task) pods(ctx context.Context, partial *error, nodes map[string]bool) ([]hostEntry, error) {
	return t.find(ctx, partial, t.match(typePod, rocl.Match{attrLaunch: "yes"}), nodes)
}

// find returns the pods of the resources that match on the nodes. nil stands for all nodes. The
// caller's own pod is the first. With an error, find returns the pods that it has found before. For
// partial see findNoting.
func (t *Task) find(ctx context.Context, partial *error, m rocl.Match, nodes map[string]bool) (ps []hostEntry, err error) {
	for f, ferr := range t.findNoting(ctx, partial, m, rocl.Want(attrPod, attrNode, attrHost, attrAdded, attrServedBy)) {
		if ferr != nil {
			err = ferr
			break
		}
		node := attr(f, attrNode)
		if nodes != nil && !nodes[node] {
			continue
		}
		id := f.ID
		if pod := attr(f, attrPod); pod != "" {
			var perr error
			if id, perr = rocl.ParseGID(pod); perr != nil {
				continue
			}
		}
		ps = append(ps, hostEntry{pod: id, node: node, host: attr(f, attrHost), added: attr(f, attrAdded), launcher: attr(f, attrServedBy)})
	}
	own := t.pod.r.ID()
	slices.SortFunc(ps, func(a, b hostEntry) int {
		switch {
		case a.pod == b.pod:
			return 0
		case a.pod == own:
			return -1
		case b.pod == own:
			return 1
		}
		return a.pod.Compare(b.pod)
	})
	return ps, nil
}

// nodes returns the nodes that the options choose. nil stands for all nodes. For partial see
// findNoting.
func (t *Task) nodes(ctx context.Context, partial *error, s *spawn) (map[string]bool, error) {
	if s.host == "" && s.arch == "" && s.where == nil {
		if s.complement {
			return nil, ErrNoHost
		}
		return nil, nil
	}
	if s.host == "." && s.arch == "" && s.where == nil && !s.complement {
		return map[string]bool{t.node: true}, nil
	}
	hosts, err := t.hosts(ctx, partial, nil)
	if err != nil {
		return nil, err
	}
	chosen := hosts
	if s.where != nil {
		if chosen, err = t.hosts(ctx, partial, s.where, s.conditions...); err != nil {
			return nil, err
		}
	}
	added := map[string]bool{} // nodes of hosts that were added under the name
	if s.host != "" && s.host != "." {
		pods, err := t.pods(ctx, partial, nil)
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			if p.added == s.host {
				added[p.node] = true
			}
		}
	}
	in := map[string]bool{}
	for _, h := range chosen {
		isHost := s.host == "" || s.host == h.Name || s.host == h.Node || s.host == "." && h.Node == t.node || added[h.Node]
		if isHost && (s.arch == "" || s.arch == h.Arch) {
			in[h.Node] = true
		}
	}
	if s.complement {
		out := map[string]bool{}
		for _, h := range hosts {
			if !in[h.Node] {
				out[h.Node] = true
			}
		}
		in = out
	}
	if len(in) == 0 {
		return nil, absent(fmt.Errorf("%w%v among %d hosts", ErrNoHost, s, len(hosts)), *partial)
	}
	return in, nil
}

// A Host is a node of the cluster on which the virtual machine may run tasks.
type Host struct {
	ID    TID    // of the node's resource
	Node  string // the node's number
	Name  string
	Arch  string // GOOS/GOARCH
	Cores int
	Tasks int // tasks of the virtual machine on it
	// Launcher is the kind of process that starts the programs of Spawn on the host: LauncherPod,
	// LauncherDirserver, LauncherTask, or "" if there is none. AddHosts changes that.
	Launcher string
	Added    string // the name under which AddHosts added the host
}

// hosts returns the hosts whose node resources match a pattern and satisfy conditions. With an
// error, hosts returns the hosts that it has found before. For partial see findNoting.
func (t *Task) hosts(ctx context.Context, partial *error, where rocl.Match, conditions ...rocl.FindOption) (hs []Host, err error) {
	m := rocl.Match{rocl.AttrKind: "node"}
	maps.Copy(m, where)
	for f, err := range t.findNoting(ctx, partial, m, conditions...) {
		if err != nil {
			return hs, err
		}
		hs = append(hs, host(f))
	}
	return hs, nil
}

// host returns the Host of a node's resource, without Tasks, Launcher and Added.
func host(f rocl.Found) Host {
	h := Host{ID: f.ID, Node: attr(f, rocl.AttrNode), Name: attr(f, rocl.AttrHost), Arch: attr(f, rocl.AttrOS) + "/" + attr(f, rocl.AttrArch)}
	h.Cores, _ = strconv.Atoi(attr(f, rocl.AttrCores))
	return h
}

// Hosts returns the hosts of the virtual machine, which are the nodes of the cluster. Host.Launcher
// tells if programs can be started on a host. With an error, such as the cause of ctx's end while a
// node does not answer, Hosts returns what it has found before.
func (t *Thread) Hosts(ctx context.Context) ([]Host, error) {
	tasks := map[string]int{} // by node
	var pods []hostEntry
	var tasksErr, podsErr error
	var asked sync.WaitGroup // asked at the same time: a silent node delays all by as much as one
	asked.Go(func() {
		for f, err := range t.task.findAll(ctx, t.task.match(typeTask, nil), rocl.Want(attrNode)) {
			if tasksErr = err; err != nil {
				return
			}
			tasks[attr(f, attrNode)]++
		}
	})
	asked.Go(func() { pods, podsErr = t.task.pods(ctx, new(error), nil) })
	hs, err := t.task.hosts(ctx, new(error), nil)
	asked.Wait()
	for i := range hs {
		h := &hs[i]
		h.Tasks = tasks[h.Node]
		for _, p := range pods {
			if p.node == h.Node && rank(p.launcher) >= rank(h.Launcher) {
				h.Launcher, h.Added = p.launcher, p.added
			}
		}
	}
	slices.SortFunc(hs, func(a, b Host) int { return a.ID.Compare(b.ID) })
	if err = cmp.Or(err, tasksErr, podsErr); err != nil {
		return hs, fmt.Errorf("tpvm: list the hosts: %w", err)
	}
	return hs, nil
}
