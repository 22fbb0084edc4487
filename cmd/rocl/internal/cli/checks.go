// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/resource"
)

// checks are the checks of doctor. The most serious ones come first.
var checks = []check{
	{"directory", 10, "no process serves the node's directory", checkDirectory},
	{"silence", 11, "the process that serves does not answer", checkSilence},
	{"files", 12, "the files of the socket have wrong permissions, another owner, or are of something else", checkFiles},
	{"lock", 13, "the node's lock is missing, or another process has it", checkLock},
	{"member", 14, "the node is not a member of its cluster at present, or has not reached a member to join", checkMember},
	{"key", 15, "members refuse this node: another key, name of the cluster, certificate or version", checkKey},
	{"address", 16, "a member is not at the address that it tells, or two have one address", checkAddress},
	{"name", 17, "two nodes have one number, or two machines one name", checkName},
	{"udp", 18, "UDP does not pass between this node and a member, in one direction or in both", checkUDP},
	{"mtu", 19, "large datagrams do not pass between this node and a member", checkMTU},
	{"lost", 20, "a member was killed, or the network to it is cut", checkLost},
	{"limits", 21, "the process that serves is near a limit, or has a low one", checkLimits},
	{"memory", 22, "two contexts of the node cannot share memory, or this process cannot make any", checkMemory},
	{"clock", 23, "the clocks of two members differ", checkClock},
	{"versions", 24, "members, the directory and this command have different versions", checkVersions},
	{"contexts", 25, "a program of this node does not answer", checkContexts},
	{"programs", 26, "a program of this node has ended without closing its context in the last " + lostTime.String(), checkPrograms},
}

func checkDirectory(e *exam, r *reporter) {
	const start = "Start 'dirserver', or a program that opens a context; compare ROCL_SOCKET in both environments."
	switch {
	case e.err == nil:
		r.ok("%s serves at %s", process(e.pid), e.path)
	case sockerr.Is(e.err, syscall.ECONNREFUSED) && e.isSocket():
		r.found(start+" The next server replaces the socket.", "a process that was killed left the socket %s: no process serves there", e.path)
	case errors.Is(e.err, fs.ErrNotExist):
		r.found(start, "no process serves: there is no socket at %s", e.path)
	case e.isForbidden():
		r.unknown("this process may not use the directory at %s", e.path)
	case errors.Is(e.err, rocl.ErrNoDirectory):
		r.found(start, "%v", text(e.err))
	default:
		r.found("See the next findings; docs/TROUBLESHOOTING.md#errors-of-programs-and-commands", "the directory cannot be reached: %s", text(e.err))
	}
}

// isForbidden reports whether permissions or owners keep this process from the directory.
func (e *exam) isForbidden() bool {
	return errors.Is(e.err, directory.ErrUntrusted) || errors.Is(e.err, fs.ErrPermission)
}

// isSocket reports whether there is a socket at the exam's path.
func (e *exam) isSocket() bool {
	fi, err := os.Lstat(e.path)
	return err == nil && fi.Mode().Type() == fs.ModeSocket
}

func checkSilence(e *exam, r *reporter) {
	switch {
	case e.silent:
		r.found("Let the process go on (kill -CONT), see what it waits for, or end it: another program takes over.", "%s has the socket: %s", process(e.pid), text(e.statusErr))
	case e.statusErr != nil:
		r.unknown("the directory does not tell of itself: %s", text(e.statusErr))
	default:
		kind := "a program that also serves"
		if e.status.Daemon {
			kind = "a daemon"
		}
		r.ok("%s, %s, has served for %v", e.status.Program, kind, e.status.Serving.Round(time.Second))
	}
}

