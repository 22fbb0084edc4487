// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// The file PATH.member says that the node belongs to a cluster. It outlives a server that is killed
// or replaced, so that the next server knows that other nodes exist, even if that server has no
// settings of a member.

// memberPrefix is the text that a file PATH.member begins with. The node's number follows, so a
// server ignores the file of the node that this machine was before it was restarted.
const memberPrefix = "rocl member node "

// memberHead returns what the member file of this node contains before the name of the cluster.
func (l *Listener) memberHead() string {
	return fmt.Sprintf(memberPrefix+"%012x cluster ", uint64(l.id.Node))
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

// Member returns the name of the cluster that the node belongs to. isMember reports whether it
// belongs to one, also with an error: a file that cannot be read counts as membership, and a file
// that no directory wrote does not. Claim must have succeeded, as for the next two methods.
func (l *Listener) Member() (cluster string, isMember bool, err error) {
	b, err := readMember(l.first().path)
	if err != nil {
		return "", !errors.Is(err, ErrOccupied), err
	}
	cluster, isMember = strings.CutPrefix(string(b), l.memberHead())
	return strings.TrimSuffix(cluster, "\n"), isMember, nil
}

// WriteMember writes that the node belongs to the cluster that cluster returns. It must be called
// before Open. From then on the guard keeps the file and calls cluster again.
func (l *Listener) WriteMember(cluster func() string) error {
	l.cluster = cluster
	return l.writeMember(l.first().path)
}

// writeMember writes the member file of the node at path if it does not say what it should.
func (l *Listener) writeMember(path string) error {
	want := l.memberHead() + l.cluster() + "\n"
	now, err := readMember(path)
	if err != nil || string(now) == want {
		return err
	}
	return writeFile(path+memberSuffix, []byte(want))
}

// RemoveMember removes the member file, if there is one. If another server has displaced this one,
// the file is the other's and stays.
func (l *Listener) RemoveMember() error {
	select {
	case <-l.displaced:
		return nil
	default:
	}
	path := l.first().path
	b, err := readMember(path)
	if err != nil || b == nil {
		return err
	}
	if err := os.Remove(path + memberSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory: noting that %s left its cluster: %w", path, err)
	}
	return nil
}
