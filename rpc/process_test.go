// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// The test binary also serves as the other process: a server, or a caller.
func TestMain(m *testing.M) {
	var err error
	switch sock := os.Getenv("RPC_SOCKET"); os.Getenv("RPC_ROLE") {
	case "server":
		err = otherServer(sock)
	case "caller":
		err = otherCaller(sock)
	case "many":
		err = manyCallers(sock)
	case "large":
		err = largeCaller(sock)
	case "exposer":
		err = exposer(sock)
	default:
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// otherServer offers calls until its standard input ends.
func otherServer(sock string) error {
	ctx := context.Background()
	c, err := rocl.Open(ctx, rocl.WithSocket(sock), rocl.JoinOnly())
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"in": "another process"})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	if err := errors.Join(
		rpc.Register(s, "add", add),
		rpc.Register(s, "echo", echo),
		rpc.Register(s, "fill", func(ctx context.Context, h bulk.Handle) (struct{}, error) {
			ep, err := bulk.Open(ctx, c)
			for err == nil {
				_, err = ep.Push(ctx, h, 0, make([]byte, h.Len()))
			}
			return struct{}{}, err
		}),
		rpc.Register(s, "exit", func(context.Context, struct{}) (struct{}, error) { os.Exit(3); panic("not reached") }),
	); err != nil {
		return err
	}
	fmt.Println(s.ID())
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

// clientAt returns a client of a context of its own, on the node of a socket.
func clientAt(sock string) (*rocl.Context, *rpc.Client, error) {
	ctx := context.Background()
	c, err := rocl.Open(ctx, rocl.WithSocket(sock), rocl.JoinOnly())
	if err != nil {
		return nil, nil, err
	}
	cl, err := rpc.NewClient(ctx, c)
	return c, cl, err
}

// otherCaller calls "wait" of the server in the process that has started it.
func otherCaller(sock string) error {
	_, cl, err := clientAt(sock)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background()) // a call that can be cancelled
	defer end()
	_, err = rpc.CallAny[struct{}, struct{}](ctx, cl, rocl.Match{"type": "test"}, "wait", struct{}{})
	return err
}

