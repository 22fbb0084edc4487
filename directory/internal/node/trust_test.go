// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

const nobody = 65534

// An impostor listens where a directory is expected, and records what it is sent.
type impostor struct {
	ln   net.Listener
	busy sync.WaitGroup
	mu   sync.Mutex
	got  bytes.Buffer
}

// impostorAt listens at path as another user.
func impostorAt(t *testing.T, path string) *impostor {
	var ln net.Listener
	asNobody(t, func() (err error) {
		if ln, err = net.Listen("unix", path); err != nil {
			return err
		}
		ln.(*net.UnixListener).SetUnlinkOnClose(false)
		return os.Chmod(path, 0o777)
	})
	return impostorOf(t, ln, func(nc net.Conn, got io.Writer) { _, _ = io.Copy(got, nc) })
}

// impostorOf passes the connections of ln to serve.
func impostorOf(t *testing.T, ln net.Listener, serve func(nc net.Conn, got io.Writer)) *impostor {
	i := &impostor{ln: ln}
	i.busy.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			i.busy.Go(func() {
				defer nc.Close()
				serve(nc, i)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		i.busy.Wait()
	})
	return i
}

func (i *impostor) Write(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.got.Write(b)
}

// all returns what the impostor was sent, after all its connections have ended.
func (i *impostor) all() string {
	i.ln.Close()
	i.busy.Wait()
	return i.got.String()
}

