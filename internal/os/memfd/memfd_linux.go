// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package memfd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Seals that a file must have before another process maps it: of a file that all its holders write,
// and of one that only its maker writes.
const (
	fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	mine  = fixed | unix.F_SEAL_FUTURE_WRITE
)

// Create makes a file of size bytes and maps it for reading and writing. The descriptor is for
// passing to other processes. The caller closes it. If ctx ends before all memory is allocated,
// Create fails with its cause.
func Create(ctx context.Context, name string, size int) (fd int, mem []byte, err error) {
	return create(name, size, mine, func(fd int) error { return Commit(ctx, fd, 0, size) })
}

// CreateShared is Create of memory that every process with the descriptor may write. Its contents
// must not be trusted.
func CreateShared(name string, size int) (fd int, mem []byte, err error) {
	return create(name, size, fixed, func(fd int) error { return Commit(context.Background(), fd, 0, size) })
}

// Reserve is Create of bytes without memory. Before a page is written, Commit must allocate its
// memory.
func Reserve(name string, size int) (fd int, mem []byte, err error) {
	return create(name, size, mine, func(fd int) error { return unix.Ftruncate(fd, int64(size)) })
}

// Commit allocates memory for the bytes from from up to to. If ctx ends before, it fails with its
// cause after the next step. So the first 4 MiB are allocated even if ctx has ended, unless a
// signal interrupts that. Memory that was allocated until then stays allocated.
func Commit(ctx context.Context, fd, from, to int) error {
	return commit(ctx, from, to, func(from, n int) error { return unix.Fallocate(fd, 0, int64(from), int64(n)) })
}

// Commit allocates memory in steps. A signal interrupts a step, and the kernel drops what the step
// has allocated. So a step that was interrupted is tried again with fewer bytes: each step that
// ends is kept, and signals at any rate let the work go on.
const (
	mostStep       = 4 << 20
	leastStep      = 4 << 10
	mostInterrupts = 1000 // interruptions without a step that ends; then Commit fails
)

// commit is Commit by calls of allocate.
func commit(ctx context.Context, from, to int, allocate func(from, n int) error) error {
	step, interrupted := mostStep, 0
	for {
		n := min(step, to-from)
		switch err := allocate(from, n); {
		case err == nil:
			from, interrupted = from+n, 0
			step = min(2*step, mostStep)
			if from >= to {
				return nil
			}
		case err == unix.EINTR && interrupted < mostInterrupts:
			interrupted++
			step = max(step/2, leastStep)
		default:
			return os.NewSyscallError("fallocate", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func create(name string, size, seals int, fill func(fd int) error) (fd int, mem []byte, err error) {
	var most unix.Rlimit // a process that exceeds the limit gets SIGXFSZ, which ends it
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err == nil && uint64(size) > most.Cur {
		return -1, nil, fmt.Errorf("%w: files of this process may have %d bytes (ulimit -f), %d are wanted", unix.EFBIG, most.Cur, size)
	}
	// The file is not executable. Kernels before 6.3 do not know the flag.
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, nil, os.NewSyscallError("memfd_create", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	if err = fill(fd); err != nil {
		return fd, nil, err
	}
	if mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return fd, nil, os.NewSyscallError("mmap", err)
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL); err != nil {
		_ = unix.Munmap(mem)
		return fd, nil, fmt.Errorf("memfd: seal a file: %w", err)
	}
	return fd, mem, nil
}

// Open maps for reading a file that another process has made with Create. It refuses a file that
// can be truncated, has another size, or has pages without memory. A read of such a page would
// allocate memory for the reader, or end in SIGBUS if there is none.
func Open(fd, size int) ([]byte, error) { return open(fd, size, mine, true, unix.PROT_READ) }

// OpenReserved is Open for a file that another process has made with Reserve. Pages may be without
// memory.
func OpenReserved(fd, size int) ([]byte, error) { return open(fd, size, mine, false, unix.PROT_READ) }

// OpenShared maps for reading and writing a file that another process has made with CreateShared.
func OpenShared(fd, size int) ([]byte, error) {
	return open(fd, size, fixed, true, unix.PROT_READ|unix.PROT_WRITE)
}

func open(fd, size, seals int, full bool, prot int) ([]byte, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return nil, ErrUnsealed
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || size <= 0 || st.Size != int64(size) || full && st.Blocks*512 < st.Size {
		return nil, ErrUnsealed
	}
	mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return mem, nil
}

// Unmap removes the mapping that Create or Open has made.
func Unmap(mem []byte) { _ = unix.Munmap(mem) }
