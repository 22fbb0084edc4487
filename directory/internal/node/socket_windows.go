// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"golang.org/x/sys/windows"
)

// On this system the file PATH is no socket. It contains the address of a TCP port of the loopback
// interface, at which both ends prove that they know the key in PATH.node.

// maxPath is the length that a path may have.
const maxPath = windows.MAX_LONG_PATH

// addressPrefix is the text that the file PATH begins with.
const addressPrefix = "rocl directory at "

// bind listens at a TCP port, and writes its address to the file at path, which must be free.
func bind(path string) (net.Listener, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("directory: listening at %s: %w", path, err)
	}
	if err := writeFile(path, []byte(addressPrefix+ln.Addr().String()+"\n")); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// admit serves a client that proves that it knows the node's key.
func (l *Listener) admit(nc net.Conn) { l.challenge(nc) }

// freePath makes path free. It removes only the file of a server that does not serve any more. The
// node's lock must be held.
func freePath(path string) error {
	if _, err := readAddress(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("directory: serving %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	nc, err := dialLocal(ctx, path)
	switch {
	case err == nil:
		nc.Close()
		return fmt.Errorf("directory: serving %s: %w", path, errServed)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("directory: serving %s: %w", path, errServed)
	}
	if err := unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory: serving %s: removing the file that a dead server left: %w", path, err)
	}
	return nil
}

// readAddress returns the address of the server at path.
func readAddress(path string) (string, error) {
	b, err := readFile(path)
	if err != nil {
		return "", err
	}
	at, ok := strings.CutPrefix(strings.TrimSpace(string(b)), addressPrefix)
	if !ok {
		return "", fmt.Errorf("%w: no directory wrote it", ErrOccupied)
	}
	return at, nil
}

// dialLocal connects to the server at path, or returns ErrUntrusted if it does not know the key.
func dialLocal(ctx context.Context, path string) (net.Conn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	at, err := readAddress(path)
	// The file is shared except while a server replaces or removes it.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrOccupied) || errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoDirectory, path, err)
	}
	if err != nil {
		return nil, err
	}
	first := firstPath(path)
	if first == "" {
		first = path
	}
	nc, err := dialKey(ctx, path, at, first+nodeSuffix, clientTime)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || sockerr.Is(err, syscall.ECONNRESET) || sockerr.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", ErrNoDirectory, err) // the server has just ended, or another program has its port
	}
	if err != nil {
		return nil, err
	}
	nc.nodeFile = path + nodeSuffix
	return nc, nil
}

// dialError returns the error of a dial that failed. It matches ErrNoDirectory if no process serves
// at addr.
func dialError(addr string, err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // the text of err repeats the address
	}
	if errors.Is(err, windows.WSAECONNREFUSED) {
		return fmt.Errorf("%w: %s: %w", ErrNoDirectory, addr, err)
	}
	return fmt.Errorf("directory: connecting to %s: %w", addr, err)
}

// askToYield fails on this system, where the open lock cannot be handed over: a daemon does not
// replace a context that serves.
func askToYield(context.Context, string) (*os.File, error) { return nil, wire.ErrInUse }

// Process returns no process: this system does not tell which one is at the other end of nc.
func Process(net.Conn) (pid int, program string) { return 0, "" }
