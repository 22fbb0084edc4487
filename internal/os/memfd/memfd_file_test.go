// SPDX-License-Identifier: Apache-2.0

//go:build (linux && portable) || darwin || freebsd || netbsd || openbsd

package memfd

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A process with the descriptor of a file sees what its maker writes, and can neither write nor
// truncate the file by that descriptor. No name is left.
func TestReadOnlyForOthers(t *testing.T) {
	const size = 3*4096 + 100
	t.Setenv("TMPDIR", t.TempDir())
	fd, mem, err := Create(t.Context(), "test", size)
	try.OK(t, err)
	defer Close(fd)
	defer Unmap(mem)
	theirs := try.Get(Open(fd, size))(t)
	defer Unmap(theirs)
	mem[size-1] = 7
	try.Equal(t, theirs[size-1], 7, "what was written is not seen")
	try.Equal(t, theirs[0], 0, "what was not written")
	cannotWrite(t, fd, theirs)
	if unix.Ftruncate(fd, 0) == nil {
		t.Error("the file was cut")
	}
	try.Equal(t, len(try.Get(os.ReadDir(os.TempDir()))(t)), 0, "files left")
}

// Memory stays when its maker has unmapped it, and a second descriptor is as good as the first.
func TestOutlivesMaker(t *testing.T) {
	fd, mem, err := Create(t.Context(), "test", 4096)
	try.OK(t, err)
	mem[5] = 5
	second := try.Get(Dup(fd))(t)
	defer Close(second)
	Unmap(mem)
	Close(fd)
	theirs := try.Get(Open(second, 4096))(t)
	defer Unmap(theirs)
	try.Equal(t, theirs[5], 5, "what was written")
}

// Open refuses any other file.
func TestOpenRefuses(t *testing.T) {
	plain := try.Get(os.CreateTemp(t.TempDir(), "plain"))(t)
	defer plain.Close()
	try.OK(t, plain.Truncate(4096))
	var p [2]int
	try.OK(t, unix.Pipe(p[:]))
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	good, mem, err := Create(t.Context(), "good", 4096)
	try.OK(t, err)
	defer Close(good)
	defer Unmap(mem)
	for _, c := range []struct{ fd, size int }{{int(plain.Fd()), 4096}, {p[0], 4096}, {-1, 4096}, {good, 8192}, {good, 0}, {good, -1}} {
		if m, err := Open(c.fd, c.size); !errors.Is(err, ErrUnsealed) {
			t.Errorf("descriptor %d of %d bytes: %v, %v", c.fd, c.size, len(m), err)
		}
	}
}

// A file that cannot be made leaves nothing.
func TestCreateFails(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	try.Fails(Create(ctx, "test", 2*step))(t, ended, "a context that has ended")
	try.Rejects(Create(t.Context(), "none", -1))(t, "less than nothing was made")
	try.Rejects(Create(t.Context(), "none", 0))(t, "nothing was made")
	try.Equal(t, len(try.Get(os.ReadDir(os.TempDir()))(t)), 0, "files left")
}