func checkFiles(e *exam, r *reporter) {
	if !e.isUnix {
		r.unknown("the directory is at a TCP address: run rocl doctor on its machine, with the path of its socket")
		return
	}
	const secrets = "docs/SECURING.md#which-files-with-secrets-are-accepted"
	fine := true
	if e.isForbidden() {
		r.found("Run this command as the user of the node's programs, or correct the owner and the mode; docs/DAEMON.md#files-and-permissions", "%s", text(e.err))
		fine = false
	}
	for _, f := range []struct {
		path   string
		mode   fs.FileMode // rights that no one may have
		typ    fs.FileMode
		what   string
		remedy string
	}{
		{filepath.Dir(e.path), 0o022, fs.ModeDir, "a folder", "chmod go-w"},
		{e.path, 0o077, fs.ModeSocket, "a socket", "End the node's programs, and remove it"},
		{e.path + ".lock", 0o077, 0, "a file", "chmod 600"},
		{e.path + ".node", 0o077, 0, "a file", "chmod 600"},
		{e.path + ".member", 0o022, 0, "a file", "chmod 600"},
	} {
		fi, err := os.Lstat(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is made when a process serves, or checkLock tells
		}
		if err != nil {
			r.unknown("%v", err)
			fine = false
			continue
		}
		owner := ownerOf(fi)
		euid := os.Geteuid()
		switch isFolder := f.typ == fs.ModeDir; {
		case fi.Mode().Type() != f.typ:
			r.found("Remove it if no program needs it, or name another path by ROCL_SOCKET.", "%s is not %s (%v)", f.path, f.what, fi.Mode())
		case isFolder && fi.Mode()&fs.ModeSticky != 0: // as /tmp: others may not replace the files
			continue
		case fi.Mode().Perm()&f.mode != 0:
			r.found(fmt.Sprintf("%s %s. If it was so for long, other users may have read or replaced it; %s", f.remedy, f.path, secrets), "other users have rights to %s: its mode is %v", f.path, fi.Mode().Perm())
		case !isFolder && euid != 0 && owner != 0 && owner != euid:
			r.found("Run all programs of a node as one user, or give each user a node of its own by ROCL_SOCKET.", "%s is of user %d, and this command of user %d", f.path, owner, euid)
		default:
			continue
		}
		fine = false
	}
	if fine {
		r.ok("owners and permissions are right")
	}
}

func checkLock(e *exam, r *reporter) {
	if !e.isUnix {
		r.unknown("the directory is at a TCP address")
		return
	}
	path := e.path + ".lock"
	pid, ok, err := lockHolder(path)
	switch serves := e.err == nil; {
	case errors.Is(err, fs.ErrNotExist) && serves:
		r.found("The server makes it anew within a second. If it stays away, see to the rights of the folder; docs/DAEMON.md#files-and-permissions", "a process serves, and there is no %s", path)
	case err != nil && !serves:
		r.ok("no process serves")
	case err != nil:
		r.unknown("%v", err)
	case ok && !serves && pid > 0:
		r.found("If it does not begin to serve in a few seconds, end it: it keeps others from serving.", "%s holds %s, and serves nothing", process(pid), path)
	case ok && serves && pid > 0 && e.pid > 0 && pid != e.pid:
		r.found("Restart the programs of the node: their directory is not the one that new programs find.", "%s holds %s, and %s serves", process(pid), path, process(e.pid))
	case !ok && serves:
		r.unknown("the kernel does not show the lock: the process that has it may be in another container")
	default:
		r.ok("%s", path)
	}
}

// isMember reports whether the exam saw the node as a member. If not, it reports why.
func (e *exam) isMember(r *reporter) bool {
	switch {
	case e.statusErr != nil:
		r.unknown("the directory does not tell of its cluster")
	case e.member == nil:
		r.ok("the node is in no cluster")
	case e.member.Error != "":
		r.unknown("the node is not a member at present")
	default:
		return true
	}
	return false
}

func checkMember(e *exam, r *reporter) {
	if e.member != nil && e.member.Error != "" {
		r.found("docs/CLUSTER.md#when-the-address-is-not-there", "the node is not a member of its cluster: %s", e.member.Error)
		return
	}
	if !e.isMember(r) {
		return
	}
	if n := slices.DeleteFunc(slices.Clone(e.member.Unreached), e.isRefusedAt); len(n) > 0 {
		r.found("See that a daemon runs there, that UDP and TCP pass to it, and that it has the same --cluster and key; or remove the address from --join. docs/CLUSTER.md#ports-and-firewalls",
			"no member was ever reached at %s", strings.Join(n, ", "))
		return
	}
	states := map[string]int{}
	for _, m := range e.member.Members {
		states[m.State]++
	}
	r.ok("member of cluster %q at %s, with %d others alive, %d away, %d dead", e.status.Cluster, e.member.Addr, states["alive"], states["away"], states["dead"])
}

// isRefusedAt reports whether a program refuses this node at an address, which checkKey tells.
func (e *exam) isRefusedAt(addr string) bool {
	return slices.ContainsFunc(e.member.Refusing, func(why string) bool { return strings.HasPrefix(why, addr+": ") })
}

