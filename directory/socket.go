// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"bytes"
	"context"
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

	"github.com/rocl-go/rocl/directory/internal/wire"
	"golang.org/x/sys/unix"
)

// DefaultSocket returns the path of the socket of the node's directory: $ROCL_SOCKET, or else a
// socket in the user's runtime directory.
func DefaultSocket() string {
	if p := os.Getenv("ROCL_SOCKET"); p != "" {
		return p
	}
	return builtin()
}

// builtin returns the path of the socket if $ROCL_SOCKET is not set.
func builtin() string {
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "rocl", "directory.sock")
	}
	return filepath.Join(os.TempDir(), "rocl-"+strconv.Itoa(os.Getuid()), "directory.sock")
}

// maxPath is the length that fits the kernel's address of a Unix socket.
const maxPath = 107

// CheckSocket returns an error if path cannot be the path of a directory's socket: it is too long
// for the kernel, or a URL. It does not look at files.
func CheckSocket(path string) error {
	if IsTCP(path) || strings.HasPrefix(path, unixScheme) {
		return fmt.Errorf("directory: %q is a URL, where the path of a socket is wanted", path)
	}
	if path = place(path); len(path) > maxPath {
		return fmt.Errorf("directory: socket path has %d bytes, at most %d: %s", len(path), maxPath, path)
	}
	return nil
}

// unixScheme is the beginning of URLs that are easily taken for the path of a socket.
const unixScheme = "unix:"

// Listen makes a server that serves the node at path. It creates the folder of path (0700) if
// necessary, and replaces a socket that a crash left behind. It fails with ErrInUse if another
// server serves the node.
func Listen(path string, opts ...Option) (*Server, error) {
	s := newServer(opts)
	b, err := s.lock(path)
	if err != nil {
		return nil, err
	}
	path = b.path
	if of := alsoOf(path); of != "" && !s.daemon {
		b.lock.Close()
		return nil, fmt.Errorf("%w: %s is served by the daemon of %s", ErrNoDirectory, path, of)
	}
	var labels *Labels // nil: the labels stay
	if s.labelled || s.daemon {
		labels = &s.labels
	}
	id, unkept, err := loadIdentity(path+nodeSuffix, labels)
	if unkept != nil {
		s.log.Warn("directory: the node's labels end with this server: they cannot be kept", "err", unkept)
	}
	if err == nil {
		s.id, s.labels = id, id.labels
		s.enrol("")
		if err = s.membership(path); err == nil {
			err = s.listen(b)
		}
		s.opens()
	}
	if err != nil {
		s.Close()
		b.lock.Close()
		return nil, err
	}
	return s, nil
}

// Also makes the server serve at a second path too. The file PATH.node of the second path names the
// first one. A context that has joined at the second path does not serve there when the server
// ends, because another server may serve at the first path. It waits for the server to return.
func (s *Server) Also(path string) error {
	b, err := s.lock(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	proper := s.bound[0].path
	s.mu.Unlock()
	b.note = also + proper + "\n"
	if _, err = readNode(b.path + nodeSuffix); err == nil {
		err = writeSide(b.path+nodeSuffix, []byte(b.note))
	}
	if err == nil {
		err = s.listen(b)
	}
	if err != nil {
		b.lock.Close()
		return err
	}
	return nil
}

const also = "rocl also of " // the text that the note of a second path begins with

// alsoOf returns the first path of the server for which path is a second one, or "".
func alsoOf(path string) string {
	b, err := readSide(path + nodeSuffix)
	if err != nil {
		return ""
	}
	of, ok := strings.CutPrefix(string(b), also)
	if !ok {
		return ""
	}
	return strings.TrimSpace(of)
}

const (
	yieldTime = 2 * time.Second       // for how long a daemon asks a context to give way
	dyingTime = 50 * time.Millisecond // in which the kernel closes the sockets of a killed server
	lockStep  = 5 * time.Millisecond  // flock does not report when the lock becomes free
)

// lock takes the node's lock and makes the socket's path free, or returns ErrInUse. A daemon asks a
// context that serves to give way.
func (s *Server) lock(path string) (*socket, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	path = place(path)
	if err := makeFolder(path); err != nil {
		return nil, err
	}
	for begun := time.Now(); ; time.Sleep(lockStep) {
		f, err := takeLock(path)
		if err == nil {
			if err = vacate(path); err == nil {
				return &socket{path: path, lock: f}, nil
			}
			f.Close()
		}
		if !errors.Is(err, ErrInUse) {
			return nil, err
		}
		patience := time.Duration(0)
		if errors.Is(err, errServed) {
			patience = dyingTime
		}
		if s.daemon {
			lock, e := askToYield(s.life, path)
			if e == nil {
				return &socket{path: path, lock: lock}, nil
			}
			if errors.Is(e, ErrUntrusted) {
				return nil, e
			}
			if errors.Is(e, ErrSilent) {
				err = fmt.Errorf("directory: serving %s: %w: %w", path, ErrInUse, e)
			}
			if patience = yieldTime; errors.Is(e, ErrInUse) {
				patience = 0
			}
		}
		if time.Since(begun) >= patience {
			return nil, err
		}
	}
}

// makeFolder makes the folder of the socket at path if there is none. At the default path no other
// user may have access to the folder.
func makeFolder(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory: making a place for the socket: %w", err)
	}
	if filepath.Clean(path) == builtin() {
		return private(dir)
	}
	return nil
}

