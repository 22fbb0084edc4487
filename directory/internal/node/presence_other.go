// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// maxShown limits the files of contexts that a server looks at.
const maxShown = 1 << 14

// A server that looks whether a lock is held has it for a moment. A context tries again so often,
// after such a pause.
const (
	showTries = 100
	showPause = time.Millisecond
)

// A Presence shows that a context lives, by a lock of the file PATH.lock.NUMBER, where NUMBER is
// the context's. The zero value shows nothing.
type Presence struct{ file *os.File }

// Show ensures that the context self holds the lock of its file, where the next server at the other
// end of nc will look for it. If the lock cannot be taken, Show returns the reason, and the next
// server does not wait for the context. A connection in memory has no lock file, and no next
// server.
func (p *Presence) Show(nc net.Conn, self resource.GID) error {
	path := lockFile(nc)
	if path == "" {
		p.End()
		return nil
	}
	path = shownFile(path, self.Ctx())
	if p.file != nil && isOpen(path, p.file) {
		return nil
	}
	p.End()
	for range showTries {
		f, err := openFile(path, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		if err = tryLock(f); err == nil && isOpen(path, f) {
			p.file = f
			return nil
		}
		f.Close()
		if err != nil && err != syscall.EWOULDBLOCK {
			return fmt.Errorf("directory: locking %s: %w", path, err)
		}
		time.Sleep(showPause)
	}
	return fmt.Errorf("directory: locking %s: %w", path, syscall.EWOULDBLOCK)
}

// shownFile returns the file whose lock a context holds. lock is the path of PATH.lock.
func shownFile(lock string, ctx uint64) string { return fmt.Sprintf("%s.%d", lock, ctx) }

// End shows that the context does not live any more.
func (p *Presence) End() {
	if p.file != nil {
		if isOpen(p.file.Name(), p.file) {
			closeRemoved(p.file)
		} else {
			p.file.Close()
		}
		p.file = nil
	}
}

// living returns the contexts with numbers of at least from and less than to that live, and removes
// the files of those that do not. areAll is false if the kernel does not say, or there are too
// many.
func (b *socket) living(from, to int64) (all []uint64, areAll bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, true
	}
	if to == from+1 {
		lives, err := isShown(shownFile(b.path+lockSuffix, uint64(from)))
		if lives {
			all = append(all, uint64(from))
		}
		return all, err == nil
	}
	files, err := os.ReadDir(filepath.Dir(b.path))
	if err != nil {
		return nil, false
	}
	areAll = true
	prefix, looked := filepath.Base(b.path)+lockSuffix+".", 0
	for _, f := range files {
		number, ok := strings.CutPrefix(f.Name(), prefix)
		ctx, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || ctx < from || ctx >= to {
			continue
		}
		if looked++; looked > maxShown {
			return all, false
		}
		lives, err := isShown(shownFile(b.path+lockSuffix, uint64(ctx)))
		if lives {
			all = append(all, uint64(ctx))
		}
		areAll = areAll && err == nil
	}
	return all, areAll
}

// isShown reports whether a process holds the lock of the file at path. It removes the file if none
// does.
func isShown(path string) (bool, error) {
	f, err := openFile(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = tryLock(f)
	if err == nil && isOpen(path, f) {
		closeRemoved(f)
	} else {
		f.Close()
	}
	if err == syscall.EWOULDBLOCK {
		return true, nil
	}
	return false, err
}