// sticky returns a folder that every user may write to, as /tmp.
func sticky(t *testing.T) string {
	dir := filepath.Dir(sock(t))
	try.OK(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

// A client sends nothing to a directory of another user. The other user may have made the default
// folder first, or have put a socket where the directory is expected.
//
// Promise (Directory): A client tells nothing to a directory that another user could have put in
// its place.
func TestOtherUsersDirectory(t *testing.T) {
	for what, prepare := range map[string]func(t *testing.T, tmp, folder string) (path string){
		"made the folder": func(t *testing.T, _, folder string) string {
			asNobody(t, func() error { return os.Mkdir(folder, 0o755) })
			return filepath.Join(folder, "directory.sock")
		},
		"made the folder a link": func(t *testing.T, tmp, folder string) string {
			asNobody(t, func() error {
				return errors.Join(os.Mkdir(filepath.Join(tmp, "own"), 0o755), os.Symlink(filepath.Join(tmp, "own"), folder))
			})
			return filepath.Join(folder, "directory.sock")
		},
		"may write to the folder": func(t *testing.T, _, folder string) string {
			try.OK(t, errors.Join(os.Mkdir(folder, 0o700), os.Chmod(folder, 0o777)))
			return filepath.Join(folder, "directory.sock")
		},
		"has the path that was named": func(t *testing.T, tmp, _ string) string {
			return filepath.Join(tmp, "d.sock")
		},
		"has it in a folder of another user": func(t *testing.T, tmp, _ string) string {
			asNobody(t, func() error {
				return errors.Join(os.Mkdir(filepath.Join(tmp, "own"), 0o700), os.Chmod(filepath.Join(tmp, "own"), 0o777))
			})
			return filepath.Join(tmp, "own", "d.sock")
		},
	} {
		t.Run(what, func(t *testing.T) {
			tmp := sticky(t)
			t.Setenv("TMPDIR", tmp)
			t.Setenv("XDG_RUNTIME_DIR", "")
			t.Setenv("ROCL_SOCKET", "")
			path := prepare(t, tmp, filepath.Join(tmp, fmt.Sprintf("rocl-%d", os.Getuid())))
			thief := impostorAt(t, path)
			ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
			defer cancel()
			_, err := Dial(ctx, path)
			if !errors.Is(err, ErrUntrusted) || errors.Is(err, ErrNoDirectory) {
				t.Errorf("dialled: %v", err)
			}
			names(t, err, filepath.Dir(path))
			_ = refused(t, path, true)
			try.Fails(askToYield(ctx, path))(t, ErrUntrusted, "asked for the lock")
			try.Equal(t, thief.all(), "", "the other user received")
		})
	}
}

// Root may use the directory of a user at a path where only that user can put a socket.
func TestRootUsesUsersDirectory(t *testing.T) {
	own := filepath.Join(sticky(t), "own")
	asNobody(t, func() error { return os.Mkdir(own, 0o700) })
	impostorAt(t, filepath.Join(own, "d.sock"))
	nc := try.Get(Dial(t.Context(), filepath.Join(own, "d.sock")))(t)
	nc.Close()
}

// Files of another user beside the socket are not used, because the user who wrote the node's
// identity knows its key.
func TestOtherUsersFiles(t *testing.T) {
	posix.Need(t, "modes of files")
	for _, suffix := range []string{lockSuffix, nodeSuffix} {
		t.Run(suffix, func(t *testing.T) {
			path := filepath.Join(sticky(t), "d.sock")
			id := NewIdentity()
			asNobody(t, func() error {
				return writeIdentity(path+suffix, id)
			})
			names(t, refused(t, path, false), path+suffix)
			try.Fails(Dial(t.Context(), "tcp://127.0.0.1:1?node="+path+suffix))(t, ErrUntrusted, "the key of another user's file is used")
		})
	}
	path := filepath.Join(sticky(t), "d.sock")
	try.OK(t, serve(t, path, false).close())
	try.OK(t, os.Chmod(path+nodeSuffix, 0o644))
	err := refused(t, path, false)
	if names(t, err, path+nodeSuffix); !errors.Is(err, ErrUntrusted) {
		t.Errorf("a key that all can read is used: %v", err)
	}
}

// A client over TCP sends nothing to a server that does not prove that it knows the node's key,
// whatever that server does. A server that is silent keeps its client waiting for a limited time.
func TestFalseTCPServers(t *testing.T) {
	path := sock(t)
	s := serve(t, path, false)
	proper := try.Get(s.OpenTCP("tcp://127.0.0.1:0"))(t)
	properAt := strings.TrimPrefix(proper, tcpScheme)
	nonce := append(append([]byte{}, tcpHello[:]...), make([]byte, tcpNonce)...)
	reads := func(nc net.Conn, n int) []byte {
		b := make([]byte, n)
		_, _ = io.ReadFull(nc, b)
		return b
	}
	for what, serve := range map[string]func(nc net.Conn){
		"zeros":           func(nc net.Conn) { _, _ = nc.Write(make([]byte, 4096)) },
		"an old server":   func(nc net.Conn) { _, _ = nc.Write(nonce[len(tcpHello):]) },
		"a nonce alone":   func(nc net.Conn) { _, _ = nc.Write(nonce) },
		"a random proof":  func(nc net.Conn) { _, _ = nc.Write(append(append([]byte{}, nonce...), nonce[:32]...)) },
		"its own proof":   func(nc net.Conn) { _, _ = nc.Write(nonce); _, _ = nc.Write(reads(nc, tcpNonce+32)[tcpNonce:]) },
		"all it is told":  func(nc net.Conn) { _, _ = nc.Write(nonce); b := reads(nc, tcpNonce+32); _, _ = nc.Write(b) },
		"the end at once": func(nc net.Conn) {},
		"the proof of the proper server, relayed": func(nc net.Conn) {
			far, err := net.Dial("tcp", properAt)
			if err != nil {
				t.Error(err)
				return
			}
			defer far.Close()
			_, _ = nc.Write(reads(far, len(tcpHello)+tcpNonce))
			_, _ = far.Write(reads(nc, tcpNonce+32))
			_, _ = io.Copy(nc, far)
		},
		"a client's proof in a server's place": func(nc net.Conn) {
			// The impostor passes the proper server's nonce to the client, and the client's answer
			// to the proper server as if it came from another client.
			far, err := net.Dial("tcp", properAt)
			if err != nil {
				t.Error(err)
				return
			}
			defer far.Close()
			_, _ = nc.Write(reads(far, len(tcpHello)+tcpNonce))
			b := reads(nc, tcpNonce+32)
			_, _ = far.Write(b)
			_, _ = nc.Write(b[tcpNonce:])
		},
	} {
		t.Run(what, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			try.OK(t, err)
			further := make(chan int64, 10) // bytes that the server received after all that it read itself
			i := impostorOf(t, ln, func(nc net.Conn, got io.Writer) {
				serve(nc)
				_ = nc.(*net.TCPConn).CloseWrite()
				n, _ := io.Copy(io.Discard, nc)
				further <- n
			})
			ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
			defer cancel()
			if _, err = Dial(ctx, tcpScheme+ln.Addr().String()+"?node="+path+nodeSuffix); err == nil || errors.Is(err, ErrNoDirectory) {
				t.Errorf("connected: %v", err)
			}
			i.all()
			if n := <-further; n > tcpNonce+32 {
				t.Errorf("it was sent %d bytes more than the proof", n-tcpNonce-32)
			}
		})
	}
	silent := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	impostorOf(t, silent, func(nc net.Conn, got io.Writer) { _, _ = io.Copy(got, nc) })
	if _, err := dialTCP(t.Context(), tcpScheme+silent.Addr().String()+"?node="+path+nodeSuffix, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent server: %v", err)
	}
	try.Equal(t, s.served.Load(), 0, "connections that the proper server has served")
}

// A process of another user is told that it has no permission, and whose the directory is.
func TestRefusedUser(t *testing.T) {
	path := sock(t)
	serve(t, path, false)
	for _, file := range []string{filepath.Dir(path), path} {
		try.OK(t, os.Chmod(file, 0o777))
	}
	asNobody(t, func() error {
		nc, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		defer nc.Close()
		m, err := wire.NewConn(nc).ReadMessage()
		if err != nil || m.Type != wire.MsgError {
			return fmt.Errorf("message %v: %w", m.Type, err)
		}
		if err := wire.ParseError(m.Body); !errors.Is(err, wire.ErrDenied) || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "permission denied: process") {
			t.Errorf("another user reads %v", err)
		}
		return nil
	})
}

