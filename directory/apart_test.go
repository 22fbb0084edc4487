// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

// inCluster makes a server a member of the cluster "blue", as far as this package can see.
func inCluster() Option {
	return WithMembership(func(s *Server, _ bool) (func(bool), error) {
		s.SetTerms(Terms{Keys: [][]byte{make([]byte, 32)}, Member: true, Cluster: "blue"})
		return func(bool) {}, nil
	})
}

// ask looks for a resource that no server has.
func ask(t *testing.T, s *Server) error {
	t.Helper()
	c, err := Join(context.Background(), s.Dialer())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := resource.NewPattern(resource.Attrs{"no": "such"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Find(context.Background(), p)
	_, lookup := c.Lookup(context.Background(), resource.MakeGID(s.Node()^1, 1, 1))
	if errors.Is(err, ErrPartial) != errors.Is(lookup, ErrPartial) || errors.Is(err, ErrNotFound) != errors.Is(lookup, ErrNotFound) {
		t.Errorf("find: %v; lookup: %v", err, lookup)
	}
	return err
}

// A node belongs to its cluster until a server takes leave of the cluster, or until a daemon
// without the settings of a member serves the node. Other changes of its server do not matter.
func TestNodeBelongsToCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	serve := func(opts ...Option) *Server {
		t.Helper()
		s, err := Listen(path, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	// handOver ends a daemon while a context lives.
	handOver := func(opts ...Option) {
		t.Helper()
		s := serve(append(opts, AsDaemon())...)
		c, err := Join(context.Background(), s.Dialer())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	uncertain := func(s *Server) {
		t.Helper()
		if err := ask(t, s); !errors.Is(err, ErrPartial) || !strings.Contains(err.Error(), `"blue"`) {
			t.Errorf("in a cluster: %v, want ErrPartial with its name", err)
		}
		s.Close()
	}
	certain := func(s *Server) {
		t.Helper()
		if err := ask(t, s); !errors.Is(err, ErrNotFound) {
			t.Errorf("in no cluster: %v, want ErrNotFound", err)
		}
		s.Close()
	}
	mark := func() bool {
		_, err := os.Lstat(path + memberSuffix)
		return err == nil
	}

	certain(serve())
	handOver(inCluster())
	uncertain(serve())
	uncertain(serve()) // and with the next server
	handOver(inCluster())
	uncertain(serve())
	certain(serve(AsDaemon())) // the operator has ended the membership
	certain(serve())

	handOver(inCluster())
	serve(inCluster()).Close() // no context goes on, so the server takes leave
	if mark() {
		t.Error("the node has left and is still marked")
	}
	certain(serve())

	handOver(inCluster())
	if err := os.Remove(path + nodeSuffix); err != nil {
		t.Fatal(err)
	}
	certain(serve()) // another node

	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(path + memberSuffix)
	if err := os.Symlink(other, path+memberSuffix); err != nil {
		t.Fatal(err)
	}
	handOver(inCluster())
	certain(serve(AsDaemon())) // the file is neither replaced nor removed, and it is no mark
	if b, err := os.ReadFile(other); string(b) != "mine" {
		t.Errorf("what a symbolic link leads to is %q, %v", b, err)
	}
	os.Remove(path + memberSuffix)
	handOver(inCluster())
	uncertain(serve())
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".rocl-*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// A watch on such a node reports the node's own resources, and Synced after a while.
func TestUnreachableWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := database.New()
		w := db.Watch(new(resource.List))
		defer w.Close()
		end := Unreachable(errors.New("why")).Watch(new(resource.List), w)
		begun := time.Now()
		ev, err := w.Next(t.Context())
		if err != nil || ev.Kind != Synced || time.Since(begun) != unreachableTime {
			t.Fatalf("%v, %v after %v", ev, err, time.Since(begun))
		}
		end()
		w2 := db.Watch(new(resource.List))
		defer w2.Close()
		Unreachable(errors.New("why")).Watch(new(resource.List), w2)() // ended at once, so w2 waits for nothing
		if ev, err := w2.Next(t.Context()); err != nil || ev.Kind != Synced {
			t.Fatalf("%v, %v", ev, err)
		}
	})
}
