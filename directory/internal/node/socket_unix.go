// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"golang.org/x/sys/unix"
)

// maxPath is the length that fits the kernel's address of a Unix socket.
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// bind listens at path, which must be free. The socket has mode 0600. Where a system sets the mode
// after the socket can be seen, the Listener refuses other users that connect meanwhile.
func bind(path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: beforeBind}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) { // path was free: another server has put its files back meanwhile
		err = wire.ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("directory: listening at %s: %w", path, err)
	}
	if err := afterBind(path); err != nil {
		ln.Close()
		return nil, fmt.Errorf("directory: listening at %s: %w", path, err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	return ln, nil
}

// freePath makes the socket's path free. It removes only a socket that no process serves. The
// node's lock must be held.
func freePath(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("directory: serving %s: %w", path, err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("directory: serving %s: %w", path, noSocket(fi))
	}
	nc, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		nc.Close()
		err = errServed
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded): // the server's queue is full
		err = errServed
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ECONNREFUSED):
		if err = unix.Unlink(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		err = fmt.Errorf("removing the socket that a dead server left: %w", err)
	default: // EPROTOTYPE: a socket of another type
		err = fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	return fmt.Errorf("directory: serving %s: %w", path, err)
}

// admit serves a connection from an allowed process, and tells any other process why it is refused.
func (l *Listener) admit(nc net.Conn) {
	if err := allowed(nc.(*net.UnixConn)); err != nil {
		// Cause: a process of another user tried to connect. Remedy: run it as the node's user.
		l.limited.Warn("", "directory: refused", "err", err)
		_ = nc.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_ = wire.NewConn(nc).SendError(0, err)
		nc.Close()
		return
	}
	l.conf.Serve(nc)
}

// dialUnix connects to a server, or returns ErrUntrusted if the server is not to be trusted.
func dialUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	for errors.Is(err, unix.EAGAIN) { // the server's queue of connections is full
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("directory: connecting to %s: %w", path, context.Cause(ctx))
		}
		nc, err = d.DialContext(ctx, "unix", path)
	}
	if err != nil {
		return nil, dialError(path, err)
	}
	uc := nc.(*net.UnixConn)
	cred, err := peerOf(uc)
	if err == nil && !mayServe(cred.UID, filepath.Dir(path)) {
		err = fmt.Errorf("directory: connecting to %s: %w: process %d of user %d serves there", path, ErrUntrusted, cred.PID, cred.UID)
	}
	if err != nil {
		uc.Close()
		return nil, err
	}
	return uc, nil
}

// dialLocal is dialUnix for any net.Conn.
func dialLocal(ctx context.Context, path string) (net.Conn, error) {
	nc, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err // not nc: a nil *net.UnixConn is not a nil net.Conn
	}
	return nc, nil
}

// dialError returns the error of a dial that failed. It matches ErrNoDirectory if no process serves
// at addr.
func dialError(addr string, err error) error {
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
		return nil, fmt.Errorf("%w: no lock came", wire.ErrProtocol)
	case m.Type != wire.MsgDone:
		unix.Close(fd)
		return nil, fmt.Errorf("%w: message type %d", wire.ErrProtocol, m.Type)
	}
	f := os.NewFile(uintptr(fd), path+lockSuffix)
	if !isOpen(path+lockSuffix, f) {
		f.Close()
		return nil, fmt.Errorf("%w: what came is not the node's lock", wire.ErrProtocol)
	}
	return f, nil
}
