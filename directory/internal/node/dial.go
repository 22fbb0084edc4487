// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
)

// Dial connects to the directory at the path of a Unix socket, or at tcp://HOST:PORT?node=FILE. It
// fails with ErrNoDirectory if no process serves there, and with ErrUntrusted if a process serves
// that is not to be trusted.
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	if IsTCP(addr) {
		return dialTCP(ctx, addr, clientTime)
	}
	return dialLocal(ctx, filePath(addr))
}

// checkPath returns an error if no server at path is to be trusted, whichever it is.
func checkPath(path string) error {
	if err := CheckSocket(path); err != nil || filepath.Clean(path) != defaultPath() {
		return err
	}
	if err := checkDefault(); err != nil {
		return err
	}
	if err := checkPrivate(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