func checkKey(e *exam, r *reporter) {
	if !e.isMember(r) {
		return
	}
	if n := e.member.Refusing; len(n) > 0 {
		r.found("Give all members the same key file, --cluster and certificates; docs/CLUSTER.md#what-happens-when-members-refuse-each-other", "members refuse this node: %s", strings.Join(n, "; "))
		return
	}
	if len(e.member.Keys) == 0 {
		r.ok("no member refuses this node; there is no key")
		return
	}
	r.ok("no member refuses this node; keys (by hash, the sealing one first): %s", strings.Join(e.member.Keys, " "))
}

func checkAddress(e *exam, r *reporter) {
	const which = "Name the address of each member by --bind; docs/CLUSTER.md#which-address-a-member-has"
	if !e.isMember(r) {
		return
	}
	fine := true
	if why := e.member.Contradiction; why != "" && !strings.Contains(why, "in two places") {
		r.found(which, "%s", why)
		fine = false
	}
	own, _ := netip.ParseAddrPort(e.member.Addr)
	at := map[string]resource.NodeID{e.member.Addr: e.status.Node}
	for _, m := range e.member.Members {
		if other, twice := at[m.Addr]; twice && m.State == "alive" {
			r.found(which, "two members tell the address %s: %s; %s", m.Addr, e.name(other), e.name(m.Node))
			fine = false
		}
		if m.State == "alive" {
			at[m.Addr] = m.Node
		}
		if a, err := netip.ParseAddrPort(m.Addr); err == nil && m.State == "alive" && own.Addr().IsLoopback() != a.Addr().IsLoopback() {
			r.found(which, "this node tells %s, and %s: a loopback address leads to the machine itself", e.member.Addr, e.name(m.Node))
			fine = false
		}
	}
	if fine {
		r.ok("other members reach this node at %s", e.member.Addr)
	}
}

func checkName(e *exam, r *reporter) {
	if !e.isMember(r) {
		return
	}
	fine := true
	if why := e.member.Contradiction; strings.Contains(why, "in two places") {
		r.found("If the node has not just moved: end one of the two, remove its .node file (a copy, or of a cloned machine), and start it again.", "%s", why)
		fine = false
	}
	type machine struct{ host, ip string }
	ips := map[string]machine{} // by name of the machine
	for i := range e.nodes {
		n := &e.nodes[i]
		ip, _, _ := net.SplitHostPort(n.Addr)
		first, ok := ips[n.Host]
		switch {
		case n.Host == "" || ip == "":
		case !ok:
			ips[n.Host] = machine{e.name(n.Node), ip}
		case first.ip != ip:
			r.found("Give each machine a name of its own (hostnamectl hostname): people and logs tell nodes apart by it.", "two machines are named %s: %s; %s", n.Host, first.host, e.name(n.Node))
			fine = false
		}
	}
	if fine {
		r.ok("each node has a number and a name of its own")
	}
}

func checkUDP(e *exam, r *reporter) {
	if !e.isMember(r) {
		return
	}
	if e.smallErr != nil {
		r.unknown("the members could not be searched: %s", text(e.smallErr))
		return
	}
	if n := silentNodes(&e.small); len(n) > 0 {
		_, port, _ := net.SplitHostPort(e.member.Addr)
		r.found(fmt.Sprintf("Let UDP and TCP pass to port %s and from it, in both directions, on every node and between them; run rocl doctor there too. docs/CLUSTER.md#ports-and-firewalls", port),
			"no answer over UDP from %s", e.names(n))
		return
	}
	var slowest time.Duration
	var quiet []resource.NodeID
	most := mostSilence + time.Duration(len(e.member.Members))*time.Second
	for _, m := range e.member.Members {
		slowest = max(slowest, m.Ping)
		if m.State == "alive" && m.Silence > most {
			quiet = append(quiet, m.Node)
		}
	}
	if len(quiet) > 0 {
		r.found("See to the network between the nodes, and to the load of both machines: many datagrams are lost. docs/CLUSTER.md#ports-and-firewalls", "no probe was answered over UDP for %s or longer by %s", most, e.names(quiet))
		return
	}
	r.ok("%s answered; the slowest round trip of a probe took %s", count(max(0, e.small.Covered-1), "other node"), ms(slowest))
}

// mostSilence is after which time without an answer to a probe a member is found, and a second more
// for each member: they are probed in turn.
const mostSilence = 10 * time.Second

