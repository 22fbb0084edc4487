// SPDX-License-Identifier: Apache-2.0

//go:build unix

package secretfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// nonblock makes the opening of a pipe not wait for the other end.
const nonblock = syscall.O_NONBLOCK

// keep replaces the descriptor of a pipe or a socket by one of a file without a name that has what
// came, up to one byte more than most. So the descriptor can be read again. It waits until the
// other end is closed.
func keep(fd, most int) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if t := st.Mode & syscall.S_IFMT; t != syscall.S_IFIFO && t != syscall.S_IFSOCK {
		return nil
	}
	b := make([]byte, 0, most+1)
	for len(b) < cap(b) {
		n, err := syscall.Read(fd, b[len(b):cap(b)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	if len(b) == 0 {
		return io.ErrUnexpectedEOF
	}
	return replace(fd, b)
}

// checkMode is CheckMode for the file of a name. A file that has no name any more is safe, and so
// is a credential: systemd gives the user access by a list (ACL), whose mask is in the mode where
// the group's rights are.
func checkMode(name string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if ok && st.Nlink == 0 {
		return nil
	}
	dir := os.Getenv(credentials)
	isCredential := dir != "" && (strings.HasPrefix(name, "$"+credentials+"/") || filepath.Dir(name) == filepath.Clean(dir))
	if isCredential && fi.Mode().Perm()&0o027 == 0 {
		return nil
	}
	if err := CheckMode(fi); err != nil {
		return fmt.Errorf("%s has an %w", name, err)
	}
	return nil
}

// CheckMode returns ErrInsecure if other users have rights to a file. A group may have rights if it
// is a group of this process, and if /etc/passwd and /etc/group name no other user of that group.
// So it accepts files of root that a container shares with the group of its process.
func CheckMode(fi fs.FileInfo) error {
	mode := fi.Mode().Perm()
	if mode&0o077 == 0 {
		return nil
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || mode&0o007 != 0 {
		return fmt.Errorf("%w (%v): other users have rights to it: chmod 600, or 440 for a file of root and the group of this process", ErrInsecure, mode)
	}
	gid, own := int(st.Gid), os.Getegid()
	groups, _ := os.Getgroups()
	if gid != own && !slices.Contains(groups, gid) {
		return fmt.Errorf("%w (%v): group %d, which is no group of this process, has rights to it: chmod 600, or chgrp %d", ErrInsecure, mode, gid, own)
	}
	passwd, _ := os.ReadFile("/etc/passwd")
	group, _ := os.ReadFile("/etc/group")
	if other := otherIn(string(passwd), string(group), os.Geteuid(), gid); other != "" {
		return fmt.Errorf("%w (%v): group %d has rights to it, in which user %s is too: chmod 600", ErrInsecure, mode, gid, other)
	}
	return nil
}

// otherIn returns the name of a user in a group who is neither root nor the user uid, or "" if
// there is none. passwd and group are the contents of the files of these names.
func otherIn(passwd, group string, uid, gid int) string {
	isOurs := map[string]bool{"root": true}
	for line := range strings.Lines(passwd) { // name:password:uid:gid:…
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		switch {
		case f[2] == "0" || f[2] == strconv.Itoa(uid):
			isOurs[f[0]] = true
		case f[3] == strconv.Itoa(gid):
			return f[0]
		}
	}
	for line := range strings.Lines(group) { // name:password:gid:user,…
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || f[2] != strconv.Itoa(gid) {
			continue
		}
		for name := range strings.SplitSeq(f[3], ",") {
			if name != "" && !isOurs[name] {
				return name
			}
		}
	}
	return ""
}
