// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// Nothing is missing for certain while a node cannot be asked: each look-up that finds nothing has
// the reason of a definite "no" and rocl.ErrPartial. What the other nodes have is found.
//
// Promise (Package tpvm): A look-up denies nothing for certain while a node does not answer: the
// error matches `rocl.ErrPartial`. See also TestPartial.
func TestMissingIsUncertain(t *testing.T) {
	t.Parallel() // the member waits 3 s for the one that it is to join
	ctx := deadline(t)
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithCluster("test"), // no member has port 1
		rocl.WithMember(cluster.Member{Bind: "127.0.0.1:0", Join: []string{"127.0.0.1:1"}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	task := enrol(t, c)
	// Join asks for a unique registration, which fails while a node cannot be asked.
	try.Get(c.Register(ctx, rocl.Attrs{"type": "group", "vm": "test", "group": "here", "inst": "0", "tid": task.ID().String()}))(t)
	try.Gives(task.GroupSize(ctx, "here"))(t, 1)
	try.Gives(task.GroupTID(ctx, "here", 0))(t, task.ID())
	gone := try.Get(c.Register(ctx, nil))(t)
	try.OK(t, gone.Close())
	spawn := func(name string, opts ...tpvm.SpawnOption) error {
		_, err := task.Spawn(ctx, name, 1, opts...)
		return err
	}
	recv := func(flags tpvm.InfoFlags) error {
		_, err := task.RecvInfo(ctx, "none", 0, flags)
		return err
	}
	for what, look := range map[string]struct {
		err  func() error
		also error
	}{
		"receive":               {func() error { return recv(0) }, tpvm.ErrNoEntry},
		"receive the first":     {func() error { return recv(tpvm.FirstAvail | tpvm.ReadAndDelete) }, tpvm.ErrNoEntry},
		"delete":                {func() error { return task.DelInfo(ctx, "none", 0) }, tpvm.ErrNoEntry},
		"list entries":          {func() error { _, err := task.Infos(ctx, "none"); return err }, nil},
		"members of no group":   {func() error { _, err := task.GroupMembers(ctx, "none"); return err }, nil},
		"size of no group":      {func() error { _, err := task.GroupSize(ctx, "none"); return err }, nil},
		"member of no group":    {func() error { _, err := task.GroupTID(ctx, "none", 0); return err }, tpvm.ErrNoGroup},
		"number in no group":    {func() error { _, err := task.GroupInstance(ctx, "none", task.ID()); return err }, tpvm.ErrNoGroup},
		"no such member":        {func() error { _, err := task.GroupTID(ctx, "here", 1); return err }, tpvm.ErrNoInstance},
		"number of no member":   {func() error { _, err := task.GroupInstance(ctx, "here", c.ID()); return err }, tpvm.ErrNotInGroup},
		"broadcast to no group": {func() error { return task.GroupBcast(ctx, "none", 1, nil) }, tpvm.ErrNoGroup},
		"leave no group":        {func() error { return task.LeaveGroup(ctx, "none") }, tpvm.ErrNoGroup},
		"spawn no function":     {func() error { return spawn("none", tpvm.Threads()) }, tpvm.ErrNoProgram},
		"spawn no program":      {func() error { return spawn("none") }, tpvm.ErrNoProgram},
		"spawn on no host":      {func() error { return spawn("none", tpvm.OnHost("none")) }, tpvm.ErrNoHost},
		"spawn where none is":   {func() error { return spawn("none", tpvm.Where(rocl.Match{"none": "none"})) }, tpvm.ErrNoHost},
		"delete no host":        {func() error { return task.DelHosts(ctx, "none") }, tpvm.ErrNoPod},
		"wait for no program":   {func() error { _, err := task.Wait(ctx, gone.ID()); return err }, tpvm.ErrNoStatus},
	} {
		if err := look.err(); !errors.Is(err, rocl.ErrPartial) || look.also != nil && !errors.Is(err, look.also) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