// A default path that is not absolute, or whose folder is missing, is an error that names the
// variable. Nothing is made.
//
// Promise (Commands): A default path of the directory that is not absolute, or has no folder, is an
// error.
func TestDefaultPathIsThere(t *testing.T) {
	t.Chdir(filepath.Dir(sock(t)))
	t.Setenv("ROCL_SOCKET", "")
	missing := sock(t)
	for _, c := range []struct{ xdg, tmp, says string }{
		{"run", os.TempDir(), `XDG_RUNTIME_DIR="run" is not an absolute path`},
		{"", "run", tempVariable + `="run" is not an absolute path`},
		{missing, os.TempDir(), missing + ", which XDG_RUNTIME_DIR names"},
		{"", missing, missing + ", which " + tempVariable + " names"},
	} {
		t.Setenv("XDG_RUNTIME_DIR", c.xdg)
		t.Setenv(tempVariable, c.tmp)
		if c.tmp == "run" && filepath.IsAbs(os.TempDir()) {
			continue // Windows has made it absolute
		}
		if err := refused(t, DefaultSocket(), false); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("serving: %v, want %q", err, c.says)
		}
		if _, err := Dial(t.Context(), DefaultSocket()); err == nil || !filepath.IsAbs(c.xdg+c.tmp) && !strings.Contains(err.Error(), c.says) {
			t.Errorf("connecting: %v, want %q", err, c.says)
		}
		for _, made := range []string{"run", missing} {
			try.Rejects(os.Lstat(made))(t, "%s was made", made)
		}
	}
}
