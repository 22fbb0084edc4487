// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/group"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// TestMain runs the tests, or a member if a test has started this process for that.
func TestMain(m *testing.M) {
	if name := os.Getenv("GROUP_TEST_MEMBER"); name != "" {
		if err := memberMain(name); err != nil {
			fmt.Println(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// memberMain is a member whose function ends with its context.
func memberMain(name string) error {
	ctx := context.Background()
	c, err := rocl.Open(ctx, rocl.WithSocket(os.Getenv("GROUP_TEST_SOCKET")), rocl.JoinOnly())
	if err != nil {
		return err
	}
	defer c.Close()
	g, err := group.Join(ctx, c, "job", rocl.Attrs{"name": name})
	if err != nil {
		return err
	}
	g.Go(func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println("ready")
	return g.Wait()
}

// Promise (Package group): When the process of a member is killed, the others end with one error
// that names it.
func TestProcessKilled(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(socket)))(t)
	t.Cleanup(func() { try.Check(t, c.Close()) })
	g := try.Get(group.Join(t.Context(), c, "job", rocl.Attrs{"name": "parent"}))(t)
	var ps []*subprocess.Process
	for i := range 3 {
		cmd := subprocess.Self()
		cmd.Env = append(os.Environ(), "GROUP_TEST_SOCKET="+socket, fmt.Sprintf("GROUP_TEST_MEMBER=child%d", i))
		p := try.Get(subprocess.Start(cmd))(t)
		t.Cleanup(p.Kill)
		try.OK(t, p.Expect(eventually.Context(t), "ready"))
		ps = append(ps, p)
	}
	g.Go(func(ctx context.Context) error {
		ps[1].Kill()
		<-ctx.Done()
		return context.Cause(ctx)
	})
	err := g.Wait()
	var cause *group.Error
	if !errors.As(err, &cause) || cause.Member != "name=child1" || !errors.Is(err, group.ErrEnded) {
		t.Fatal(err)
	}
	for _, i := range []int{0, 2} {
		line := try.Get(ps[i].Line(eventually.Context(t)))(t) // the error, which may have another cause of the end
		try.Equal(t, strings.HasPrefix(line, "group job: member name=child1 ("), true, line)
	}
}
