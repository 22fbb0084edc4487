// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A directory at a TCP port serves a client that knows the node's key, and no other one.
func TestTCP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at, err := s.ListenTCP("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := JoinNode(ctx, at+"?node="+path+".node", s.log, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, _ := resource.NewPattern(resource.Attrs{"over": "tcp"})
	id := c.Self().WithSerial(1)
	if _, err := c.Register(ctx, id, l); err != nil {
		t.Fatal(err)
	}
	if a, err := c.Find(ctx, l); err != nil || a.ID != id {
		t.Fatalf("found %v: %v", a.ID, err)
	}
	for _, bad := range []string{"tcp://0.0.0.0:0", "tcp://192.0.2.1:0", "tcp://127.0.0.1", "127.0.0.1:0", "tcp://%zz"} {
		if at, err := s.ListenTCP(bad); err == nil {
			t.Errorf("%s is served at %s", bad, at)
		}
	}
	for _, bad := range []string{at, at + "?node=/nowhere", "tcp://"} {
		if _, err := Join(ctx, DialSocket(bad)); err == nil {
			t.Errorf("%s can be joined", bad)
		}
	}
	s.Close()
	if _, err := DialSocket(at + "?node=" + path + ".node")(ctx); !errors.Is(err, ErrNoDirectory) {
		t.Errorf("a closed one: %v", err)
	}
	if _, err := DialSocket(strings.Repeat("x", 200))(ctx); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("a long path: %v", err)
	}
}
