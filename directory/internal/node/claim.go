// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// socket is one Unix socket of a Listener, with the files beside it. Its lock is held.
type socket struct {
	path string
	// note is what PATH.node contains in place of an identity: the path of which this one is a
	// second path; or "".
	note    string
	problem string // what the guard has logged last; only the guard uses it

	mu       sync.Mutex // guards the following fields; taken before Listener.mu
	closed   bool       // the socket is not listened at any more, and the files may be another server's
	ln       net.Listener
	file     fs.FileInfo // of the socket's file
	lock     *os.File
	nodeFile fs.FileInfo // of PATH.node
}

// openLocked listens at the socket's path, which must be free. mu must be held.
func (b *socket) openLocked() error {
	ln, err := bind(b.path)
	if err != nil {
		return err
	}
	if b.file, err = identify(b.path); err != nil {
		ln.Close()
		return fmt.Errorf("directory: listening at %s: %w", b.path, err)
	}
	b.ln = ln
	return nil
}

// unlisten ends listening and removes the socket's file, if the file is this server's.
func (b *socket) unlisten() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.ln == nil {
		return
	}
	if isFile(b.path, b.file) { // while ln is open, no other file can have its number
		_ = unlink(b.path)
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

// Claim takes the lock of the node at path and begins the next epoch of the node's identity, which
// it returns. It creates the folder of path (0700) if necessary. A daemon asks a context that
// serves to give way. labels replace those of the identity; if they are nil, those stay. If they
// cannot be written, they end with this server, and a log line says so.
//
// Claim fails with ErrInUse if another server serves the node, and with ErrNoDirectory if path is
// the second path of a daemon and this process is none.
func (l *Listener) Claim(path string, labels []byte) (*Identity, error) {
	b, err := l.lock(path)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.sockets = []*socket{b}
	l.mu.Unlock()
	if first := firstPath(b.path); first != "" && !l.conf.Daemon {
		return nil, fmt.Errorf("%w: %s is served by the daemon of %s", ErrNoDirectory, b.path, first)
	}
	id, unkept, err := loadIdentity(b.path+nodeSuffix, labels)
	if unkept != nil {
		// Cause: `PATH.node` cannot be written. Remedy: free space, correct rights.
		l.conf.Log.Warn("directory: the node's labels end with this server: they cannot be kept", "err", unkept)
	}
	if err != nil {
		return nil, err
	}
	l.id = id
	return id, nil
}

// secondPrefix is the text that PATH.node of a second path begins with.
const secondPrefix = "rocl also of "

// firstPath returns the first path of the server for which path is a second one, or "".
func firstPath(path string) string {
	b, _ := readFile(path + nodeSuffix)
	if first, ok := strings.CutPrefix(string(b), secondPrefix); ok {
		return strings.TrimSpace(first)
	}
	return ""
}

const (
	yieldTime = 2 * time.Second       // for how long a daemon asks a context to give way
	dyingTime = 50 * time.Millisecond // in which the kernel closes the sockets of a killed server
	lockStep  = 5 * time.Millisecond  // flock does not report when the lock becomes free
)

// lock takes the node's lock and makes the socket's path free, or returns ErrInUse. A daemon asks a
// context that serves to give way.
func (l *Listener) lock(path string) (*socket, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	path = filePath(path)
	if err := makeFolder(path); err != nil {
		return nil, err
	}
	for begun := time.Now(); ; time.Sleep(lockStep) {
		f, err := takeLock(path)
		if err == nil {
			if err = freePath(path); err == nil {
				return &socket{path: path, lock: f}, nil
			}
			f.Close()
		}
		if !errors.Is(err, wire.ErrInUse) {
			return nil, err
		}
		limit := time.Duration(0)
		if errors.Is(err, errServed) {
			limit = dyingTime
		}
		if l.conf.Daemon {
			lock, e := askToYield(l.life, path)
			if e == nil {
				return &socket{path: path, lock: lock}, nil
			}
			if errors.Is(e, ErrUntrusted) {
				return nil, e
			}
			if errors.Is(e, ErrSilent) {
				err = fmt.Errorf("directory: serving %s: %w: %w", path, wire.ErrInUse, e)
			}
			if limit = yieldTime; errors.Is(e, wire.ErrInUse) {
				limit = 0
			}
		}
		if time.Since(begun) >= limit {
			return nil, err
		}
	}
}

// makeFolder makes the folder of the socket at path if there is none. At the default path no other
// user may have access to the folder, and the folder around it must be there: whatever else the
// environment names is a mistake, or is mounted later.
func makeFolder(path string) error {
	dir := filepath.Dir(path)
	if filepath.Clean(path) != defaultPath() {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("directory: making a place for the socket: %w", err)
		}
		return nil
	}
	if err := checkDefault(); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, 0o700); {
	case errors.Is(err, fs.ErrNotExist):
		_, variable := defaultFolder()
		// Cause: the variable names a folder that does not exist. Remedy: create it, or correct the
		// variable.
		return fmt.Errorf("directory: the default path of the directory: %w: %s, which %s names; set ROCL_SOCKET to use another path", fs.ErrNotExist, filepath.Dir(dir), variable)
	case err != nil && !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("directory: making a place for the socket: %w", err)
	}
	return checkPrivate(dir)
}

// takeLock takes the node's lock, or returns ErrInUse if a process has it.
func takeLock(path string) (*os.File, error) {
	f, err := openFile(path+lockSuffix, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if uid, ok := owner(f); ok && int(uid) != os.Geteuid() {
		f.Close()
		// Cause: root tries to serve another user's node. Remedy: run the daemon as that user.
		return nil, fmt.Errorf("directory: serving %s: %w: %s belongs to user %d, and only that user can serve there", path, ErrUntrusted, path+lockSuffix, uid)
	}
	if err = tryLock(f); err == nil {
		if isOpen(path+lockSuffix, f) {
			return f, nil
		}
		err = syscall.EWOULDBLOCK // the file was replaced meanwhile, and the new one may be locked
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = wire.ErrInUse
	}
	return nil, fmt.Errorf("directory: serving %s: %w", path, err)
}

// CanHandOver reports whether HandOver gives the whole node away: there is one socket.
func (l *Listener) CanHandOver() bool { return len(l.all()) == 1 }

// HandOver stops listening at the first socket and passes the descriptor of the node's lock to
// send, so that no third process can take the lock in between. The guard leaves the files as they
// are from now on.
func (l *Listener) HandOver(send func(lock int) error) error {
	b := l.first()
	b.unlisten()
	b.mu.Lock()
	defer b.mu.Unlock()
	return send(int(b.lock.Fd()))
}
