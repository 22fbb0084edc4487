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

	"golang.org/x/sys/unix"
)

// DefaultSocket is where the node's directory is when nobody says otherwise:
// $ROCL_SOCKET, else a socket in the user's runtime directory.
func DefaultSocket() string {
	if p := os.Getenv("ROCL_SOCKET"); p != "" {
		return p
	}
	return builtin()
}

func builtin() string {
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "rocl", "directory.sock")
	}
	return filepath.Join(os.TempDir(), "rocl-"+strconv.Itoa(os.Getuid()), "directory.sock")
}

// maxPath is what fits the kernel's address of a Unix socket.
const maxPath = 107

// CheckSocket returns an error if path cannot be that of a directory's socket: it
// is too long for the kernel, or a URL. It does not look what lies there.
func CheckSocket(path string) error {
	if IsTCP(path) || strings.HasPrefix(path, unixScheme) {
		return fmt.Errorf("directory: %q is a URL, where the path of a socket is wanted", path)
	}
	if path = place(path); len(path) > maxPath {
		return fmt.Errorf("directory: socket path has %d bytes, at most %d: %s", len(path), maxPath, path)
	}
	return nil
}

// unixScheme begins what is often taken for the path of a socket.
const unixScheme = "unix:"

// Listen makes a server that serves the node at path, creating the directory
// (0700) if need be. It fails with ErrInUse if another server does. A socket
// left behind by a crash is replaced.
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
	var labels *Labels // nil: as they were
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

// Also lets the server serve at another path as well. Beside it is written whose
// path it is: a context that has joined there waits for the server to return,
// and does not serve in its place, since another may at the path proper.
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

const also = "rocl also of "

// alsoOf is the path proper of the server whose other path this is, or "".
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
	yieldTime = 2 * time.Second       // for how long a daemon asks a context for its place
	dyingTime = 50 * time.Millisecond // in which the kernel closes what a killed server had
	lockStep  = 5 * time.Millisecond  // flock tells nobody when it could be had
)

// lock takes the node's lock and makes the socket's path free, or returns
// ErrInUse. A daemon asks a context to give way.
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

// makeFolder makes the folder of the socket at path if it is not there. At the
// default place it must be the user's alone.
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
		err = unix.EWOULDBLOCK // it was replaced meanwhile: its successor may be locked
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	return nil, fmt.Errorf("directory: serving %s: %w", path, err)
}

// askToYield asks the context that serves at path for its place and returns
// the node's lock, which comes over the socket. A daemon refuses with ErrInUse.
func askToYield(ctx context.Context, path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	nc, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	if _, err := nc.Write(greeting(kindYield)); err != nil {
		return nil, err
	}
	m, fd, err := receive(nc)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("%w: %s", ErrSilent, processAt(nc))
	case err != nil:
		return nil, err
	case fd < 0:
		return nil, fmt.Errorf("%w: no lock came", ErrProtocol)
	case m.typ != msgDone:
		unix.Close(fd)
		return nil, fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
	}
	f := os.NewFile(uintptr(fd), path+lockSuffix)
	if !holds(path+lockSuffix, f) {
		f.Close()
		return nil, fmt.Errorf("%w: what came is not the node's lock", ErrProtocol)
	}
	return f, nil
}

// processAt describes the process at the other end of nc: its number, its name,
// and whether it is stopped.
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

// receive reads the one answer of a connection and the descriptor that comes with
// it, -1 if none does.
func receive(nc *net.UnixConn) (m message, fd int, err error) {
	b, oob := make([]byte, 4096), make([]byte, 64)
	n, oobn, _, _, err := nc.ReadMsgUnix(b, oob)
	if err != nil {
		return m, -1, err
	}
	var fds []int
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) > 0 {
		fds, _ = unix.ParseUnixRights(&msgs[0])
	}
	c := &codec{nc: nc, in: b, end: n}
	if m, err = c.read(); err == nil && m.typ == msgError {
		err = parseError(m.body)
	}
	if err == nil && len(fds) == 1 {
		return m, fds[0], nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return m, -1, err
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

// acceptPause is how long a server waits after accept failed.
const acceptPause = 20 * time.Millisecond

// accept lets serve have the connections of ln, each in a goroutine of its own.
func (s *Server) accept(ln net.Listener, serve func(net.Conn)) {
	defer s.busy.Done()
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.often.Warn("", "directory: accepting", "err", err)
			select { // descriptors ran out: only time mends that
			case <-time.After(acceptPause):
			case <-s.life.Done():
				return
			}
			continue
		}
		go serve(nc)
	}
}

// admit serves who is allowed to the socket, and tells others why not.
func (s *Server) admit(nc net.Conn) {
	if err := allowed(nc.(*net.UnixConn)); err != nil {
		s.often.Warn("", "directory: refused", "err", err)
		_ = nc.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_ = (&codec{nc: nc}).sendError(0, err)
		nc.Close()
		return
	}
	s.ServeConn(nc)
}

// allowed checks that the peer is the same user, or root.
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

// DialSocket connects to the directory at a Unix socket. It fails with
// ErrNoDirectory if no process serves there, and with ErrUntrusted if another
// user's does. A path that starts with tcp:// is that of [Server.ListenTCP].
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

// unreached says what a dial that failed means: ErrNoDirectory if nobody is
// there.
func unreached(addr string, err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // its own text repeats the address
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		if fi, e := os.Stat(addr); e == nil && fi.Mode().Type() != fs.ModeSocket { // refused by the kernel, whatever it is
			err = noSocket(fi)
		}
		return fmt.Errorf("%w: %s: %w", ErrNoDirectory, addr, err)
	}
	return fmt.Errorf("directory: connecting to %s: %w", addr, err)
}

// Dialer connects to s itself, in memory.
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
