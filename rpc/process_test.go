// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// The test binary also serves as the other process, which has one of these roles. Its client and
// its context are on the node of the test.
var roles = map[string]func(ctx context.Context, c *rocl.Context, cl *rpc.Client) error{
	"server": otherServer,
	"caller": func(ctx context.Context, _ *rocl.Context, cl *rpc.Client) error {
		ctx, end := context.WithCancel(ctx) // a call that can be cancelled
		defer end()
		_, err := rpc.CallAny[struct{}, struct{}](ctx, cl, rocl.Match{"type": "test"}, "wait", struct{}{})
		return err
	},
	"many": func(ctx context.Context, c *rocl.Context, cl *rpc.Client) error {
		f, err := c.Find(ctx, rocl.Match{"type": "test"})
		return errors.Join(err, forever(256, func() error {
			_, err := rpc.Call[int64, []byte](ctx, cl, f.ID, "zeros", 20_000)
			return err
		}))
	},
	"large": func(ctx context.Context, _ *rocl.Context, cl *rpc.Client) error {
		p := random(3 << 20) // more than the limit
		return forever(8, func() error {
			_, err := rpc.CallAny[[]byte, []byte](ctx, cl, rocl.Match{"type": "test"}, "echo", p)
			return err
		})
	},
}

func TestMain(m *testing.M) {
	role := roles[os.Getenv("RPC_ROLE")]
	if role == nil {
		goleak.VerifyTestMain(m)
		return
	}
	ctx := context.Background()
	c, err := rocl.Open(ctx, rocl.WithSocket(os.Getenv("RPC_SOCKET")), rocl.JoinOnly())
	if err == nil {
		var cl *rpc.Client
		if cl, err = rpc.NewClient(ctx, c); err == nil {
			err = role(ctx, c, cl)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// forever calls f in n goroutines, again and again, until it fails.
func forever(n int, f func() error) error {
	failed := make(chan error)
	for range n {
		go func() {
			for {
				if err := f(); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// otherServer offers calls until its standard input ends.
func otherServer(ctx context.Context, c *rocl.Context, _ *rpc.Client) error {
	defer c.Close()
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"in": "another process"})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	if err := errors.Join(
		rpc.Register(s, "add", add),
		rpc.Register(s, "echo", echo),
		rpc.Register(s, "exit", func(context.Context, struct{}) (struct{}, error) { os.Exit(3); panic("not reached") }),
	); err != nil {
		return err
	}
	fmt.Println(s.ID())
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

// other starts the other process, and returns the identifier of its server, if it has one.
func other(t *testing.T, role, sock string) (cmd *exec.Cmd, id rocl.GID) {
	t.Helper()
	cmd = subprocess.Self()
	cmd.Env = append(os.Environ(), "RPC_ROLE="+role, "RPC_SOCKET="+sock)
	p := try.Get(subprocess.Start(cmd))(t)
	if role != "server" {
		t.Cleanup(p.Kill)
		return cmd, id
	}
	t.Cleanup(func() { _ = p.Stop() })
	return cmd, try.Get(rocl.ParseGID(try.Get(p.Line(t.Context()))(t)))(t)
}

// A call whose server's process ends, during the call or before, fails with rocl.ErrGone.
//
// Promise (Package rpc): A call ends with `rocl.ErrGone` when its server ends, and a handler's
// context when its caller ends. See also TestFirstOperationAfterGivingUp.
func TestServerEnds(t *testing.T) {
	sock := freeaddr.Socket(t)
	c := client(t, open(t, sock))
	_, id := other(t, "server", sock)
	try.Gives(rpc.Call[addends, int64](deadline(t), c, id, "add", addends{1, 2}))(t, 3)
	try.Fails(rpc.Call[struct{}, struct{}](deadline(t), c, id, "exit", struct{}{}))(t, rocl.ErrGone) // a handler that ends its process
	try.Fails(rpc.Call[addends, int64](deadline(t), c, id, "add", addends{1, 2}))(t, rocl.ErrGone)   // a call afterwards
	_, id = other(t, "server", sock)
	try.Gives(rpc.Call[addends, int64](deadline(t), c, id, "add", addends{1, 2}))(t, 3) // a server that is started again
}

// The context of a handler ends when the process of its caller does.
func TestCallerEnds(t *testing.T) {
	sock := freeaddr.Socket(t)
	s := serve(t, open(t, sock))
	began, ended := waits(t, s)
	cmd, _ := other(t, "caller", sock)
	<-began
	try.OK(t, cmd.Process.Kill())
	try.Fails(<-ended)(t, rocl.ErrGone)
}

// Close waits for the running handlers.
//
// Promise (Package rpc): `Close` waits for running handlers, or until its context ends. Streams
// then end with `ErrClosed`. See also TestCloseGivesUp.
func TestClose(t *testing.T) {
	s, c := pair(t)
	began, release := make(chan struct{}), make(chan struct{})
	try.OK(t, rpc.Register(s, "wait", func(context.Context, struct{}) (string, error) {
		close(began)
		<-release
		return "released", nil
	}))
	f := rpc.Go[struct{}, string](deadline(t), c, s.ID(), "wait", struct{}{})
	<-began
	closed := make(chan error)
	go func() { closed <- s.Close(deadline(t)) }()
	eventually.True(t, "Close has begun", func() bool {
		_, err := rpc.Call[string, string](deadline(t), c, s.ID(), "nothing", "")
		return errors.Is(err, rpc.ErrClosed) || errors.Is(err, rocl.ErrGone)
	})
	close(release)
	try.Check(t, <-closed)
	try.Gives(f.Wait(deadline(t)))(t, "released")
}

// When the context of Close ends, Close ends the contexts of the handlers, and a caller that waits
// for a result of a stream gets ErrClosed.
func TestCloseGivesUp(t *testing.T) {
	s, c := pair(t)
	began, _ := waits(t, s)
	f := rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{})
	<-began
	streams, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	try.OK(t, rpc.RegisterStream(s, "stream", func(context.Context, struct{}) iter.Seq2[int64, error] {
		return func(func(int64, error) bool) { close(streams); <-release }
	}))
	ended := make(chan error, 1)
	go func() {
		_, err := all(rpc.Stream[struct{}, int64](deadline(t), c, s.ID(), "stream", struct{}{}))
		ended <- err
	}()
	<-streams
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "2 calls run") {
		t.Error(err)
	}
	try.Rejects(f.Wait(deadline(t)))(t, "the call has a result")
	try.Fails(eventually.Value(t, "the end of the stream", ended))(t, rpc.ErrClosed)
}
