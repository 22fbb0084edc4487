// SPDX-License-Identifier: Apache-2.0

// Package secretfile reads files with keys as operators, containers and service managers give them:
// by path, as a credential of systemd, and as an open descriptor.
//
//	PATH                          a file
//	$CREDENTIALS_DIRECTORY/NAME   a credential, as LoadCredential= of systemd gives it
//	fd:N, /dev/fd/N, /dev/stdin   the descriptor N, of a file, a pipe or a socket
package secretfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/internal/os/memfd"
)

// ErrInsecure is returned by CheckMode for a file to which other users have rights. It matches
// fs.ErrPermission, whose text would say that this process has no rights.
var ErrInsecure error = insecure{}

type insecure struct{}

func (insecure) Error() string        { return "insecure mode" }
func (insecure) Is(target error) bool { return target == fs.ErrPermission }

// credentials is the environment variable with the folder of this process's credentials. A name may
// begin with it, because nothing expands it in a file of settings.
const credentials = "CREDENTIALS_DIRECTORY"

// Read returns the content of a file, of which it reads at most one byte more than most. If
// isSecret is set, no other user may have rights to the file: see CheckMode.
func Read(name string, most int, isSecret bool) ([]byte, error) {
	f, err := open(name, most)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file (%v)", name, fi.Mode())
	}
	if isSecret {
		if err := checkMode(name, fi); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.NewSectionReader(f, 0, int64(most)+1))
}

// Stat describes the file of a name. most is as in Read.
func Stat(name string, most int) (fs.FileInfo, error) {
	f, err := open(name, most)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// open opens the file of a name. With nonblock, opening a pipe does not wait for its other end.
func open(name string, most int) (*os.File, error) {
	if fd, ok := descriptor(name); ok {
		if err := keep(fd, most); err != nil {
			return nil, fmt.Errorf("reading descriptor %d: %w", fd, err)
		}
		mine, err := memfd.Dup(fd)
		if err != nil {
			return nil, fmt.Errorf("reading descriptor %d: %w", fd, err)
		}
		return os.NewFile(uintptr(mine), name), nil
	}
	if in, ok := strings.CutPrefix(name, "$"+credentials+"/"); ok {
		dir := os.Getenv(credentials)
		if dir == "" {
			return nil, fmt.Errorf("%s: $%s is not set: no service manager has given credentials", name, credentials)
		}
		name = filepath.Join(dir, in)
	}
	return os.OpenFile(name, os.O_RDONLY|nonblock, 0)
}

// descriptor returns the number of the descriptor that a name stands for.
func descriptor(name string) (fd int, ok bool) {
	if name == "/dev/stdin" {
		return 0, true
	}
	for _, prefix := range []string{"fd:", "/dev/fd/", "/proc/self/fd/"} {
		if n, ok := strings.CutPrefix(name, prefix); ok {
			fd, err := strconv.ParseUint(n, 10, 31)
			return int(fd), err == nil
		}
	}
	return 0, false
}
