// SPDX-License-Identifier: Apache-2.0

//go:build (linux && portable) || darwin || freebsd || netbsd || openbsd

package memfd

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Create makes a file of size bytes in the folder for temporary files, maps it for reading and
// writing, and removes its name. The descriptor is for passing to other processes, and only for
// reading. The caller closes it. If ctx ends before all memory is allocated, Create fails with its
// cause.
func Create(ctx context.Context, name string, size int) (fd int, mem []byte, err error) {
	var most unix.Rlimit // a process that exceeds the limit gets SIGXFSZ, which ends it
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err == nil && size > 0 && uint64(size) > uint64(most.Cur) {
		return -1, nil, fmt.Errorf("%w: files of this process may have %d bytes (ulimit -f), %d are wanted", unix.EFBIG, most.Cur, size)
	}
	f, err := os.CreateTemp("", name+"-")
	if err != nil {
		return -1, nil, err
	}
	defer f.Close()
	fd, err = unix.Open(f.Name(), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	_ = os.Remove(f.Name())
	if err != nil {
		return -1, nil, os.NewSyscallError("open", err)
	}
	if err = fill(ctx, f, size); err == nil {
		mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|mapFlags)
		err = os.NewSyscallError("mmap", err)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, mem, nil
}

// step is how many bytes are allocated between two looks at the context.
const step = 4 << 20

var zeros [64 << 10]byte

// fill writes size zeros to f. So the file system has given the memory before it is mapped, and no
// access fails for lack of it.
func fill(ctx context.Context, f *os.File, size int) error {
	for at := 0; at < size; {
		if at > 0 && at%step == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.WriteAt(zeros[:min(size-at, len(zeros))], int64(at))
		if err != nil {
			return err
		}
		at += n
	}
	return nil
}

// Open maps for reading a file that another process has made with Create. It refuses a descriptor
// for writing, and a file of another size.
func Open(fd, size int) ([]byte, error) {
	var st unix.Stat_t
	how, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || how&unix.O_ACCMODE != unix.O_RDONLY || unix.Fstat(fd, &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFREG || size <= 0 || st.Size != int64(size) {
		return nil, ErrUnsealed
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED|mapFlags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return mem, nil
}

// Unmap removes the mapping that Create or Open has made.
func Unmap(mem []byte) { _ = unix.Munmap(mem) }