func checkMTU(e *exam, r *reporter) {
	if !e.isMember(r) {
		return
	}
	if err := errors.Join(e.smallErr, e.largeErr, e.againErr); err != nil {
		r.unknown("the members could not be searched: %s", text(err))
		return
	}
	silent := append(silentNodes(&e.small), silentNodes(&e.again)...)
	slices.Sort(silent)
	silent = slices.Compact(silent)
	large := slices.DeleteFunc(silentNodes(&e.large), func(n resource.NodeID) bool { return slices.Contains(silent, n) })
	if len(large) > 0 {
		r.found("Packets of 1,280 bytes must pass: set the MTU of tunnels and bridges to at least that, and let ICMP 'fragmentation needed' pass.", "small datagrams pass, and large ones do not, between this node and %s", e.names(large))
	}
	if len(silent) > 0 {
		r.unknown("small datagrams have no answer either from %s", e.names(silent))
	}
	switch answered := e.large.Covered - 1; {
	case answered > 0:
		r.ok("%s answered a question of %d bytes", count(answered, "other node"), largeQuestion)
	case len(silent)+len(large) == 0:
		r.ok("no other node is there to be asked")
	}
}

func checkLost(e *exam, r *reporter) {
	if !e.isMember(r) {
		return
	}
	var lost []resource.NodeID
	for _, m := range e.member.Members {
		if m.State == "dead" && !e.isRefusedAt(m.Addr) {
			lost = append(lost, m.Node)
		}
	}
	if len(lost) > 0 {
		r.found("Start its daemon, or see to the network: this node looks for it, and forgets it after 72 hours. docs/CLUSTER.md#how-deaths-are-noticed", "lost, without having left: %s", e.names(lost))
		return
	}
	r.ok("no member is lost")
}

func checkLimits(e *exam, r *reporter) {
	const fullest = 0.9 // of a limit
	if e.pid == 0 || e.err != nil {
		r.unknown("the process that serves is not seen from here")
		return
	}
	all, err := limitsOf(e.pid)
	if err != nil {
		r.unknown("%v", err)
		return
	}
	fine := true
	const set = "Raise it (LimitNOFILE= in the unit, ulimit -n), and restart the process; docs/DAEMON.md#which-limits-it-has"
	const perContext = 10 // descriptors that each context should find, see docs/DAEMON.md
	most, limited := all["Max open files"]
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.pid))
	switch need := uint64(max(256, perContext*len(e.contexts))); {
	case limited && most < need:
		r.found(set, "%s may have %d descriptors open, and %s need up to %d", process(e.pid), most, count(len(e.contexts), "context"), need)
		fine = false
	case err != nil:
		r.unknown("%v", err)
		fine = false
	case limited && float64(len(open)) > fullest*float64(most):
		r.found(set, "%s has %d of %d descriptors open", process(e.pid), len(open), most)
		fine = false
	}
	if n, limited := all["Max file size"]; limited && n < 1<<20 {
		r.found("Raise it (ulimit -f, LimitFSIZE=) to at least 1 MiB.", "files of %s may have %d bytes: its contexts cannot share memory", process(e.pid), n)
		fine = false
	}
	for _, figure := range []string{"memory", "pids"} {
		share, group, err := groupUse(e.pid, figure)
		switch {
		case err != nil:
			r.unknown("%s: %v", figure, err)
			return
		case share > fullest:
			r.found("Raise the limit (MemoryMax=, TasksMax=), or move programs to other groups.", "the control group %s uses %.0f %% of its limit of %s", group, 100*share, figure)
			fine = false
		}
	}
	if fine {
		r.ok("%d of %d descriptors are open; the control groups have room", len(open), most)
	}
}

func checkMemory(e *exam, r *reporter) {
	if err := canShareMemory(); err != nil {
		r.found("Let processes call memfd_create (seccomp profile of the container). Until then contexts use TCP.", "this process cannot make memory to share: %v", err)
		return
	}
	if e.statusErr != nil {
		r.unknown("the directory does not tell which contexts there are")
		return
	}
	const own = "Let all containers of the node share the folder of the socket, writable, and one user and user namespace; docs/TRANSPORTS.md#shared-memory"
	// An address is shm://NAMESPACE/NAME, or shm://NAMESPACE/FOLDER/NAME if contexts of other
	// network namespaces reach it by the folder of the directory's socket.
	type place struct{ namespace, folder, who string }
	var places []place
	fine := true
	for i := range e.contexts {
		c := &e.contexts[i]
		who := fmt.Sprintf("context %v of process %s", c.ID, c.Attrs.GetString(rocl.AttrPID))
		var shm, any string
		for name, v := range c.Attrs.All() {
			if name == rocl.AttrAddr {
				any = string(v)
				if rest, ok := strings.CutPrefix(any, "shm://"); ok {
					shm = rest
				}
			}
		}
		switch f := strings.Split(shm, "/"); {
		case any == "": // it only asks the directory, or has no port yet
		case shm == "":
			r.found(own+" If its rules leave shared memory out (WithTransports), all is well.", "%s has no address for shared memory", who)
			fine = false
		case len(f) == 3:
			places = append(places, place{f[0], f[1], who})
		case len(f) == 2:
			places = append(places, place{f[0], "", who})
		}
	}
	for i := range places {
		if p, q := &places[0], &places[i]; p.namespace != q.namespace && (p.folder != q.folder || p.folder == "") {
			r.found(own, "%s and %s cannot share memory: they are in different namespaces, and do not reach one folder", p.who, q.who)
			return
		}
	}
	if fine {
		r.ok("%s of the node can share memory with each other", count(len(places), "context"))
	}
}

