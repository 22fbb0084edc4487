// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// guardStep is the interval at which a server checks its files.
const guardStep = time.Second

// errDisplaced says that another server has the node's files.
var errDisplaced = fmt.Errorf("%w: the files of this one were removed while it served, and another has taken its place", ErrInUse)

// socket is one Unix socket at which a server listens, with the files beside it.
type socket struct {
	path string
	// note is what PATH.node contains in place of an identity: the path of which this one is a
	// second path; or "".
	note string

	mu   sync.Mutex // guards all below
	over bool       // the server does not listen any more, and the files may be another server's
	ln   *net.UnixListener
	at   fs.FileInfo // of the socket's file
	lock *os.File
	node fs.FileInfo // of PATH.node
	said string      // the problem that was logged last
}

// same reports whether the file at path is the one that fi describes.
func same(path string, fi fs.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && fi != nil && os.SameFile(now, fi)
}

// holds reports whether f is the file at path.
func holds(path string, f *os.File) bool {
	fi, err := f.Stat()
	return err == nil && same(path, fi)
}

// unlisten ends listening and removes the socket's file, if the file is this server's.
func (b *socket) unlisten() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if b.ln == nil {
		return
	}
	if same(b.path, b.at) { // while ln is open, no other file can have its number
		_ = unix.Unlink(b.path)
	}
	b.ln.Close()
	b.ln = nil
}

// unlock closes the lock's file, which releases the node's lock.
func (b *socket) unlock() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lock.Close()
}

// openLocked listens at the socket's path, which must be free. mu must be held.
func (b *socket) openLocked() error {
	ln, err := bind(b.path)
	if err != nil {
		return err
	}
	ln.SetUnlinkOnClose(false)
	if b.at, err = os.Lstat(b.path); err != nil {
		ln.Close()
		return fmt.Errorf("directory: listening at %s: %w", b.path, err)
	}
	b.ln = ln
	return nil
}

// Displaced returns a channel that is closed when the server has ended because another server
// serves the node. That happens if the files at its path were removed while it served.
func (s *Server) Displaced() <-chan struct{} { return s.displaced }

// guard restores the files of b until the server ends. A cleaner of /tmp may remove them, and then
// another server could start beside this one. It runs in a goroutine of its own.
func (s *Server) guard(b *socket, step time.Duration) {
	defer s.busy.Done()
	t := time.NewTicker(step)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.life.Done():
			return
		}
		err := s.look(b)
		if errors.Is(err, errDisplaced) {
			s.log.Error("directory: another server has taken the node's place, this one ends", "socket", b.path, "err", err)
			s.displace.Do(func() { close(s.displaced) })
			go s.Close() // in a goroutine of its own, because Close waits for this one
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != b.said {
			s.log.Warn("directory: the files of the node cannot be put back", "err", err)
		}
		b.said = text
	}
}

// look restores missing files of b. While another server has the lock it changes nothing.
// errDisplaced says that another server has the lock and the socket's path.
func (s *Server) look(b *socket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil
	}
	if !holds(b.path+lockSuffix, b.lock) {
		lock, err := retake(b.path)
		if errors.Is(err, ErrInUse) && !same(b.path, b.at) {
			return errDisplaced
		}
		if err != nil {
			return err // a server that starts has the lock for a moment, and finds that this one serves
		}
		s.log.Warn("directory: the node's lock was removed while it was held; there is a new one", "file", b.path+lockSuffix)
		b.lock.Close()
		b.lock = lock
	}
	if !same(b.path+nodeSuffix, b.node) {
		if err := s.keep(b); err != nil {
			return err
		}
	}
	if s.marked == b.path {
		if err := s.markMember(b.path); err != nil {
			return err
		}
	}
	if same(b.path, b.at) {
		return nil
	}
	if err := vacate(b.path); err != nil {
		return err
	}
	old := b.ln
	if err := b.openLocked(); err != nil {
		return err
	}
	s.log.Warn("directory: the node's socket was removed while it was served; there is a new one", "socket", b.path)
	s.busy.Add(1)
	go s.accept(b.ln, s.admit)
	old.Close()
	return nil
}

// keep writes PATH.node again if its content is not that of b's server. b.mu must be held.
func (s *Server) keep(b *socket) error {
	path := b.path + nodeSuffix
	now, err := readNode(path)
	if err != nil {
		return err
	}
	want := []byte(b.note)
	if b.note == "" {
		want = s.id.file()
	}
	if string(now) != string(want) {
		if err := writeSide(path, want); err != nil {
			return err
		}
		s.log.Warn("directory: the node's identity was removed while it was served; it is written again", "file", path)
	}
	b.node, err = os.Lstat(path)
	return err
}

// retake takes the node's lock again after its file was removed. If there is no file, retake makes
// one, which is locked before it appears at its path.
func retake(path string) (*os.File, error) {
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
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = os.Link(f.Name(), path+lockSuffix)
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	return takeLock(path) // another server was quicker, or the file system has no hard links
}
