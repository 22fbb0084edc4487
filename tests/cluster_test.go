// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
)

// freePort returns an address of the loopback interface whose port is not in use at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	addr, err := freeaddr.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Three daemons, each with its own node: a resource of one node is found at the others, messages go
// there and back, and a resource that no node has is denied. A killed daemon takes its node's
// resources with it.
func TestCluster(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var sockets, binds []string
	var daemons []*child
	for i := range 3 {
		sockets, binds = append(sockets, socket(t)), append(binds, freePort(t))
		args := []string{"--socket", sockets[i], "--bind", binds[i], "--cluster", "test", "--key-file", key}
		if i > 0 {
			args = append(args, "--join", binds[0])
		}
		daemons = append(daemons, start(t, "serving", dirserver, args...))
	}
	ctx := eventually.Context(t)
	var cs []*lib.Context
	var rs []*lib.Resource
	for i := range 3 {
		c := open(t, sockets[i], lib.JoinOnly(), lib.WithGiveUp(3*time.Second))
		r, err := c.Register(ctx, lib.Attrs{"type": "peer", "at": fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		cs, rs = append(cs, c), append(rs, r)
	}
	for i, c := range cs {
		for j := range cs {
			var f lib.Found
			eventually.True(t, "the members see each other", func() (ok bool) {
				var err error
				f, err = c.Find(ctx, lib.Match{"type": "peer", "at": fmt.Sprint(j)})
				return err == nil
			})
			if f.ID != rs[j].ID() {
				t.Fatalf("node %d finds %v in place of %v", i, f.ID, rs[j].ID())
			}
			if err := rs[i].SendBytes(ctx, f.ID, uint64(10*i+j), []byte("hello")); err != nil {
				t.Fatal(err)
			}
			m, err := rs[j].Recv(ctx, lib.Tag(uint64(10*i+j)))
			if err != nil || m.From() != rs[i].ID() {
				t.Fatalf("from %v: %v", m, err)
			}
			if err := rs[j].SendBytes(ctx, m.From(), 99, nil); err != nil { // the reply must find its receiver too
				t.Fatal(err)
			}
			m.Release()
			back, err := rs[i].Recv(ctx, lib.Tag(99))
			if err != nil {
				t.Fatal(err)
			}
			back.Release()
		}
	}
	if out, code := run(t, "", rocl, "find", "--socket", sockets[2], "at=0", "--json"); code != 0 || !strings.Contains(out, rs[0].ID().String()) {
		t.Errorf("rocl find: %q, exit code %d", out, code)
	}
	if _, code := run(t, "", rocl, "find", "--socket", sockets[1], "type=nobody"); code != 1 {
		t.Errorf("finding nothing in a cluster: exit code %d", code)
	}
	daemons[0].kill(t)
	eventually.True(t, "the dead node is gone", func() bool {
		_, code := run(t, "", rocl, "find", "--socket", sockets[1], "at=0")
		return code == 1
	})
	// The contexts of the node are unaffected: senders that know one can still send to it.
	if err := rs[1].SendBytes(ctx, rs[0].ID(), 5, nil); err != nil {
		t.Fatal(err)
	}
	m, err := rs[0].Recv(ctx, lib.Tag(5))
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
}
