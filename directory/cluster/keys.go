// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rocl-go/rocl/internal/os/secretfile"
)

// Limits of a key, in bytes, and of the number of keys in a file.
const (
	minKey   = 16
	maxKey   = 4 << 10
	mostKeys = 8
)

// mostBytes is how much is read of a file of keys.
const mostBytes = mostKeys * (maxKey + 1)

// ReadKeys reads the keys of a cluster from a file: the first seals, all open. Each line has one
// key, taken as written, without the white space around it. Lines that begin with # are comments. A
// file that is not text is one key as a whole. No error contains a part of a key.
//
// A file is a path, $CREDENTIALS_DIRECTORY/NAME for a credential of systemd, or fd:N for an open
// descriptor (also /dev/fd/N and /dev/stdin), of a pipe too. No other user may have rights to it.
// A group may, if it is one of this process and has no other user: files of mode 0440 of root and
// the process's group are accepted, as container managers make them.
func ReadKeys(file string) (keys [][]byte, err error) {
	b, err := secretfile.Read(file, mostBytes, true)
	if err != nil {
		// Cause: the key file cannot be read, or its mode is insecure. Remedy: do what the message
		// says; [which files are accepted](SECURING.md#which-files-with-secrets-are-accepted).
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	lines := [][]byte{b}
	text := utf8.Valid(b) && !bytes.ContainsFunc(b, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) })
	if text {
		lines = bytes.Split(b, []byte("\n"))
	}
	for i, key := range lines {
		key = bytes.TrimSpace(key)
		if text && (len(key) == 0 || key[0] == '#') {
			continue
		}
		if len(key) < minKey || len(key) > maxKey || len(b) > mostBytes {
			// Cause: the key has the wrong length. Remedy: `openssl rand -hex 32` makes one.
			return nil, fmt.Errorf("%w: the cluster's key in %s, line %d, has %d bytes; it must have at least %d and at most %d", ErrConfig, file, i+1, len(key), minKey, maxKey)
		}
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
			// Cause: the file has the key twice. Remedy: remove one line.
			return nil, fmt.Errorf("%w: the cluster's key in %s, line %d, is there already", ErrConfig, file, i+1)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > mostKeys {
		return nil, fmt.Errorf("%w: %s has %d keys of the cluster; it must have at least 1 and at most %d", ErrConfig, file, len(keys), mostKeys)
	}
	return keys, nil
}

// keys returns the keys in the file, or none if there is no file.
func (m *Membership) keys() ([][]byte, error) {
	if m.member.KeyFile == "" {
		return nil, nil
	}
	return ReadKeys(m.member.KeyFile)
}

// linkKeys returns what the contexts prove to each other to have, in the order of the cluster's
// keys.
func (m *Membership) linkKeys(keys [][]byte) (link [][32]byte) {
	if len(keys) == 0 {
		return [][32]byte{LinkKey(m.name, nil)}
	}
	for _, k := range keys {
		link = append(link, LinkKey(m.name, k))
	}
	return link
}

// Rekey reads the file of the cluster's keys again. The new keys are used between members and for
// the links of the node's contexts, which are told. It returns the number of keys. If it returns an
// error, the keys are as they were. Members call the same by themselves soon after the file has
// changed.
func (m *Membership) Rekey() (int, error) {
	n, _, err := m.rekey()
	return n, err
}

// rekey is Rekey that also reports whether the keys have changed.
func (m *Membership) rekey() (n int, changed bool, err error) {
	m.keysMu.Lock()
	defer m.keysMu.Unlock()
	keys, err := m.keys()
	if err != nil || len(keys) == 0 {
		return 0, false, err
	}
	m.mu.Lock()
	c, s := m.cluster, m.server
	m.mu.Unlock()
	if c == nil || slices.EqualFunc(keys, m.used, bytes.Equal) {
		return len(keys), false, nil // without a cluster, the keys are read when one begins
	}
	if err := c.SetKeys(keys...); err != nil {
		return 0, false, err
	}
	s.SetLinkKeys(m.linkKeys(keys)...)
	m.used = keys
	return len(keys), true, nil
}

// keyFilePoll is how often the file of keys is looked at.
const keyFilePoll = time.Second

// keepKeys follows the file of keys. A change is read when the file looks the same for the second
// time: before that, the file may still be being written.
func (m *Membership) keepKeys(life context.Context) {
	var seen, used os.FileInfo
	logged := ""
	tick := time.NewTicker(keyFilePoll)
	defer tick.Stop()
	for {
		now, err := secretfile.Stat(m.member.KeyFile, mostBytes)
		if err == nil && sameFile(now, seen) && !sameFile(now, used) {
			var n int
			var changed bool
			if n, changed, err = m.rekey(); err == nil {
				used, logged = now, ""
			}
			if changed {
				m.log.Info("cluster: the keys have changed", "keys", n)
			}
		}
		seen = now
		if err != nil && err.Error() != logged {
			logged = err.Error()
			// Cause: the changed key file cannot be used. Remedy: correct it.
			m.log.Warn("cluster: the keys stay as they were", "err", err)
		}
		select {
		case <-tick.C:
		case <-life.Done():
			return
		}
	}
}

// sameFile reports whether two looks at a file show no change.
func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}