func checkClock(e *exam, r *reporter) {
	if !e.isMember(r) {
		return
	}
	const most = 2 * time.Second
	var worst time.Duration
	var who []resource.NodeID
	for _, m := range e.member.Members {
		if d := m.Clock.Abs(); m.State == "alive" && d > most+m.Ping {
			who = append(who, m.Node)
			worst = max(worst, d)
		} else if m.State == "alive" {
			worst = max(worst, d)
		}
	}
	if len(who) > 0 {
		r.found("Let a time service run on each machine (chronyd, systemd-timesyncd). The library needs no clock; logs and certificates do.", "the clock of this node differs by up to %s from that of %s", seconds(worst), e.names(who))
		return
	}
	r.ok("the clocks of the members differ by at most %s", ms(worst))
}

func checkVersions(e *exam, r *reporter) {
	if e.err != nil {
		r.unknown("no directory answers")
		return
	}
	const upgrade = "Upgrade the older ones, one node after another; docs/DAEMON.md#restarts-and-upgrades"
	fine := true
	own := version.String()
	if v := e.status.Version; v != "" && v != own {
		r.found(upgrade, "the directory's process has version %s, and this command %s", v, own)
		fine = false
	}
	if errors.Is(e.statusErr, directory.ErrProtocol) {
		r.found(upgrade, "%s", text(e.statusErr))
		fine = false
	}
	if e.member != nil && len(e.member.Strange) > 0 {
		r.found(upgrade, "members have a version that this node does not understand: %s", strings.Join(e.member.Strange, ", "))
		fine = false
	}
	for i := range e.nodes {
		if n := &e.nodes[i]; e.status.Version != "" && n.Version != e.status.Version {
			r.found(upgrade, "%s has version %s, and this node %s", e.name(n.Node), n.Version, e.status.Version)
			fine = false
			break
		}
	}
	if e.listErr != nil {
		r.unknown("not every node tells its version: %s", text(e.listErr))
		fine = false
	}
	if fine {
		r.ok("%s", own)
	}
}

func checkContexts(e *exam, r *reporter) {
	if err := cmp.Or(e.statusErr, e.viewErr); err != nil {
		r.unknown("the contexts of this node could not be asked: %s", text(err))
		return
	}
	if e.view == nil {
		r.unknown("the contexts of this node were not asked")
		return
	}
	answered := 0
	for i := range e.view.Contexts {
		c := &e.view.Contexts[i]
		if c.Silent == "" {
			answered++
			continue
		}
		r.found("Let the process go on if it is stopped (kill -CONT), see why it gets no processor, or upgrade it if its rocl is older than 'rocl top'.", "context %v of %s does not answer: %s", c.Context, process(c.PID), c.Silent)
	}
	if answered == len(e.view.Contexts) {
		r.ok("%s of this node answered", count(answered, "context"))
	}
}

// lostTime is how long the end of a program is told.
const lostTime = 5 * time.Minute

func checkPrograms(e *exam, r *reporter) {
	if e.statusErr != nil {
		r.unknown("the directory does not tell which programs have ended")
		return
	}
	fine := true
	for _, p := range e.status.Lost {
		if p.Ago < lostTime {
			r.found("See its own log, and that of the kernel for memory that ran out (journalctl -k). A program that ends in order closes its context.", "process %d (%s) with %s ended %s ago without closing its context", p.PID, p.Program, count(p.Resources, "resource"), p.Ago.Round(time.Second))
			fine = false
		}
	}
	if fine {
		r.ok("none was lost in the last %v", lostTime)
	}
}