// manyCallers calls "zeros" of that server in many goroutines, for ever.
func manyCallers(sock string) error {
	ctx := context.Background()
	c, cl, err := clientAt(sock)
	if err != nil {
		return err
	}
	f, err := c.Find(ctx, rocl.Match{"type": "test"})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range 256 {
		go func() {
			for {
				if _, err := rpc.Call[int64, []byte](ctx, cl, f.ID, "zeros", 20_000); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// largeCaller calls "echo" of that server in many goroutines, for ever, with more than the limit.
func largeCaller(sock string) error {
	ctx := context.Background()
	_, cl, err := clientAt(sock)
	if err != nil {
		return err
	}
	failed, p := make(chan error), random(3<<20)
	for range 8 {
		go func() {
			for {
				if _, err := rpc.CallAny[[]byte, []byte](ctx, cl, rocl.Match{"type": "test"}, "echo", p); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// exposer calls "drain" of that server with a handle of its memory.
func exposer(sock string) error {
	ctx := context.Background()
	c, cl, err := clientAt(sock)
	if err != nil {
		return err
	}
	ep, err := bulk.Open(ctx, c)
	if err != nil {
		return err
	}
	r, err := ep.Expose(bulk.ReadOnly, bulk.Bytes(make([]byte, 8<<20)))
	if err != nil {
		return err
	}
	_, err = rpc.CallAny[bulk.Handle, struct{}](ctx, cl, rocl.Match{"type": "test"}, "drain", r.Handle())
	return err
}

// other starts the other process, and returns the first line that it prints, if it is a server.
func other(t *testing.T, role, sock string) (cmd *exec.Cmd, line string) {
	t.Helper()
	cmd = subprocess.Self()
	cmd.Env = append(os.Environ(), "RPC_ROLE="+role, "RPC_SOCKET="+sock)
	p := try.Get(subprocess.Start(cmd))(t)
	if role != "server" {
		t.Cleanup(p.Kill)
		return cmd, ""
	}
	t.Cleanup(func() { _ = p.Stop() })
	line = try.Get(p.Line(t.Context()))(t)
	return cmd, line
}

// A call whose server's process ends, during the call or before, fails with rocl.ErrGone.
//
// Promise (Package rpc): A call ends with `rocl.ErrGone` when its server ends, and a handler's
// context when its caller ends. See also TestFirstOperationAfterGivingUp.
func TestServerEnds(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	c := try.Get(rpc.NewClient(deadline(t), open(t, sock)))(t)
	defer c.Close()
	_, line := other(t, "server", sock)
	id := try.Get(rocl.ParseGID(line))(t)
	try.Gives(rpc.Call[addends, int64](deadline(t), c, id, "add", addends{1, 2}))(t, 3)
	if _, err := rpc.Call[struct{}, struct{}](deadline(t), c, id, "exit", struct{}{}); !errors.Is(err, rocl.ErrGone) {
		t.Errorf("a handler that ends its process: %v", err)
	}
	if _, err := rpc.Call[addends, int64](deadline(t), c, id, "add", addends{1, 2}); !errors.Is(err, rocl.ErrGone) {
		t.Errorf("a call afterwards: %v", err)
	}
	_, line = other(t, "server", sock)
	id = try.Get(rocl.ParseGID(line))(t)
	if sum, err := rpc.Call[addends, int64](deadline(t), c, id, "add", addends{1, 2}); err != nil || sum != 3 {
		t.Errorf("a server that is started again: %d, %v", sum, err)
	}
}

// The context of a handler ends when the process of its caller does.
func TestCallerEnds(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	s := try.Get(rpc.NewServer(deadline(t), open(t, sock), rocl.Attrs{"type": "test"}))(t)
	defer s.Close(deadline(t))
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	try.OK(t, rpc.Register(s, "wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return struct{}{}, ctx.Err()
	}))
	cmd, _ := other(t, "caller", sock)
	<-began
	try.OK(t, cmd.Process.Kill())
	try.Fails(<-ended)(t, rocl.ErrGone)
}

// A caller is killed while a handler pulls its memory. The pull fails with rocl.ErrGone, and the
// server goes on.
//
// Promise (Package rpc): If either side is killed during a transfer of a call, transfer and call
// end with `rocl.ErrGone`. See also TestServerKilledInPush.
func TestCallerKilledInPull(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	home := open(t, sock)
	s := try.Get(rpc.NewServer(deadline(t), home, rocl.Attrs{"type": "test"}))(t)
	defer s.Close(deadline(t))
	ep := try.Get(bulk.Open(deadline(t), home))(t)
	defer ep.Close(deadline(t))
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	try.OK(t, rpc.Register(s, "drain", func(ctx context.Context, h bulk.Handle) (struct{}, error) {
		var err error
		for err == nil {
			if _, err = ep.Pull(ctx, h, 0, make([]byte, h.Len())); err == nil {
				select {
				case began <- struct{}{}:
				default:
				}
			}
		}
		ended <- err
		return struct{}{}, err
	}))
	for range 3 {
		cmd, _ := other(t, "exposer", sock)
		<-began
		try.OK(t, cmd.Process.Kill())
		try.Fails(<-ended)(t, rocl.ErrGone)
		select {
		case <-began:
		default:
		}
	}
	eventually.True(t, "no handler runs", func() bool { return s.Stats()[0].Running == 0 })
}

// A server is killed while it pushes to the memory of its caller. The call fails with rocl.ErrGone,
// and the memory is the caller's again.
func TestServerKilledInPush(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	home := open(t, sock)
	c := try.Get(rpc.NewClient(deadline(t), home))(t)
	defer c.Close()
	ep := try.Get(bulk.Open(deadline(t), home))(t)
	defer ep.Close(deadline(t))
	for range 3 {
		cmd, line := other(t, "server", sock)
		id := try.Get(rocl.ParseGID(line))(t)
		mem := bytes.Repeat([]byte{7}, 8<<20)
		r := try.Get(ep.Expose(bulk.WriteOnly, bulk.Bytes(mem)))(t)
		was := ep.Stats().WrittenBytes
		call := rpc.Go[bulk.Handle, struct{}](deadline(t), c, id, "fill", r.Handle())
		eventually.True(t, "a push has ended", func() bool { return ep.Stats().WrittenBytes-was > uint64(len(mem)) })
		try.OK(t, cmd.Process.Kill())
		try.Fails(call.Wait(deadline(t)))(t, rocl.ErrGone)
		try.Check(t, r.Revoke(deadline(t)))
		if !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Error("bytes that were pushed are not there")
		}
	}
}

// Close waits for the running handlers until its context ends. Then it ends their contexts.
//
// Promise (Package rpc): `Close` waits for running handlers, or until its context ends. Streams
// then end with `ErrClosed`. See also TestCloseGivesUp.
func TestClose(t *testing.T) {
	s, c := pair(t)
	began, release := make(chan struct{}), make(chan struct{})
	try.OK(t, rpc.Register(s, "wait", func(ctx context.Context, until string) (string, error) {
		began <- struct{}{}
		if until == "released" {
			<-release
			return until, nil
		}
		<-ctx.Done()
		return "", context.Cause(ctx)
	}))
	f := rpc.Go[string, string](deadline(t), c, s.ID(), "wait", "released")
	<-began
	done := make(chan error)
	go func() { done <- s.Close(deadline(t)) }()
	for { // Close has begun
		_, err := rpc.Call[string, string](deadline(t), c, s.ID(), "nothing", "")
		if errors.Is(err, rpc.ErrClosed) || errors.Is(err, rocl.ErrGone) {
			break
		}
	}
	close(release)
	try.Check(t, <-done)
	if v, err := f.Wait(deadline(t)); v != "released" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	s, c := pair(t)
	began := make(chan struct{})
	try.OK(t, rpc.Register(s, "wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		close(began)
		<-ctx.Done()
		return struct{}{}, context.Cause(ctx)
	}))
	f := rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{})
	<-began
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 calls run") {
		t.Error(err)
	}
	if _, err := f.Wait(deadline(t)); err == nil {
		t.Error("the call has a result")
	}
}

// A caller that waits for a result of a stream gets ErrClosed when Close does not wait for the
// handler.
func TestCloseEndsStream(t *testing.T) {
	s, c := pair(t)
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	try.OK(t, rpc.RegisterStream(s, "wait", func(context.Context, struct{}) iter.Seq2[int64, error] {
		return func(func(int64, error) bool) { close(began); <-release }
	}))
	ended := make(chan error, 1)
	go func() {
		for _, err := range rpc.Stream[struct{}, int64](deadline(t), c, s.ID(), "wait", struct{}{}) {
			ended <- err
		}
	}()
	<-began
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	try.Fails(s.Close(ctx))(t, context.Canceled)
	try.Fails(eventually.Value(t, "the end of the stream", ended))(t, rpc.ErrClosed)
}