// takeLock takes the node's lock, or returns ErrInUse if a process has it.
func takeLock(path string) (*os.File, error) {
	f, err := openSide(path+lockSuffix, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && int(st.Uid) != os.Geteuid() {
		f.Close()
		return nil, fmt.Errorf("directory: serving %s: %w: %s is of user %d, who alone can serve there", path, ErrUntrusted, path+lockSuffix, st.Uid)
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		if holds(path+lockSuffix, f) {
			return f, nil
		}
		err = unix.EWOULDBLOCK // the file was replaced meanwhile, and the new one may be locked
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	return nil, fmt.Errorf("directory: serving %s: %w", path, err)
}

// askToYield asks the context that serves at path to give way, and returns the node's lock, which
// comes over the socket. A daemon refuses with ErrInUse. ErrSilent says that the serving process
// does not answer.
func askToYield(ctx context.Context, path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	nc, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	if _, err := nc.Write(wire.Greeting(wire.KindYield)); err != nil {
		return nil, err
	}
	m, fd, err := wire.ReceiveDescriptor(nc)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("%w: %s", ErrSilent, processAt(nc))
	case err != nil:
		return nil, err
	case fd < 0:
		return nil, fmt.Errorf("%w: no lock came", ErrProtocol)
	case m.Type != wire.MsgDone:
		unix.Close(fd)
		return nil, fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
	}
	f := os.NewFile(uintptr(fd), path+lockSuffix)
	if !holds(path+lockSuffix, f) {
		f.Close()
		return nil, fmt.Errorf("%w: what came is not the node's lock", ErrProtocol)
	}
	return f, nil
}

// processAt describes the process at the other end of nc: its number, its name, and whether it is
// stopped.
func processAt(nc *net.UnixConn) string {
	cred, err := peerOf(nc)
	if err != nil || cred.Pid <= 0 {
		return "a process of another container"
	}
	who := fmt.Sprintf("process %d", cred.Pid)
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cred.Pid)) // number (name) state …
	head, rest, ok := bytes.Cut(b, []byte("("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || len(head) == 0 || end < 0 || end+2 >= len(rest) {
		return who
	}
	who = fmt.Sprintf("%s (%s)", who, rest[:end])
	if state := rest[end+2]; state == 'T' || state == 't' {
		who += ", which is stopped"
	}
	return who
}

// listen serves at b, whose lock is held and whose path is free.
func (s *Server) listen(b *socket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.openLocked(); err != nil {
		return err
	}
	b.node, _ = os.Lstat(b.path + nodeSuffix)
	s.mu.Lock()
	s.bound = append(s.bound, b)
	s.busy.Add(2)
	s.mu.Unlock()
	go s.accept(b.ln, s.admit)
	go s.guard(b, s.guardStep)
	return nil
}

// acceptPause is how long a server waits after accept has failed.
const acceptPause = 20 * time.Millisecond

// accept passes the connections of ln to serve, each in a goroutine of its own, until ln is closed.
func (s *Server) accept(ln net.Listener, serve func(net.Conn)) {
	defer s.busy.Done()
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.often.Warn("", "directory: accepting", "err", err)
			select { // the process has no free descriptors: wait
			case <-time.After(acceptPause):
			case <-s.life.Done():
				return
			}
			continue
		}
		go serve(nc)
	}
}

// admit serves a connection from an allowed process, and tells any other process why it is refused.
func (s *Server) admit(nc net.Conn) {
	if err := allowed(nc.(*net.UnixConn)); err != nil {
		s.often.Warn("", "directory: refused", "err", err)
		_ = nc.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_ = (wire.NewConn(nc)).SendError(0, err)
		nc.Close()
		return
	}
	s.ServeConn(nc)
}

// allowed returns an error unless the process at the other end belongs to the same user or to root.
func allowed(nc *net.UnixConn) error {
	cred, err := peerOf(nc)
	if err != nil {
		return err
	}
	if uid := int(cred.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%w: process %d is of user %d", ErrDenied, cred.Pid, cred.Uid)
	}
	return nil
}

// A Dialer connects to a node's directory.
type Dialer func(ctx context.Context) (net.Conn, error)

// DialSocket returns a Dialer to the directory at a Unix socket. The Dialer fails with
// ErrNoDirectory if no process serves there, and with ErrUntrusted if a process of another user
// does. A path that starts with tcp:// is an address of [Server.ListenTCP], followed by ?node= and
// the file with the node's key.
func DialSocket(path string) Dialer {
	if IsTCP(path) {
		return dialTCP(path)
	}
	path = place(path)
	return func(ctx context.Context) (net.Conn, error) {
		nc, err := dialUnix(ctx, path)
		if err != nil {
			return nil, err
		}
		return nc, nil
	}
}

// unreached returns the error of a dial that failed. It matches ErrNoDirectory if no process serves
// at addr.
func unreached(addr string, err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // the text of err repeats the address
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		// The kernel refuses a connection to any file that is no socket.
		if fi, e := os.Stat(addr); e == nil && fi.Mode().Type() != fs.ModeSocket {
			err = noSocket(fi)
		}
		return fmt.Errorf("%w: %s: %w", ErrNoDirectory, addr, err)
	}
	return fmt.Errorf("directory: connecting to %s: %w", addr, err)
}

// Dialer returns a Dialer that connects to s itself, in memory.
func (s *Server) Dialer() Dialer {
	return func(context.Context) (net.Conn, error) {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return nil, fmt.Errorf("%w: it was closed", ErrNoDirectory)
		}
		near, far := net.Pipe()
		go s.ServeConn(far)
		return near, nil
	}
}
