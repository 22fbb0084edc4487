// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/resource"
)

// The file PATH.member says that the node belongs to a cluster, and at which addresses other
// members were. It outlives a server that is killed or replaced, so that the next server knows that
// other nodes exist, even if that server has no settings of a member. The addresses outlive a
// server that leaves the cluster too: the next one may be told of no other member.

// memberPrefix is the text that a file PATH.member begins with. The node's number follows, so a
// server ignores the file of the node that this machine was before it was restarted.
const memberPrefix = "rocl member node "

// mostMet limits the addresses in a member file. Each of the members knows the rest.
const mostMet = 64

// A Member is what a member file says.
type Member struct {
	Cluster string // the cluster's name
	HasLeft bool   // the node does not belong to the cluster any more
	// Met has the addresses of other members that were met, by node.
	Met map[resource.NodeID]string
}

// memberHead returns what the member file of this node contains before the name of the cluster.
func (l *Listener) memberHead(hasLeft bool) string {
	what := "cluster"
	if hasLeft {
		what = "left"
	}
	return fmt.Sprintf(memberPrefix+"%012x %s ", uint64(l.id.Node), what)
}

// memberText returns the content of a member file: a line for the cluster, and a line for each
// address.
func (l *Listener) memberText(m Member) []byte {
	b := []byte(l.memberHead(m.HasLeft) + m.Cluster + "\n")
	met := slices.Sorted(maps.Keys(m.Met)) // the same members make the same file
	for _, id := range met[:min(len(met), mostMet)] {
		b = fmt.Appendf(b, "%012x %s\n", uint64(id), m.Met[id])
	}
	return b
}

// parseMember reads a member file. ok is false for a file of another node.
func (l *Listener) parseMember(b []byte) (m Member, ok bool) {
	first, rest, _ := strings.Cut(string(b), "\n")
	if m.Cluster, ok = strings.CutPrefix(first, l.memberHead(false)); !ok {
		m.Cluster, ok = strings.CutPrefix(first, l.memberHead(true))
		m.HasLeft = true
	}
	if !ok {
		return Member{}, false
	}
	for line := range strings.Lines(rest) {
		id, addr, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseUint(id, 16, 48)
		if _, bad := netip.ParseAddrPort(addr); err != nil || bad != nil || len(m.Met) == mostMet {
			continue
		}
		if m.Met == nil {
			m.Met = map[resource.NodeID]string{}
		}
		m.Met[resource.NodeID(n)] = addr
	}
	return m, true
}

// readMember returns the content of the member file of the node at path, nil if there is no file.
// ErrOccupied says that no directory wrote the file.
func readMember(path string) ([]byte, error) {
	b, err := readFile(path + memberSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !bytes.HasPrefix(b, []byte(memberPrefix)) {
		err = fmt.Errorf("directory: reading %s: %w: no directory wrote it", path+memberSuffix, ErrOccupied)
	}
	return b, err
}

// Member returns what the member file says. isMember reports whether the node belongs to a cluster,
// also with an error: a file that cannot be read counts as membership, and a file that no directory
// wrote does not. Claim must have succeeded, as for the next two methods.
func (l *Listener) Member() (m Member, isMember bool, err error) {
	b, err := readMember(l.first().path)
	if err != nil {
		return Member{}, !errors.Is(err, ErrOccupied), err
	}
	m, ok := l.parseMember(b)
	return m, ok && !m.HasLeft, nil
}

// WriteMember writes what of returns. It must be called before Open. From then on the guard keeps
// the file and calls of again: now and then, and after MemberChanged.
func (l *Listener) WriteMember(of func() Member) error {
	l.member = of
	return l.writeMember(l.first().path, of())
}

// MemberChanged notes that the function of WriteMember returns something else. The file soon says
// so: the server may be killed at any moment.
func (l *Listener) MemberChanged() {
	select {
	case l.memberChanged <- struct{}{}:
	default: // the guard is about to call the function
	}
}

// writeMember writes the member file of the node at path if it does not say what it should.
func (l *Listener) writeMember(path string, m Member) error {
	want := l.memberText(m)
	now, err := readMember(path)
	if err != nil || bytes.Equal(now, want) {
		return err
	}
	return writeFile(path+memberSuffix, want)
}

// isDisplaced reports whether another server has the node's files.
func (l *Listener) isDisplaced() bool {
	select {
	case <-l.displaced:
		return true
	default:
		return false
	}
}

// LeaveMember writes that the node has left the cluster m. If m has no addresses, it removes the
// member file, as RemoveMember does.
func (l *Listener) LeaveMember(m Member) error {
	if len(m.Met) == 0 {
		return l.RemoveMember()
	}
	if l.isDisplaced() {
		return nil
	}
	m.HasLeft = true
	return l.writeMember(l.first().path, m)
}

// RemoveMember removes the member file, if there is one. If another server has displaced this one,
// the file is the other's and stays.
func (l *Listener) RemoveMember() error {
	if l.isDisplaced() {
		return nil
	}
	path := l.first().path
	b, err := readMember(path)
	if err != nil || b == nil {
		return err
	}
	if err := unlink(path + memberSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory: noting that %s left its cluster: %w", path, err)
	}
	return nil
}
