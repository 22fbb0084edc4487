// SPDX-License-Identifier: Apache-2.0

//go:build unix

package directory

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// If a server hands over anything but an index, the client asks over the socket.
func TestIndexNonsense(t *testing.T) {
	fd, mem, err := memfd.Create(context.Background(), "nonsense", 1<<20)
	if err != nil {
		t.Skip(err)
	}
	defer memfd.Close(fd)
	defer memfd.Unmap(mem)
	path := sock(t)
	serve(t, path)
	ln := try.Get(net.Listen("unix", path+"2"))(t)
	defer ln.Close()
	for name, answer := range map[string]func(uc *net.UnixConn, k *wire.Conn){
		"nothing":       func(*net.UnixConn, *wire.Conn) {},
		"no descriptor": func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgDone, 0); k.U64(1 << 20); _ = k.Send() },
		"another type":  func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgBeat, 0); k.U64(1 << 20); hand(uc, k, fd) },
		"no size":       func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgDone, 0); hand(uc, k, fd) },
		"another size":  func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgDone, 0); k.U64(1 << 21); hand(uc, k, fd) },
		"a huge size":   func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgDone, 0); k.U64(1 << 63); hand(uc, k, fd) },
		"no index":      func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgDone, 0); k.U64(1 << 20); hand(uc, k, fd) },
		"two":           func(uc *net.UnixConn, k *wire.Conn) { k.Begin(wire.MsgDone, 0); k.U64(1 << 20); hand(uc, k, fd, fd) },
	} {
		t.Run(name, func(t *testing.T) {
			c := joined(t, path)
			c.dial = DialSocket(path + "2")
			var served sync.WaitGroup
			defer served.Wait()
			served.Go(func() {
				nc, err := ln.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				defer nc.Close()
				k := wire.NewConn(nc)
				try.Gives(k.ReadGreeting())(t, wire.KindIndex)
				try.Works(k.ReadMessage())(t)
				answer(nc.(*net.UnixConn), k)
			})
			if r, err := c.fetchIndex(); err == nil {
				r.Close()
				t.Error("taken for an index")
			} else if errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// hand sends the message in k with descriptors.
func hand(uc *net.UnixConn, k *wire.Conn, fds ...int) {
	if _, _, err := uc.WriteMsgUnix(k.Finish(), unix.UnixRights(fds...), nil); err != nil {
		panic(err)
	}
}
