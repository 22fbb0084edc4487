// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"testing"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

var bg = context.Background()

// asPeer takes the place of the test in the process of a peer: what must succeed and fails
// ends the process.
type asPeer struct{ testing.TB }

func (asPeer) Helper() {}
func (asPeer) Fatal(why ...any) {
	fmt.Println("peer ended:", fmt.Sprint(why...))
	os.Exit(1)
}

// The process that is killed must run this library, not a command: the test binary is started again
// as one of the peers below.
func init() {
	if len(os.Args) < 5 || os.Args[1] != "peer" {
		return
	}
	peers := map[string]func(t testing.TB, c *lib.Context, who lib.Attrs){
		"flood": flood, "silent": silent, "echo": echo, "hello": hello, "mint": mint, "restless": restless, "parent": parent, "chatter": chatter,
		"replier": replier, "asker": asker, "bulk-origin": bulkOrigin, "bulk-target": bulkTarget, "crowd": crowd, "asks": asks, "hoard": hoard, "counts": counts,
	}
	var t asPeer
	opts := overShm()
	switch refused := os.Getenv("ROCL_TEST_REFUSED"); {
	case refused != "":
		try.OK(t, refuse(refused))
		opts = []lib.Option{lib.WithLogger(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelWarn})))}
	case os.Getenv("ROCL_TEST_MORTAL") != "":
		opts = []lib.Option{lib.WithTransports(mortally(t))}
	case opts == nil:
		opts = []lib.Option{lib.WithTransports(tcp.New())}
	}
	c := try.Get(lib.Open(bg, append(opts, lib.WithSocket(os.Args[3]))...))(t)
	peers[os.Args[2]](t, c, lib.Attrs{"peer": os.Args[4]})
	t.Fatal("its part is over")
}

// peer starts a process that plays a part under a name, and waits until the process has registered
// {peer=name}.
func peer(t *testing.T, part, sock, name string) *child {
	t.Helper()
	cmd := subprocess.Self("peer", part, sock, name)
	apart(cmd)
	return startCommand(t, "registered", cmd)
}

// overShm returns the options with which a test process opens its context if the environment says
// that it uses shared memory.
func overShm() []lib.Option {
	how := lib.PollAdaptive
	switch os.Getenv("ROCL_TEST_SHM") {
	case "":
		return nil
	case "never":
		how = lib.PollNever
	}
	return []lib.Option{lib.WithTransports(shm.New()), lib.WithPoll(how)}
}

// overBoth runs f over TCP and over shared memory. opts choose the transport of the test's context,
// and the environment that of its peers.
func overBoth(t *testing.T, f func(t *testing.T, opts ...lib.Option)) {
	if !isApart() {
		t.Run("tcp", func(t *testing.T) { f(t, lib.WithTransports(tcp.New())) })
	}
	t.Run("shm", func(t *testing.T) {
		t.Setenv("ROCL_TEST_SHM", "adaptive")
		f(t)
	})
}

// enter registers the resource of a peer, and tells the test so.
func enter(t testing.TB, c *lib.Context, who lib.Attrs, opts ...lib.RegisterOption) *lib.Resource {
	r := try.Get(c.Register(bg, who, opts...))(t)
	fmt.Println("registered")
	return r
}

// flood sends large messages to {sink=yes} without end, and prints of each when the library has
// released it.
func flood(t testing.TB, c *lib.Context, who lib.Attrs) {
	r, sink := enter(t, c, who), try.Get(c.Find(bg, lib.Match{"sink": "yes"}))(t)
	var under []*lib.Buffer // way, in order
	delivered := 0
	for i := uint64(0); ; i++ {
		b := try.Get(c.Buffer(bigLen))(t)
		bigMessage(b.Bytes(), i)
		under = append(under, b.Retain())
		try.OK(t, r.Send(bg, sink.ID, i, b))
		for len(under) > 0 && under[0].Done() {
			fmt.Println("delivered", delivered)
			delivered++
			under[0].Release()
			under = under[1:]
		}
	}
}

// silent registers a resource with a small mailbox, and receives nothing.
func silent(t testing.TB, c *lib.Context, who lib.Attrs) {
	enter(t, c, who, lib.MailboxLimit(256<<10))
	select {}
}

// echo sends each message back to its sender.
func echo(t testing.TB, c *lib.Context, who lib.Attrs) {
	for r := enter(t, c, who); ; {
		m := try.Get(r.Recv(bg))(t)
		from, tag, b := m.From(), m.Tag(), m.Buffer()
		m.Release()
		if err := r.Send(bg, from, tag, b); err != nil {
			b.Release()
			if !errors.Is(err, lib.ErrGone) {
				t.Fatal(err)
			}
		}
	}
}

// parent is echo with a child process that outlives it for a while.
func parent(t testing.TB, c *lib.Context, who lib.Attrs) {
	try.OK(t, exec.Command("sleep", "5").Start())
	echo(t, c, who)
}

// hello sends one message to {sink=yes}, and stays.
func hello(t testing.TB, c *lib.Context, who lib.Attrs) {
	r, sink := enter(t, c, who), try.Get(c.Find(bg, lib.Match{"sink": "yes"}))(t)
	try.OK(t, r.SendBytes(bg, sink.ID, 0, []byte("hello")))
	select {}
}

// chatter sends messages of all sizes to {sink=yes} without end. The tag of each message is its
// number, and its payload begins with that.
func chatter(t testing.TB, c *lib.Context, who lib.Attrs) {
	r, sink := enter(t, c, who), try.Get(c.Find(bg, lib.Match{"sink": "yes"}))(t)
	sizes := []int{8, 100, 3000, 8, 70_000, 8, 8, 600_000}
	for i := uint64(0); ; i++ {
		p := make([]byte, sizes[int(i)%len(sizes)])
		binary.LittleEndian.PutUint64(p, i)
		try.OK(t, r.SendBytes(bg, sink.ID, i, p))
	}
}

const mints = 2000

// mint registers many resources and prints their identifiers.
func mint(t testing.TB, c *lib.Context, who lib.Attrs) {
	fmt.Println("registered")
	for range mints {
		fmt.Println("minted", try.Get(c.Register(bg, who))(t).ID())
	}
	select {}
}

// replier replies to each request with its payload.
func replier(t testing.TB, c *lib.Context, who lib.Attrs) {
	r := enter(t, c, who)
	try.OK(t, r.Handle(bg, func(m *lib.Message) {
		if err := r.Reply(bg, m, m.Buffer()); err != nil {
			fmt.Println("replying:", err)
		}
	}))
}

// asker calls {server=yes} with requests of all sizes at the same time, and stays.
func asker(t testing.TB, c *lib.Context, who lib.Attrs) {
	r, server := enter(t, c, who), try.Get(c.Find(bg, lib.Match{"server": "yes"}))(t)
	var all sync.WaitGroup
	for _, size := range requestSizes {
		all.Go(func() {
			m, err := r.CallBytes(bg, server.ID, 0, make([]byte, size))
			if err != nil || m.Len() != size {
				fmt.Println("call:", err)
				return
			}
			m.Release()
		})
	}
	all.Wait()
	fmt.Println("lived")
	select {}
}
