// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	build "github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
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
	AttrMemory  = resource.SystemPrefix + "memory"  // bytes of memory of the machine
	AttrVersion = resource.SystemPrefix + "version" // of the server
)

// NodeResource returns the identifier of the resource that stands for a node. The server of that
// node owns the resource, and no context may change it.
func NodeResource(n resource.NodeID) resource.GID { return resource.MakeGID(n, 0, 0) }

// Limits of labels, which every answer that lists nodes contains.
const (
	MaxLabels     = 256
	MaxLabelBytes = 16 << 10 // of their wire form
)

// ErrLabels is returned if labels are too many or too large.
var ErrLabels = errors.New("rocl: too many labels")

// Labels are attributes that the operator gives a node. A value of this type is valid; the zero
// value has no labels.
type Labels struct{ list resource.List }

// NewLabels makes labels of a. It refuses names that belong to the library, names without a value,
// and more than MaxLabels or MaxLabelBytes.
func NewLabels(a resource.Attributes) (Labels, error) {
	l, err := resource.NewPattern(a)
	if err == nil {
		err = checkLabels(l)
	}
	if err != nil {
		return Labels{}, fmt.Errorf("directory: labels: %w", err)
	}
	return Labels{l.Clone()}, nil
}

// checkLabels returns the error of NewLabels.
func checkLabels(l *resource.List) error {
	if n, b := l.Len(), len(l.Wire()); n > MaxLabels || b > MaxLabelBytes {
		return fmt.Errorf("%w: %d of %d bytes; at most %d of %d", ErrLabels, n, b, MaxLabels, MaxLabelBytes)
	}
	if !l.Complete() {
		return ErrIncomplete
	}
	return resource.CheckUser(l)
}

// AppendAttrs implements resource.Attributes.
func (l Labels) AppendAttrs(to *resource.List) error { return l.list.AppendAttrs(to) }

// WithLabels gives the node labels: plain attributes of the resource that stands for the node.
// Without this option a server that is no daemon keeps the labels of its predecessor, so that
// labels do not come and go while a daemon restarts.
func WithLabels(l Labels) Option { return func(s *Server) { s.labels, s.labelled = l, true } }

// describe returns the attributes of the resource that stands for the node. addr is the node's
// address in the cluster, "" if it is no member.
func (s *Server) describe(addr string) (*resource.List, error) {
	host, err := os.Hostname()
	if err != nil {
		s.log.Warn("directory: the machine has no name", "err", err)
	}
	l := new(resource.List)
	for _, a := range [][2]string{
		{AttrKind, "node"},
		{AttrNode, fmt.Sprintf("%012x", uint64(s.id.Node))},
		{AttrHost, host},
		{AttrOS, runtime.GOOS},
		{AttrArch, runtime.GOARCH},
		{AttrCores, strconv.Itoa(runtime.NumCPU())},
		{AttrMemory, strconv.FormatUint(memory(), 10)},
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

// memory returns the bytes of memory of the machine, 0 if the kernel does not say.
func memory() uint64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return uint64(si.Totalram) * uint64(si.Unit)
}

// changesPerEpoch is the number of revisions that each server of a node can use.
const changesPerEpoch = 1 << 16

// enrol registers the resource that stands for the node, or updates it. The revision grows with
// every server of the node and with every change. So a watch of an earlier server reports Changed,
// and an old server's state never replaces a newer one.
func (s *Server) enrol(addr string) {
	l, err := s.describe(addr)
	if err == nil {
		rev := s.id.Epoch*changesPerEpoch + 1
		if r, ok := s.db.Get(NodeResource(s.id.Node)); ok {
			rev = max(rev, r.Revision+1)
		}
		err = s.db.Offer(NodeResource(s.id.Node), NodeResource(s.id.Node), rev, l)
	}
	if err != nil { // labels are valid and small, so no setting of an operator leads here
		s.log.Error("directory: the node cannot be made known", "err", err)
	}
}

// wire returns the wire form of the labels, which is empty, but not nil, if there are none.
func (l Labels) wire() []byte {
	if l.list.Len() == 0 {
		return []byte{}
	}
	return l.list.Wire()
}

// parseLabels returns the labels of a wire form. A malformed one has no labels.
func parseLabels(b []byte) Labels {
	if len(b) == 0 {
		return Labels{}
	}
	list, err := resource.ParseList(b)
	if err != nil {
		return Labels{}
	}
	l, err := NewLabels(&list)
	if err != nil {
		return Labels{}
	}
	return l
}
