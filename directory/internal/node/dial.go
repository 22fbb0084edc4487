// SPDX-License-Identifier: Apache-2.0

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

	"golang.org/x/sys/unix"
)

// Dial connects to the directory at the path of a Unix socket, or at tcp://HOST:PORT?node=FILE. It
// fails with ErrNoDirectory if no process serves there, and with ErrUntrusted if a process serves
// that is not to be trusted.
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	if IsTCP(addr) {
		return dialTCP(ctx, addr, clientTime)
	}
	nc, err := dialUnix(ctx, filePath(addr))
	if err != nil {
		return nil, err // not nc: a nil *net.UnixConn is not a nil net.Conn
	}
	return nc, nil
}

// dialUnix connects to a server, or returns ErrUntrusted if the server is not to be trusted.
func dialUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if filepath.Clean(path) == defaultPath() {
		if err := checkDefault(); err != nil {
			return nil, err
		}
		if err := checkPrivate(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
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
	if err == nil && !mayServe(cred.uid, filepath.Dir(path)) {
		err = fmt.Errorf("directory: connecting to %s: %w: process %d of user %d serves there", path, ErrUntrusted, cred.pid, cred.uid)
	}
	if err != nil {
		uc.Close()
		return nil, err
	}
	return uc, nil
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
