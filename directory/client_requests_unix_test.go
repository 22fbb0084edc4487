// SPDX-License-Identifier: Apache-2.0

//go:build unix

package directory

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// If a server accepts no connection, Join returns when the caller's context ends, whether or not
// the kernel's queue of connections has room.
func TestNobodyAccepts(t *testing.T) {
	path := sock(t)
	fd := try.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(fd)
	try.OK(t, errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)))
	enough := errors.New("enough")
	for range 2 { // the first time there is room
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(enough) })
		try.Fails(Join(ctx, DialSocket(path)))(t, enough)
		for { // fill the queue
			nc, err := net.Dial("unix", path)
			if err != nil {
				break
			}
			defer nc.Close()
		}
	}
}
