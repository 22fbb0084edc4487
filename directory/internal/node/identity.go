// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/rocl-go/rocl/resource"
)

// An Identity is the number of a node, with the means to give its contexts numbers that are never
// given twice.
type Identity struct {
	Node  resource.NodeID
	Epoch uint64 // 24 bits; one for each server of the node since boot
	// Labels is the wire form of the labels that the node was given last. It is empty if there are
	// none. This package does not look into it.
	Labels []byte
	key    [32]byte      // secret; known to processes that can read PATH.node
	count  atomic.Uint64 // contexts that were given a number by this server
}

const labelPrefix = "labels " // the text that the line of labels begins with

const nodePrefix = "rocl node " // the text that an identity's file begins with

// maxEpoch is the last epoch of a node; after it the node is a new one.
const maxEpoch = 1<<24 - 1

// NewIdentity makes an identity that is stored nowhere, for nodes in memory.
func NewIdentity() *Identity {
	id := &Identity{Epoch: 1}
	var b [8]byte
	_, _ = rand.Read(b[2:])
	id.Node = resource.NodeID(binary.BigEndian.Uint64(b[:]))
	_, _ = rand.Read(id.key[:])
	return id
}

// Next returns the number of a new context. It fails after 16 million.
func (i *Identity) Next() (resource.GID, error) {
	n := i.count.Add(1)
	if n >= 1<<24 {
		// Cause: one server has served 16 million contexts. Remedy: restart the daemon.
		return resource.GID{}, errors.New("directory: this server has given out all its numbers; restart it")
	}
	return resource.MakeGID(i.Node, i.Epoch<<24|n, 0), nil
}

// Token returns the proof, for any server of this node, that g was given by this node.
func (i *Identity) Token(g resource.GID) (t [32]byte) {
	var b [16]byte
	resource.PutGID(b[:], g)
	return i.derive("token", b[:])
}

// LinkKey returns the key that the contexts of this node prove to each other to know.
func (i *Identity) LinkKey() [32]byte { return i.derive("link", nil) }

// derive returns a secret for one purpose, computed from the node's key.
func (i *Identity) derive(what string, of []byte) (t [32]byte) {
	h := hmac.New(sha256.New, i.key[:])
	h.Write([]byte(what))
	h.Write(of)
	h.Sum(t[:0])
	return t
}

// bootID returns an identifier of the present run of the kernel.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// loadIdentity reads the identity at path and begins its next epoch. If there is none of this boot,
// it makes one. labels, unless nil, replace the stored ones. If they cannot be written, unkept says
// why. The node's lock must be held.
func loadIdentity(path string, labels []byte) (id *Identity, unkept, err error) {
	id, err = readIdentity(path)
	if err != nil {
		return nil, nil, err
	}
	without := id // with the labels that were stored before
	if id == nil || id.Epoch >= maxEpoch {
		id = NewIdentity()
	} else {
		without = &Identity{Node: id.Node, Epoch: id.Epoch + 1, key: id.key, Labels: id.Labels}
		id.Epoch++
	}
	if labels != nil {
		id.Labels = labels
	}
	if err = writeIdentity(path, id); err == nil || id.Epoch == 1 {
		return id, nil, err
	}
	if e := writeIdentity(path, without); e != nil {
		return nil, nil, e
	}
	return id, err, nil // the next server gets the labels that were stored before
}

// readIdentity returns the identity in the file at path. It returns nil for an identity of another
// boot and for a malformed one: then the node is a new one.
func readIdentity(path string) (*Identity, error) {
	b, err := readNodeFile(path)
	if err != nil || len(b) == 0 {
		return nil, err
	}
	var node, epoch uint64
	var boot, key string
	first, second, _ := strings.Cut(string(b), "\n")
	if n, err := fmt.Sscanf(first, nodePrefix+"%x boot %s epoch %d key %s", &node, &boot, &epoch, &key); err != nil || n != 4 {
		return nil, nil
	}
	id := &Identity{Node: resource.NodeID(node), Epoch: epoch}
	k, err := hex.DecodeString(key)
	if err != nil || len(k) != len(id.key) || boot != bootID() || node >= 1<<48 || node == 0 {
		return nil, nil
	}
	copy(id.key[:], k)
	id.Labels = parseLabels(second)
	return id, nil
}

// readNodeFile returns the content of the file PATH.node at path: nil if there is no file, an
// identity, or the note of a second path. Any other file is an error.
func readNodeFile(path string) ([]byte, error) {
	b, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(b) > 0 && !strings.HasPrefix(string(b), nodePrefix) && !strings.HasPrefix(string(b), secondPrefix) {
		// Cause: `PATH.node` is damaged or foreign. Remedy: end the node's processes, and remove
		// the file.
		err = fmt.Errorf("directory: reading %s: %w: it is not a node's identity", path, ErrOccupied)
	}
	return b, err
}

// file returns the content of PATH.node. Its size does not change with the epoch.
func (i *Identity) file() []byte {
	return fmt.Appendf(nil, nodePrefix+"%012x boot %s epoch %08d key %x\n%s", uint64(i.Node), bootID(), i.Epoch, i.key, i.labelLine())
}

// labelLine returns the line of PATH.node that has the labels, "" if there are none.
func (i *Identity) labelLine() string {
	if len(i.Labels) == 0 {
		return ""
	}
	return labelPrefix + base64.StdEncoding.EncodeToString(i.Labels) + "\n"
}

// parseLabels returns the labels in a line of PATH.node. A malformed line has none.
func parseLabels(line string) []byte {
	text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), labelPrefix)
	if b, err := base64.StdEncoding.DecodeString(text); ok && err == nil {
		return b
	}
	return nil
}

// writeIdentity writes id to path. If only the epoch is new, it is written in place, which needs no
// disk space.
func writeIdentity(path string, id *Identity) error {
	now, err := readNodeFile(path)
	if err != nil {
		return err
	}
	want := id.file()
	if len(now) == len(want) {
		from, to := 0, len(want)
		for from < to && now[from] == want[from] {
			from++
		}
		for to > from && now[to-1] == want[to-1] {
			to--
		}
		if to-from <= len("00000000") { // one call writes all of it or nothing
			return overwriteFile(path, want[from:to], from)
		}
	}
	return writeFile(path, want)
}

// Sibling makes the identity of another node whose contexts trust those of i, because it has the
// same key. It is for nodes in memory.
func (i *Identity) Sibling() *Identity {
	s := NewIdentity()
	s.key = i.key
	return s
}

// Successor makes the identity of the next server of the node. It is for nodes in memory.
func (i *Identity) Successor() *Identity {
	return &Identity{Node: i.Node, Epoch: i.Epoch + 1, key: i.key, Labels: i.Labels}
}
