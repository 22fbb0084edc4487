// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// At a Unix socket the page needs no token, and the mode of the socket keeps other users out.
func TestUnixPage(t *testing.T) {
	dir := short(t)
	socket, at := filepath.Join(dir, "sock"), filepath.Join(dir, "page")
	_, stop := started(t, "--socket", socket, "--http", "unix:"+at)
	c := try.Get(rocl.Open(t.Context(), rocl.JoinOnly(), rocl.WithSocket(socket)))(t)
	defer c.Close()
	try.Get(c.Register(t.Context(), rocl.Attrs{"type": "gpu"}))(t)
	fi := try.Get(os.Stat(at))(t)
	try.Equal(t, fi.Mode(), os.ModeSocket|0o600, "mode")

	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", at)
	}}}
	defer client.CloseIdleConnections()
	get := func(path string) *http.Response {
		t.Helper()
		r := try.Get(http.NewRequestWithContext(t.Context(), "GET", "http://localhost"+path, nil))(t)
		r.Header.Set("Accept", "text/html")
		resp := try.Get(client.Do(r))(t)
		t.Cleanup(func() { resp.Body.Close() })
		try.Equal(t, resp.StatusCode, http.StatusOK, path)
		return resp
	}
	if text := string(try.Get(io.ReadAll(get("/").Body))(t)); !strings.Contains(text, `class="authorized"`) {
		t.Errorf("the page is locked: %s", text)
	}
	get("/debug/pprof/cmdline")
	stream := get("/events")
	updates := bufio.NewScanner(stream.Body)
	updates.Buffer(nil, 1<<20)
	for updates.Scan() && !strings.Contains(updates.Text(), "type=gpu") {
	}
	try.OK(t, updates.Err(), "the stream has no attributes")
	stream.Body.Close()

	if os.Getuid() != 0 {
		t.Log("only root can try as another user")
	} else if err := dialAs(65534, dir, at); !errors.Is(err, syscall.EACCES) {
		t.Errorf("another user connects: %v", err)
	}
	c.Close()
	try.Equal(t, stop(), 0, "exit code")
}

// dialAs connects to a Unix socket with the rights of another user, who may enter the folder.
func dialAs(user int, dir, at string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: its rights are its own
		result <- func() error {
			if err := syscall.Setfsuid(user); err != nil {
				return err
			}
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer syscall.Close(fd)
			return syscall.Connect(fd, &syscall.SockaddrUnix{Name: at})
		}()
	}()
	return <-result
}
