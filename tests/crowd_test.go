// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// crowdEach is the number of contexts in each process of TestCrowd.
const crowdEach = 25

var crowdProcesses = flag.Int("crowd.processes", 4, "processes of TestCrowd, with 25 contexts each")

// crowd opens many contexts in this process. Each has a resource {crowd=yes, i=NUMBER}, which
// passes each message on to the resource with the next number. The peer is named by its first
// number. The numbers of a process are ROCL_TEST_CROWD apart, so each message goes to another
// process.
func crowd(t testing.TB, _ *lib.Context, who lib.Attrs) {
	first, step := try.Get(strconv.Atoi(who["peer"]))(t), try.Get(strconv.Atoi(os.Getenv("ROCL_TEST_CROWD")))(t)
	for k := range crowdEach {
		c := try.Get(lib.Open(bg, lib.WithSocket(os.Args[3]), lib.JoinOnly()))(t)
		i := first + k*step
		r := try.Get(c.Register(bg, lib.Attrs{"crowd": "yes", "i": strconv.Itoa(i)}))(t)
		go func() {
			for {
				m := try.Get(r.Recv(bg))(t)
				next := try.Get(c.Find(bg, lib.Match{"crowd": "yes", "i": strconv.Itoa(i + 1)}))(t)
				try.OK(t, r.SendBytes(bg, next.ID, m.Tag()+1, fmt.Appendf(m.Bytes(), " %d", i)))
				m.Release()
			}
		}()
	}
	fmt.Println("registered")
	select {}
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
		try.OK(t, err)
		if f.Attrs.GetString("i") == "0" {
			first = f.ID
		}
		contexts[f.Context] = true
	}
	if len(contexts) != n+1 {
		t.Fatalf("%d contexts are found, want %d", len(contexts), n+1)
	}
	try.OK(t, me.SendBytes(ctx, first, 0, nil))
	m := try.Get(me.Recv(ctx))(t)
	defer m.Release()
	want := ""
	for i := range n {
		want += fmt.Sprint(" ", i)
	}
	if string(m.Bytes()) != want || m.Tag() != uint64(n) {
		t.Errorf("after %d contexts: %q", m.Tag(), m.Bytes())
	}
}
