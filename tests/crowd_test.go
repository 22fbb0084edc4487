// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// crowdEach is the number of contexts in each process of TestCrowd.
const crowdEach = 25

var crowdProcesses = flag.Int("crowd.processes", 4, "processes of TestCrowd, with 25 contexts each")

// crowd opens many contexts in this process. Each has a resource {crowd=yes, i=NUMBER}, which
// passes each message on to the resource with the next number. The peer is named by its first
// number. The numbers of a process are ROCL_TEST_CROWD apart, so each message goes to another
// process.
func crowd(_ *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	first, err := strconv.Atoi(who["peer"])
	step, err2 := strconv.Atoi(os.Getenv("ROCL_TEST_CROWD"))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	ended := make(chan error)
	for k := range crowdEach {
		c, err := lib.Open(ctx, lib.WithSocket(os.Args[3]), lib.JoinOnly())
		if err != nil {
			return err
		}
		i := first + k*step
		r, err := c.Register(ctx, lib.Attrs{"crowd": "yes", "i": strconv.Itoa(i)})
		if err != nil {
			return err
		}
		go func() {
			for {
				m, err := r.Recv(ctx)
				if err != nil {
					ended <- err
					return
				}
				next, err := c.Find(ctx, lib.Match{"crowd": "yes", "i": strconv.Itoa(i + 1)})
				if err == nil {
					err = r.SendBytes(ctx, next.ID, m.Tag()+1, fmt.Appendf(m.Bytes(), " %d", i))
				}
				m.Release()
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	fmt.Println("registered")
	return <-ended
}

// Many processes of one node have many contexts each, of which each is found, and a message passes
// through all of them. The short form has a hundred contexts, and the form of make long a thousand.
func TestCrowd(t *testing.T) {
	sock, n := socket(t), *crowdProcesses*crowdEach
	start(t, `"serving"`, dirserver, "--socket", sock)
	t.Setenv("ROCL_TEST_CROWD", strconv.Itoa(*crowdProcesses))
	for first := range *crowdProcesses {
		peer(t, "crowd", sock, strconv.Itoa(first))
	}
	c := open(t, sock)
	me := register(t, c, lib.Attrs{"crowd": "yes", "i": strconv.Itoa(n)})
	ctx := eventually.Context(t)
	contexts := map[lib.GID]bool{}
	var first lib.GID
	for f, err := range c.FindAll(ctx, lib.Match{"crowd": "yes"}, lib.Want("i")) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Attrs.GetString("i") == "0" {
			first = f.ID
		}
		contexts[f.Context] = true
	}
	if len(contexts) != n+1 {
		t.Fatalf("%d contexts are found, want %d", len(contexts), n+1)
	}
	if err := me.SendBytes(ctx, first, 0, nil); err != nil {
		t.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	want := ""
	for i := range n {
		want += fmt.Sprint(" ", i)
	}
	if string(m.Bytes()) != want || m.Tag() != uint64(n) {
		t.Errorf("after %d contexts: %q", m.Tag(), m.Bytes())
	}
}
