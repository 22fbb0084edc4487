// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// guard restores the files of b, each step, until the Listener stops. A cleaner of /tmp may remove
// them, and then another server could start beside this one. guard also writes the member file when
// that has changed. It runs in a goroutine of its own.
func (l *Listener) guard(b *socket, step time.Duration) {
	t := time.NewTicker(step)
	defer t.Stop()
	var changed <-chan struct{}
	if b == l.first() {
		changed = l.memberChanged
	}
	for {
		select {
		case <-t.C:
		case <-changed:
		case <-l.life.Done():
			return
		}
		err := l.restore(b)
		if errors.Is(err, errDisplaced) {
			l.displace.Do(func() {
				// Cause: all files were deleted, and a second server was started. Remedy: restart
				// the programs of the first node.
				l.conf.Log.Error("directory: another server has taken the node's place, this one ends", "socket", b.path, "err", err)
				close(l.displaced)
				go l.conf.End() // in a goroutine of its own, because Stop waits for this one
			})
			return
		}
		text := fmt.Sprint(err)
		if err != nil && text != b.problem {
			// Cause: rights or space are missing. Remedy: correct `err`.
			l.conf.Log.Warn("directory: the files of the node cannot be put back", "err", err)
		}
		b.problem = text
	}
}

// restore writes missing files of b again. While another server has the lock it changes nothing.
// errDisplaced says that another server has the lock and the socket's path.
func (l *Listener) restore(b *socket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if !isOpen(b.path+lockSuffix, b.lock) {
		lock, err := remakeLock(b.path)
		if errors.Is(err, wire.ErrInUse) && !isFile(b.path, b.file) {
			return errDisplaced
		}
		if err != nil {
			return err // a server that starts has the lock for a moment, and finds that this one serves
		}
		// Cause: a file of the node was deleted. Remedy: find the process that deletes it.
		l.conf.Log.Warn("directory: the node's lock was removed while it was held; there is a new one", "file", b.path+lockSuffix)
		b.lock.Close()
		b.lock = lock
		l.conf.Remade()
	}
	if !isFile(b.path+nodeSuffix, b.nodeFile) {
		if err := l.restoreNodeFileLocked(b); err != nil {
			return err
		}
	}
	if l.member != nil && b == l.first() {
		if err := l.writeMember(b.path, l.member()); err != nil {
			return err
		}
	}
	if isFile(b.path, b.file) {
		return nil
	}
	if err := freePath(b.path); err != nil {
		return err
	}
	old := b.ln
	if err := b.openLocked(); err != nil {
		return err
	}
	// Cause: a file of the node was deleted. Remedy: find the process that deletes it.
	l.conf.Log.Warn("directory: the node's socket was removed while it was served; there is a new one", "socket", b.path)
	l.acceptAt(b.ln, l.admit)
	old.Close()
	return nil
}

// restoreNodeFileLocked writes PATH.node again if its content is not that of b's server. b.mu must
// be held.
func (l *Listener) restoreNodeFileLocked(b *socket) error {
	path := b.path + nodeSuffix
	now, err := readNodeFile(path)
	if err != nil {
		return err
	}
	want := []byte(b.note)
	if b.note == "" {
		want = l.id.file()
	}
	if string(now) != string(want) {
		if err := writeFile(path, want); err != nil {
			return err
		}
		// Cause: a file of the node was deleted. Remedy: find the process that deletes it.
		l.conf.Log.Warn("directory: the node's identity was removed while it was served; it is written again", "file", path)
	}
	b.nodeFile, err = identify(path)
	return err
}

// remakeLock takes the node's lock again after its file was removed. If there is no file,
// remakeLock makes one, which is locked before it appears at its path.
func remakeLock(path string) (*os.File, error) {
	if err := makeFolder(path); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path + lockSuffix); !errors.Is(err, fs.ErrNotExist) {
		return takeLock(path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rocl-lock-*")
	if err != nil {
		return nil, fmt.Errorf("directory: making the node's lock: %w", err)
	}
	defer os.Remove(f.Name())
	if err = tryLock(f); err == nil {
		err = os.Link(f.Name(), path+lockSuffix)
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	return takeLock(path) // another server was quicker, or the file system has no hard links
}
