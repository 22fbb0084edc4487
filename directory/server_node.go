// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"

	"github.com/rocl-go/rocl/internal/os/cgroup"
	build "github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/resource"
)

// Attributes of the resource that stands for a node. Its identifier is the node's own: no context
// has the number 0. See [NodeResource].
const (
	AttrKind    = resource.SystemPrefix + "kind"    // "node"
	AttrAddr    = resource.SystemPrefix + "addr"    // HOST:PORT of a member of a cluster
	AttrNode    = resource.SystemPrefix + "node"    // the node's number, 12 hexadecimal digits
	AttrHost    = resource.SystemPrefix + "host"    // the name of the machine
	AttrOS      = resource.SystemPrefix + "os"      // as GOOS
	AttrArch    = resource.SystemPrefix + "arch"    // as GOARCH
	AttrCores   = resource.SystemPrefix + "cores"   // processors the server may use
	AttrMemory  = resource.SystemPrefix + "memory"  // bytes of memory that the server may use
	AttrVersion = resource.SystemPrefix + "version" // of the server
)

// NodeResource returns the identifier of the resource that stands for a node. The server of that
// node owns the resource, and no context may change it.
func NodeResource(n resource.NodeID) resource.GID { return resource.MakeGID(n, 0, 0) }

// WithLabels gives the node labels: plain attributes of the resource that stands for the node.
// Without this option a server that is no daemon keeps the labels of its predecessor, so that
// labels do not come and go while a daemon restarts.
func WithLabels(l Labels) Option { return func(s *Server) { s.labels, s.labelled = l, true } }

// describe returns the attributes of the resource that stands for the node. addr is the node's
// address in the cluster, "" if it is no member.
func (s *Server) describe(addr string) (*resource.List, error) {
	host, err := os.Hostname()
	if err != nil {
		// Cause: the host name cannot be read. Remedy: set it.
		s.log.Warn("directory: the machine has no name", "err", err)
	}
	cores, memory := available(runtime.NumCPU(), memory(), cgroup.Read())
	l := new(resource.List)
	for _, a := range [][2]string{
		{AttrKind, "node"},
		{AttrNode, fmt.Sprintf("%012x", uint64(s.id.Node))},
		{AttrHost, host},
		{AttrOS, runtime.GOOS},
		{AttrArch, runtime.GOARCH},
		{AttrCores, strconv.Itoa(cores)},
		{AttrMemory, strconv.FormatUint(memory, 10)},
		{AttrVersion, build.String()},
	} {
		if err := l.AddString(a[0], a[1]); err != nil {
			return nil, err
		}
	}
	if addr != "" {
		if err := l.AddString(AttrAddr, addr); err != nil {
			return nil, err
		}
	}
	return l, s.labels.AppendAttrs(l)
}

// available returns what this process may use of the processors to which it is bound and of the
// machine's memory, of which 0 says that it is not known.
func available(cores int, memory uint64, l cgroup.Limits) (int, uint64) {
	if l.CPUs > 0 {
		cores = int(min(float64(cores), math.Ceil(l.CPUs)))
	}
	if l.Memory > 0 && (memory == 0 || l.Memory < memory) {
		memory = l.Memory
	}
	return cores, memory
}

// changesPerEpoch is the number of revisions that each server of a node can use.
const changesPerEpoch = 1 << 16

// registerNode registers the resource that stands for the node, or updates it. The revision grows
// with every server of the node and with every change. So a watch of an earlier server reports
// Changed, and an old server's state never replaces a newer one.
func (s *Server) registerNode(addr string) {
	l, err := s.describe(addr)
	if err == nil {
		rev := s.id.Epoch*changesPerEpoch + 1
		if r, ok := s.db.Get(NodeResource(s.id.Node)); ok {
			rev = max(rev, r.Revision+1)
		}
		err = s.db.Offer(NodeResource(s.id.Node), NodeResource(s.id.Node), rev, l)
	}
	if err != nil { // labels are valid and small, so no setting of an operator leads here
		// Cause: the node's own resource was refused. Remedy: report a bug.
		s.log.Error("directory: the node cannot be made known", "err", err)
	}
}
