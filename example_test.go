// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/simnet"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// node is a node in memory. An example on it needs no daemon, and sees no resources of other
// programs. Tests have package rocltest for that.
type node struct {
	server   *directory.Server
	contexts []*rocl.Context
}

func newNode() *node { return &node{server: directory.NewServer()} }

// open is rocl.Open(ctx, opts...) on this node.
func (n *node) open(opts ...rocl.Option) *rocl.Context {
	here := icontext.WithDirectory(n.server.Dialer())
	c, err := rocl.Open(context.Background(), append(opts, here)...)
	if err != nil {
		log.Fatal(err)
	}
	n.contexts = append(n.contexts, c)
	return c
}

func (n *node) close() {
	for _, c := range n.contexts {
		c.Close()
	}
	n.server.Close()
}

// register registers a resource for examples whose subject is another one.
func register(c *rocl.Context, name string) *rocl.Resource {
	r, err := c.Register(context.Background(), rocl.Attrs{"name": name})
	if err != nil {
		log.Fatal(err)
	}
	return r
}

// hello sends a message from one resource to another, for examples whose subject is another one. It
// returns what is received.
func hello(from, to *rocl.Resource) string {
	ctx := context.Background()
	if err := from.SendBytes(ctx, to.ID(), 0, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	m, err := to.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	return string(m.Bytes())
}

func tempDir() string {
	dir, err := os.MkdirTemp("", "rocl-")
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

func ExampleOpen() {
	dir := tempDir()
	defer os.RemoveAll(dir)
	ctx := context.Background()

	// Without the option, the context joins the node's directory, and sees the other programs of
	// the machine.
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "directory.sock")))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	me, err := c.Register(ctx, rocl.Attrs{"type": "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	peer, err := c.Find(ctx, rocl.Match{"type": "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	b, err := c.Buffer(5)
	if err != nil {
		log.Fatal(err)
	}
	copy(b.Bytes(), "hello")
	if err := me.Send(ctx, peer.ID, 7, b); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Printf("%s, tag %d\n", m.Bytes(), m.Tag())
	// Output: hello, tag 7
}

// Contexts with the same socket belong to one node. The first of them serves the directory.
func ExampleWithSocket() {
	dir := tempDir()
	defer os.RemoveAll(dir)
	ctx := context.Background()
	socket := rocl.WithSocket(filepath.Join(dir, "directory.sock"))
	a, err := rocl.Open(ctx, socket)
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	b, err := rocl.Open(ctx, socket)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if _, err := a.Register(ctx, rocl.Attrs{"type": "lamp"}); err != nil {
		log.Fatal(err)
	}
	f, err := b.Find(ctx, rocl.Match{"type": "lamp"})
	fmt.Println(f.Context == a.ID(), err)
	// Output: true <nil>
}

// A tool that only looks at resources should not serve the node's directory.
func ExampleJoinOnly() {
	dir := tempDir()
	defer os.RemoveAll(dir)
	nobody := filepath.Join(dir, "directory.sock")
	_, err := rocl.Open(context.Background(), rocl.WithSocket(nobody), rocl.JoinOnly())
	fmt.Println(errors.Is(err, rocl.ErrNoDirectory))
	// Output: true
}

func ExampleWithTransports() {
	node := newNode()
	defer node.close()
	// Two contexts of one process would meet in memory; these use TCP.
	a := node.open(rocl.WithTransports(tcp.New()))
	b := node.open(rocl.WithTransports(tcp.New(), inproc.New()))
	me, you := register(a, "me"), register(b, "you")
	hello(me, you)
	fmt.Println(a.Stats().Sent)
	// Output: map[tcp:1]
}

func ExampleWithListen() {
	node := newNode()
	defer node.close()
	// Port 0 lets the system choose one. Other transports keep their own.
	c := node.open(rocl.WithListen("tcp://127.0.0.1:0"))
	for _, a := range c.Addrs() {
		scheme, rest, _ := strings.Cut(a, "://")
		fmt.Println(scheme, strings.HasPrefix(rest, "127.0.0.1:"))
	}
	// Output:
	// inproc false
	// shm false
	// tcp true
}

// Messages to resources for control use TCP while others use another transport.
func ExampleWithRules() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a, b := node.open(rocl.WithRules(rocl.Rule{Match: rocl.Match{"name": "control"}, Over: []string{"tcp"}})), node.open()
	me := register(a, "me")
	for _, name := range []string{"control", "data"} {
		hello(me, register(b, name))
	}
	fmt.Println(a.Stats().Sent)
	_, err := rocl.Open(ctx, rocl.WithRules(rocl.Rule{Over: []string{"pigeon"}}))
	fmt.Println(errors.Is(err, rocl.ErrRule))
	// Output:
	// map[inproc:1 tcp:1]
	// true
}

// The first rule that matches a resource counts. A rule without transports excepts its resources
// from the later rules.
func ExampleRule() {
	node := newNode()
	defer node.close()
	a, b := node.open(rocl.WithRules(
		rocl.Rule{Match: rocl.Match{"name": "near"}},
		rocl.Rule{Over: []string{"shm", "tcp"}},
	)), node.open()
	me := register(a, "me")
	for _, name := range []string{"near", "far", "farther"} {
		hello(me, register(b, name))
	}
	fmt.Println(a.Stats().Sent["inproc"])
	// Output: 1
}

// A resource says itself over which transports it is reached. Its replies use them too.
func ExampleOver() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a, b := node.open(), node.open()
	me := register(a, "me")
	you, err := b.Register(ctx, rocl.Attrs{"name": "you"}, rocl.Over("tcp"))
	if err != nil {
		log.Fatal(err)
	}
	go you.Handle(ctx, func(m *rocl.Message) {
		_ = you.ReplyBytes(ctx, m, []byte("hello"))
	})
	m, err := me.CallBytes(ctx, you.ID(), 0, nil)
	if err != nil {
		log.Fatal(err)
	}
	m.Release()
	fmt.Println(a.Stats().Sent, b.Stats().Sent)
	// Output: map[tcp:1] map[tcp:1]
}

// A context lists the transport to each other context. The command 'rocl routes' prints the list
// for a whole node.
func ExampleRoute() {
	node := newNode()
	defer node.close()
	a, b := node.open(), node.open()
	me, you := register(a, "me"), register(b, "you")
	hello(me, you)
	for _, r := range a.Routes() {
		fmt.Println(r.Peer == b.ID(), r.Transport, r.Sent, r.SentBytes, r.Changes)
	}
	routes, err := node.open().RoutesOf(context.Background(), a.ID()) // another context asks
	fmt.Println(len(routes), err)
	// Output:
	// true inproc 1 5 0
	// 1 <nil>
}

// Receivers sleep at once, and leave the processor to other work.
func ExampleWithPoll() {
	node := newNode()
	defer node.close()
	c := node.open(rocl.WithPoll(rocl.PollNever))
	me := register(c, "me")
	fmt.Println(hello(me, me))
	// Output: hello
}

// A budget limits what waiting may cost: here 5 µs of a processor for each message.
func ExampleWithPollBudget() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(rocl.WithPollBudget(5*time.Microsecond)), "me")
	fmt.Println(hello(me, me))
	_, err := rocl.Open(ctx, rocl.WithPollBudget(time.Hour))
	fmt.Println(errors.Is(err, rocl.ErrPolling))
	// Output:
	// hello
	// true
}

// Of many contexts in one process, one at a time polls. The others sleep.
func ExampleWithPollers() {
	node := newNode()
	defer node.close()
	one := rocl.WithPollers(1)
	me, you := register(node.open(one), "me"), register(node.open(one), "you")
	fmt.Println(hello(me, you))
	// Output: hello
}

// A receiver that does not keep up stops its senders.
func ExampleWithMailbox() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open(rocl.WithMailbox(100_000)) // for each resource of c
	me := register(c, "me")
	page := make([]byte, 40_000)
	for i := range uint64(2) {
		if err := me.SendBytes(ctx, me.ID(), i, page); err != nil {
			log.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	err := me.SendBytes(soon, me.ID(), 2, page)
	fmt.Println("full:", errors.Is(err, context.DeadlineExceeded))

	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	m.Release()
	fmt.Println("room again:", me.SendBytes(ctx, me.ID(), 2, page) == nil)
	// Output:
	// full: true
	// room again: true
}

// One resource has a mailbox limit of its own.
func ExampleMailboxLimit() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me, err := c.Register(ctx, rocl.Attrs{"name": "me"}, rocl.MailboxLimit(100_000))
	if err != nil {
		log.Fatal(err)
	}
	sent := 0
	for {
		soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		err := me.SendBytes(soon, me.ID(), 0, make([]byte, 40_000))
		cancel()
		if err != nil {
			break
		}
		sent++
	}
	fmt.Println(sent)
	// Output: 2
}

func ExampleWithMemory() {
	node := newNode()
	defer node.close()
	c := node.open(rocl.WithMemory(8 << 20))
	b, err := c.Buffer(1000)
	if err != nil {
		log.Fatal(err)
	}
	b.Release()
	_, err = c.Buffer(100 << 20)
	fmt.Println(errors.Is(err, rocl.ErrLimit))
	// Output: true
}

// Close does not wait forever for contexts that cannot be reached.
func ExampleWithLinger() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a := node.open(rocl.WithLinger(10*time.Millisecond), rocl.WithCluster("one"))
	b := node.open(rocl.WithCluster("another")) // this context does not link with a
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendBytes(ctx, you.ID(), 0, []byte("hello")); err != nil {
		log.Fatal(err) // it would be accepted
	}
	err := a.Close()
	var undelivered *rocl.FlushError
	if !errors.As(err, &undelivered) {
		log.Fatal(err)
	}
	for _, t := range undelivered.Targets {
		fmt.Println(t.To == you.ID(), t.Undelivered)
	}
	// Output: true 1
}

func ExampleWithGiveUp() {
	ctx := context.Background()
	lost := make(chan rocl.Undelivered, 1)
	node := newNode()
	defer node.close()
	a := node.open(rocl.WithGiveUp(10*time.Millisecond), rocl.WithCluster("one"),
		rocl.WithUndelivered(func(u rocl.Undelivered) { lost <- u }))
	b := node.open(rocl.WithCluster("another")) // this context does not link with a
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendBytes(ctx, you.ID(), 7, []byte("hello")); err != nil {
		log.Fatal(err) // it would be accepted
	}
	u := <-lost
	fmt.Println(u.Tag, errors.Is(u.Err, rocl.ErrUnreachable))
	// Output: 7 true
}

// An error says why there is no connection to the target's context.
func ExampleNoConnectionError() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a := node.open(rocl.WithGiveUp(10*time.Millisecond), rocl.WithCluster("one"))
	b := node.open(rocl.WithCluster("another")) // this context does not link with a
	me, you := register(a, "me"), register(b, "you")
	_, err := me.CallBytes(ctx, you.ID(), 7, []byte("hello"))
	var none *rocl.NoConnectionError
	if errors.As(err, &none) {
		fmt.Println(errors.Is(none.End, rocl.ErrUnreachable), none.Peer == b.ID(), none.Reason != nil)
	}
	// Output: true true true
}

// A program that waits in its own way, while another goroutine talks to a resource, says why that
// is not reached.
func ExampleContext_explain() {
	node := newNode()
	defer node.close()
	a := node.open(rocl.WithLinger(0), rocl.WithCluster("one"))
	b := node.open(rocl.WithCluster("another")) // this context does not link with a
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendAndForget(context.Background(), you.ID(), 7, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	<-ctx.Done() // or for an answer that the other goroutine passes on
	err := a.Explain(ctx.Err(), you.ID())
	var none *rocl.NoConnectionError
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.As(err, &none))
	// Output: true true
}

// Contexts of one node find each other's resources, whatever their clusters. Messages stay within a
// cluster.
func ExampleWithCluster() {
	node := newNode()
	defer node.close()
	a, b := node.open(rocl.WithCluster("blue")), node.open(rocl.WithCluster("blue"))
	me, you := register(a, "me"), register(b, "you")
	fmt.Println(hello(me, you))
	// Output: hello
}

// Two nodes without daemons, here on one machine, form a cluster.
func ExampleWithMember() {
	ctx := context.Background()
	first, second := freeAddr(), freeAddr() // such as 10.0.0.7:7946
	dir := tempDir()
	defer os.RemoveAll(dir)
	open := func(node string, m cluster.Member) *rocl.Context {
		c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, node)), rocl.WithCluster("blue"), rocl.WithMember(m))
		if err != nil {
			log.Fatal(err)
		}
		return c
	}
	a := open("a", cluster.Member{Bind: first})
	defer a.Close()
	b := open("b", cluster.Member{Bind: second, Join: []string{first}})
	defer b.Close()
	printer, me := register(a, "printer"), register(b, "me")
	for e, err := range b.Watch(ctx, rocl.Match{"name": "printer"}) { // the nodes may not know each other yet
		if err != nil {
			log.Fatal(err)
		}
		if e.Kind == rocl.Appeared {
			if err := me.SendBytes(ctx, e.ID, 7, []byte("a page")); err != nil {
				log.Fatal(err)
			}
			break
		}
	}
	m, err := printer.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s from another node: %v\n", m.Bytes(), m.From().Node() != printer.ID().Node())
	m.Release()
	// Output: a page from another node: true
}

// The key must be a secret of the cluster's nodes.
func ExampleMember() {
	dir := tempDir()
	defer os.RemoveAll(dir)
	m := cluster.Member{Bind: freeAddr(), KeyFile: filepath.Join(dir, "key")}
	if err := os.WriteFile(m.KeyFile, []byte("0123456789abcdef"), 0o644); err != nil {
		log.Fatal(err)
	}
	_, err := rocl.Open(context.Background(), rocl.WithSocket(filepath.Join(dir, "sock")), rocl.WithMember(m))
	fmt.Println(errors.Is(err, rocl.ErrMember), errors.Is(err, os.ErrPermission))
	// Output: true true
}

// A search strategy says how a directory asks the other members. Broadcast needs a group.
func ExampleSearchStrategy() {
	m := cluster.Member{Bind: "10.0.0.7:7946", Group: "239.1.2.3:7947", Strategy: rocl.SearchBroadcast}
	fmt.Println(m.Strategy, m.Check())
	m.Group = ""
	fmt.Println(m.Check())
	// Output:
	// broadcast <nil>
	// rocl: invalid settings of a member: search by broadcast needs a group address
}

// Open refuses certificates unless the nodes of the cluster use certificates.
func ExampleWithCertificates() {
	dir := tempDir()
	defer os.RemoveAll(dir)
	m := cluster.Member{Bind: freeAddr(), KeyFile: filepath.Join(dir, "key")}
	if err := os.WriteFile(m.KeyFile, []byte("0123456789abcdef"), 0o600); err != nil {
		log.Fatal(err)
	}
	node := rocl.WithSocket(filepath.Join(dir, "sock"))
	a, err := rocl.Open(context.Background(), node, rocl.WithMember(m))
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	_, err = rocl.Open(context.Background(), node, rocl.WithCertificates("cert.pem", "key.pem", "ca.pem"))
	fmt.Println(errors.Is(err, rocl.ErrCertificates))
	// Output: true
}

// freeAddr returns an address of the loopback interface that no program is using at the moment.
func freeAddr() string {
	addr, err := freeaddr.Loopback()
	if err != nil {
		log.Fatal(err)
	}
	return addr
}

func ExampleWithLogger() {
	var lines bytes.Buffer
	debug := &slog.HandlerOptions{Level: slog.LevelDebug}
	node := newNode()
	a := node.open(rocl.WithLogger(slog.New(slog.NewTextHandler(&lines, debug))), rocl.WithCluster("one"), rocl.WithLinger(0))
	b := node.open(rocl.WithCluster("another"))
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendBytes(context.Background(), you.ID(), 7, nil); err != nil {
		log.Fatal(err)
	}
	node.close() // from here on nothing is logged
	fmt.Println(strings.Contains(lines.String(), "dispatch: undelivered"))
	// Output: true
}

// A message that was accepted, and not received before its target ended, is reported.
func ExampleWithUndelivered() {
	ctx := context.Background()
	lost := make(chan rocl.Undelivered, 1)
	node := newNode()
	defer node.close()
	a, b := node.open(rocl.WithUndelivered(func(u rocl.Undelivered) { lost <- u })), node.open()
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendBytes(ctx, you.ID(), 7, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	if err := you.Delete(ctx); err != nil {
		log.Fatal(err)
	}
	u := <-lost
	fmt.Println(u.To == you.ID(), u.Tag, u.Err)
	// Output: true 7 rocl: resource is gone
}

func ExampleFrom() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	a, b, me := register(c, "a"), register(c, "b"), register(c, "me")
	_ = a.SendBytes(ctx, me.ID(), 1, []byte("from a"))
	_ = b.SendBytes(ctx, me.ID(), 2, []byte("from b"))
	m, err := me.Recv(ctx, rocl.From(b.ID()), rocl.Tag(2))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Bytes())
	m.Release()
	// Output: from b
}

func ExampleTag() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	for tag := range uint64(3) {
		_ = me.SendBytes(ctx, me.ID(), tag, nil)
	}
	m, err := me.Recv(ctx, rocl.Tag(2))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Tag())
	m.Release()
	_, err = me.TryRecv(rocl.Tag(9))
	fmt.Println(errors.Is(err, rocl.ErrEmpty))
	// Output:
	// 2
	// true
}

func ExampleWant() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	if _, err := c.Register(ctx, rocl.Attrs{"type": "server", "load": "3", "notes": "long"}); err != nil {
		log.Fatal(err)
	}
	f, err := c.Find(ctx, rocl.Match{"type": "server"}, rocl.Want("load", "color"))
	if err != nil {
		log.Fatal(err)
	}
	_, known := f.Attrs.Get("color")
	fmt.Println(f.Attrs.GetString("load"), known)
	// Output: 3 false
}

func ExampleCovered() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	register(c, "me")
	var asked rocl.Coverage
	for f, err := range c.FindAll(ctx, rocl.Match{"name": "me"}, rocl.Covered(&asked)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(&f.Attrs)
	}
	fmt.Println("nodes:", asked.Covered, "out of reach:", len(asked.Failed))
	// Output:
	// {name=me}
	// nodes: 1 out of reach: 0
}

func ExampleCoverage() {
	var asked rocl.Coverage // the result of a FindAll with Covered
	asked.Covered = 2
	asked.Failed = append(asked.Failed, rocl.GID{}.Node())
	if err := asked.Err(); errors.Is(err, rocl.ErrPartial) {
		fmt.Println(err)
	}
	// Output: rocl: not found, and not every node could be asked: 1 of 3 nodes: [000000000000]
}

func ExampleParseGID() {
	id, err := rocl.ParseGID("8f3a21b0c4d5-1000002-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id.Serial(), id.Context())
	// Output: 7 8f3a21b0c4d5-1000002-0
}

func ExampleGID() {
	node := newNode()
	defer node.close()
	c := node.open()
	r := register(c, "me")
	again, err := rocl.ParseGID(r.ID().String())
	fmt.Println(again == r.ID(), err)
	fmt.Println(r.ID().Context() == c.ID(), r.ID().Serial())
	// Output:
	// true <nil>
	// true 1
}

func ExampleContext() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	r, err := c.Register(ctx, rocl.Attrs{"type": "server", "model": "llama"})
	if err != nil {
		log.Fatal(err)
	}
	f, err := c.Lookup(ctx, r.ID())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Context == c.ID(), &f.Attrs)
	fmt.Println("questions:", c.Stats().Questions)
	fmt.Println("addresses:", len(c.Addrs()))
	fmt.Println("closing:", c.Close())
	_, err = c.Find(ctx, rocl.Match{"type": "server"})
	fmt.Println(errors.Is(err, rocl.ErrClosed))
	// Output:
	// true {model=llama, type=server}
	// questions: 1
	// addresses: 3
	// closing: <nil>
	// true
}

func ExampleContext_findAll() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	for _, load := range []string{"3", "5"} {
		if _, err := c.Register(ctx, rocl.Attrs{"type": "server", "load": load}); err != nil {
			log.Fatal(err)
		}
	}
	for f, err := range c.FindAll(ctx, rocl.Match{"type": "server"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(f.Attrs.GetString("load"))
	}
	// Unordered output:
	// 3
	// 5
}

// Errors are matched with errors.Is; each says what is wrong and what is allowed.
func ExampleContext_buffer_errors() {
	node := newNode()
	defer node.close()
	c := node.open(rocl.WithMemory(1 << 20))

	for _, n := range []int{-1, rocl.MaxMessage + 1, 1 << 19} {
		p, err := c.Buffer(n)
		if err != nil {
			fmt.Println(errors.Is(err, rocl.ErrTooLarge), err)
			continue
		}
		fmt.Println(p.Len(), "bytes")
		p.Release() // a buffer that is not sent must be released
	}

	p, err := c.Buffer(1 << 19)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Release()
	_, err = c.Buffer(1 << 20)
	fmt.Println("all memory is in use:", errors.Is(err, rocl.ErrLimit))
	// Output:
	// true buffers: negative buffer size: -1 bytes
	// true rocl: message too large: 1610612737 bytes, at most 1610612736
	// 524288 bytes
	// all memory is in use: true
}

func ExampleContext_buffer() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a, b := node.open(), node.open()
	me, you := register(a, "me"), register(b, "you")

	p, err := a.Buffer(1 << 20) // not cleared: it holds what its last user wrote
	if err != nil {
		log.Fatal(err)
	}
	where := &p.Bytes()[0]
	if err := me.Send(ctx, you.ID(), 0, p); err != nil { // with nil, the library has taken p over
		log.Fatal(err)
	}
	m, err := you.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Println("the very memory that was written:", &m.Bytes()[0] == where)
	fmt.Println("copies:", a.Stats().Copies)
	// Output:
	// the very memory that was written: true
	// copies: 0
}

// A server of requests selects its answer by the tag of the request.
func ExampleResource() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	srv, cli := register(node.open(), "server"), register(node.open(), "client")

	served := make(chan struct{})
	go func() {
		defer close(served)
		for m, err := range srv.Messages(ctx) { // until srv is closed
			if err != nil {
				log.Fatal(err)
			}
			if err := srv.SendBytes(ctx, m.From(), m.Tag(), bytes.ToUpper(m.Bytes())); err != nil {
				log.Print(err)
			}
			m.Release()
		}
	}()

	if err := cli.SendBytes(ctx, srv.ID(), 42, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	m, err := cli.Recv(ctx, rocl.From(srv.ID()), rocl.Tag(42))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Bytes())
	m.Release()
	srv.Close()
	<-served
	// Output: HELLO
}

func ExampleResource_tryRecv() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")
	_ = me.SendBytes(ctx, me.ID(), 1, []byte("one"))
	_ = me.SendBytes(ctx, me.ID(), 2, []byte("two"))
	n, _ := me.Waiting()
	fmt.Println(n, "waiting")
	for {
		m, err := me.TryRecv()
		if errors.Is(err, rocl.ErrEmpty) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	// Output:
	// 2 waiting
	// one
	// two
}

// The context ctx limits how long a receive waits.
func ExampleResource_recv() {
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := me.Recv(soon)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// Of several goroutines that change what they have read, one succeeds. The others read again.
func ExampleResource_compareAndSet() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	r := register(c, "counter")
	seen := r.Revision()
	_, err := r.CompareAndSet(ctx, seen, rocl.Attrs{"n": "1"})
	fmt.Println(err)
	_, err = r.CompareAndSet(ctx, seen, rocl.Attrs{"n": "2"})
	fmt.Println(errors.Is(err, rocl.ErrRevision))
	fmt.Println(r.Context() == c, r.Revision() == seen+1)
	// Output:
	// <nil>
	// true
	// true true
}

func ExampleFound() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	r := register(c, "me")
	f, err := c.Lookup(ctx, r.ID())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.ID == r.ID(), f.Context == c.ID(), f.Revision == r.Revision(), &f.Attrs)
	// Output: true true true {name=me}
}

// A watch begins with the resources that match, which end with Synced, and goes on with changes.
func ExampleEvent() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	r, err := c.Register(ctx, rocl.Attrs{"type": "lamp", "state": "off"})
	if err != nil {
		log.Fatal(err)
	}
	for ev, err := range c.Watch(ctx, rocl.Match{"type": "lamp"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v %q\n", ev.Kind, ev.Attrs.GetString("state"))
		switch ev.Kind {
		case rocl.Synced: // all resources that matched at first have been yielded
			_ = r.Update(ctx, rocl.Attrs{"type": "lamp", "state": "on"})
		case rocl.Changed:
			_ = r.Delete(ctx)
		}
		if ev.Kind == rocl.Gone {
			break
		}
	}
	// Output:
	// appeared "off"
	// synced ""
	// changed "on"
	// gone "on"
}

// The first message to a resource asks the directory. The following ones do not.
func ExampleStats() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a, b := node.open(), node.open()
	me, you := register(a, "me"), register(b, "you")
	for range 1000 {
		if err := me.SendBytes(ctx, you.ID(), 0, []byte("hello")); err != nil {
			log.Fatal(err)
		}
	}
	s := a.Stats()
	fmt.Println(s.Sent, s.SentBytes, "questions:", s.Questions)
	// Output: map[inproc:1000] 5000 questions: 1
}

// Options are values: a program can keep a set of its own.
func ExampleOption() {
	small := []rocl.Option{rocl.WithMemory(8 << 20), rocl.WithMailbox(1 << 20), rocl.WithPoll(rocl.PollNever)}
	node := newNode()
	defer node.close()
	c := node.open(small...) // rocl.Open(ctx, small...)
	_, err := c.Buffer(100 << 20)
	fmt.Println(errors.Is(err, rocl.ErrLimit))
	// Output: true
}

func ExampleRegisterOption() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	bulk := rocl.MailboxLimit(64 << 20)
	r, err := c.Register(ctx, rocl.Attrs{"type": "sink"}, bulk)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.ID().Context() == c.ID())
	// Output: true
}

func ExampleFindOption() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	register(c, "me")
	// Any resource can be asked for the context that owns it.
	owner := rocl.Want("rocl.context")
	f, err := c.Find(ctx, rocl.Match{"name": "me"}, owner)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Attrs.GetString("rocl.context") == c.ID().String())
	// Output: true
}

// A list takes what a literal cannot: repeated names, and values of any bytes.
func ExampleList() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	var l rocl.List
	err := errors.Join(
		l.AddString("speaks", "http"),
		l.AddString("speaks", "gopher"),
		l.Add("key", []byte{0xff, 0}),
	)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Register(ctx, &l); err != nil {
		log.Fatal(err)
	}
	f, err := c.Find(ctx, rocl.Match{"speaks": "gopher"})
	if err != nil {
		log.Fatal(err)
	}
	for v := range f.Attrs.Values("speaks") {
		fmt.Printf("%s\n", v)
	}
	key, ok := f.Attrs.Get("key")
	fmt.Println(key, ok)
	// Output:
	// http
	// gopher
	// [255 0] true
}

// printer is a type of the program that implements rocl.Attributes.
type printer struct{ room, paper string }

func (p printer) AppendAttrs(l *rocl.List) error {
	return rocl.Attrs{"type": "printer", "room": p.room, "paper": p.paper}.AppendAttrs(l)
}

func ExampleAttributes() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	if _, err := c.Register(ctx, printer{room: "12", paper: "A4"}); err != nil {
		log.Fatal(err)
	}
	f, err := c.Find(ctx, rocl.Match{"room": "12"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(&f.Attrs)
	// Output: {paper=A4, room=12, type=printer}
}

func ExampleAttrs() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	r, err := c.Register(ctx, rocl.Attrs{"type": "lamp", "state": "off"})
	if err != nil {
		log.Fatal(err)
	}
	// An update replaces all attributes.
	if err := r.Update(ctx, rocl.Attrs{"type": "lamp", "state": "on"}); err != nil {
		log.Fatal(err)
	}
	f, err := c.Find(ctx, rocl.Match{"type": "lamp"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(&f.Attrs)
	// Output: {state=on, type=lamp}
}

func ExampleMatch() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	if _, err := c.Register(ctx, rocl.Attrs{"type": "server", "model": "llama"}); err != nil {
		log.Fatal(err)
	}
	for _, m := range []rocl.Match{
		{"type": "server"},
		{"type": "server", "model": "llama"},
		{"type": "server", "model": "other"},
		{}, // matches every resource
	} {
		_, err := c.Find(ctx, m)
		fmt.Println(err == nil)
	}
	// Output:
	// true
	// true
	// false
	// true
}

// A sender that retains a buffer before it sends it still owns it afterwards, and can ask whether
// the library has finished with it.
func ExampleBuffer() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")
	b, err := c.Buffer(5)
	if err != nil {
		log.Fatal(err)
	}
	copy(b.Bytes(), "hello")
	b.Retain()
	if err := me.Send(ctx, me.ID(), 0, b); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	m.Release()
	fmt.Printf("%s %d, done: %v, %v\n", b.Bytes(), b.Len(), b.Done(), b.State())
	b.Release()
	// Output: hello 5, done: true, delivered
}

// A received message is sent on in the memory in which it arrived.
func ExampleMessage() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a, b := node.open(), node.open()
	me, echo := register(a, "me"), register(b, "echo")
	if err := me.SendBytes(ctx, echo.ID(), 7, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	m, err := echo.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	// Send takes over the reference that Buffer gives, unless it fails.
	p := m.Buffer()
	err = echo.Send(ctx, m.From(), m.Tag(), p)
	m.Release()
	if err != nil {
		p.Release()
		log.Fatal(err)
	}
	if m, err = me.Recv(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %d bytes, tag %d\n", m.Bytes(), m.Len(), m.Tag())
	m.Release()
	// Output: hello, 5 bytes, tag 7
}

// A receiver may change a payload after Writable. A payload above 2 KiB that came over shared
// memory lies in the sender's memory, so Writable copies it.
func ExampleMessage_writable() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	a, b := node.open(), node.open()
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendBytes(ctx, you.ID(), 0, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	m, err := you.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	text, err := m.Writable() // m.Bytes(), unless m.ReadOnly()
	if err != nil {
		log.Fatal(err)
	}
	copy(text, "J")
	fmt.Printf("%s %v\n", text, m.ReadOnly())
	// Output: Jello false
}

// Selectors narrow a receive. Messages that they do not match stay for later receives.
func ExampleSelect() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	for tag := range uint64(3) {
		_ = me.SendBytes(ctx, me.ID(), tag, nil)
	}
	for _, sel := range [][]rocl.Select{{rocl.Tag(1)}, {rocl.From(me.ID())}, {}} {
		m, err := me.Recv(ctx, sel...)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Tag())
		m.Release()
	}
	// Output:
	// 1
	// 0
	// 2
}

func ExampleUndelivered() {
	ctx := context.Background()
	reports := make(chan rocl.Undelivered, 1)
	node := newNode()
	defer node.close()
	a, b := node.open(rocl.WithUndelivered(func(u rocl.Undelivered) { reports <- u })), node.open()
	me, you := register(a, "me"), register(b, "you")
	if err := me.SendBytes(ctx, you.ID(), 7, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	b.Close() // b has not received the message
	u := <-reports
	fmt.Println(u.From == me.ID(), u.To == you.ID(), u.Tag, errors.Is(u.Err, rocl.ErrGone))
	// Output: true true 7 true
}

// Every policy receives the same messages. The policies differ in what waiting costs.
func ExamplePollPolicy() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	for _, p := range []rocl.PollPolicy{
		rocl.PollAdaptive, // polls while polling has paid off lately
		rocl.PollNever,    // sleeps at once
		rocl.PollAlways,   // never sleeps, and takes a processor
	} {
		me := register(node.open(rocl.WithPoll(p)), "me")
		if err := me.SendBytes(ctx, me.ID(), uint64(p), nil); err != nil {
			log.Fatal(err)
		}
		m, err := me.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Tag())
		m.Release()
	}
	// Output:
	// 0
	// 1
	// 2
}

// A program chooses a machine as it finds any other resource: nodes are resources, with the labels
// that their operators gave them (dirserver --label gpu=yes).
func ExampleContext_FindAll_nodes() {
	ctx := context.Background()
	labels, err := directory.NewLabels(rocl.Attrs{"gpu": "yes"})
	if err != nil {
		log.Fatal(err)
	}
	node := &node{server: directory.NewServer(directory.WithLabels(labels))}
	defer node.close()
	c := node.open()
	if _, err := c.Register(ctx, rocl.Attrs{"type": "worker"}); err != nil {
		log.Fatal(err)
	}

	var best rocl.Found
	most := 0
	for n, err := range c.FindAll(ctx, rocl.Match{rocl.AttrKind: "node", "gpu": "yes"}, rocl.Want(rocl.AttrCores, rocl.AttrHost)) {
		if err != nil {
			log.Fatal(err)
		}
		if cores, err := strconv.Atoi(n.Attrs.GetString(rocl.AttrCores)); err == nil && cores > most {
			best, most = n, cores
		}
	}
	fmt.Println("a machine with a core at least:", most > 0)
	for w, err := range c.FindAll(ctx, rocl.Match{"type": "worker"}) {
		if err != nil {
			log.Fatal(err)
		}
		if w.ID.Node() == best.ID.Node() {
			fmt.Println("a worker there")
		}
	}
	// Output:
	// a machine with a core at least: true
	// a worker there
}

// A snapshot shows what lies unread in the mailboxes of any context of the node.
func ExampleSnapshot() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	program, operator := node.open(), node.open()
	slow := register(program, "slow")
	if err := slow.SendBytes(ctx, slow.ID(), 7, []byte("unread")); err != nil {
		log.Fatal(err)
	}
	s, err := operator.SnapshotOf(ctx, program.ID()) // what program.Snapshot() returns there
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range s.Resources {
		fmt.Println(r.Name, r.Messages, "tag", r.First.Tag)
	}
	fmt.Println(len(operator.Snapshot().Resources))
	// Output:
	// name=slow 1 tag 7
	// 0
}

// A program with handlers of its own shows in snapshots what they do.
func ExampleActivity() {
	node := newNode()
	defer node.close()
	c := node.open()
	r := register(c, "renderer")
	r.SetActivity(rocl.Activity{Handlers: func() []rocl.HandlerSnapshot {
		return []rocl.HandlerSnapshot{{Name: "render", Running: 2, Ended: 40}}
	}})
	for _, h := range c.Snapshot().Resources[0].Handlers {
		fmt.Println(h.Name, h.Running, "run,", h.Ended, "have ended")
	}
	// Output: render 2 run, 40 have ended
}

func ExampleHandlerSnapshot() {
	h := rocl.HandlerSnapshot{Name: "render", Running: 2, Oldest: time.Minute}
	fmt.Printf("%d calls of %s run, one for %v\n", h.Running, h.Name, h.Oldest)
	// Output: 2 calls of render run, one for 1m0s
}

func ExampleResourceSnapshot() {
	node := newNode()
	defer node.close()
	c := node.open()
	register(c, "idle")
	for _, r := range c.Snapshot().Resources {
		fmt.Println(r.Name, r.Messages, len(r.Waits), len(r.Senders))
	}
	// Output: name=idle 0 0 0
}

// The directory of each node of the cluster sums up what goes on there.
func ExampleNodeSummary() {
	ctx := context.Background()
	var c *rocl.Context
	sumUp := func(ctx context.Context, contexts []rocl.GID) ([]byte, error) { return c.Summarize(ctx, contexts) }
	node := &node{server: directory.NewServer(directory.WithSummary(sumUp))} // as dirserver does
	defer node.close()
	c = node.open()
	busy := register(node.open(), "busy")
	if err := busy.SendBytes(ctx, busy.ID(), 0, nil); err != nil {
		log.Fatal(err)
	}
	for s, err := range c.Summaries(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Contexts[0].Resources[0].Name, "of", len(s.Contexts), "contexts")
	}
	// Output: name=busy of 2 contexts
}

// Follow shows where the time of a message goes, without a change of its program.
func ExampleFollowed() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	operator, receiver := node.open(), node.open()
	me, to := register(node.open(), "me"), register(receiver, "to")
	fmt.Println(hello(me, to))
	if _, err := operator.Follow(ctx, to.ID(), 1, time.Minute); err != nil {
		log.Fatal(err)
	}
	fmt.Println(hello(me, to))
	followed, err := operator.Follow(ctx, to.ID(), 1, 0)
	for _, f := range followed {
		fmt.Println(f.Bytes, f.Transport, f.State, f.Stored >= 0 && f.Handled > 0, err)
	}
	// Output:
	// hello
	// hello
	// 5 inproc released true <nil>
}

// A program that traces gives messages the span of their sender. Package otelrocl does it with
// OpenTelemetry.
func ExampleWithTrace() {
	type key struct{}
	span := rocl.Trace{ID: [16]byte{1}, Span: [8]byte{2}, Flags: 1}
	node := newNode()
	defer node.close()
	c := node.open(rocl.WithTrace(func(ctx context.Context) rocl.Trace {
		t, _ := ctx.Value(key{}).(rocl.Trace)
		return t
	}))
	ctx := context.WithValue(context.Background(), key{}, span)
	r := register(c, "traced")
	if err := r.SendBytes(ctx, r.ID(), 0, nil); err != nil {
		log.Fatal(err)
	}
	m, err := r.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Println(m.Trace())
	// Output: 00-01000000000000000000000000000000-0200000000000000-01
}

func ExampleTrace() {
	var none rocl.Trace
	fmt.Println(none.IsValid(), rocl.Trace{ID: [16]byte{1}, Span: [8]byte{2}}.IsValid())
	// Output: false true
}

func ExampleExposedMemory() {
	n, network := newNode(), simnet.New(1) // in a program, the transport is that of package ofi
	defer n.close()
	a := n.open(rocl.WithTransports(network.AddHost("a").Start().Transport()))
	mem := []byte("read by nobody here")
	exposed, err := a.ExposeMemory(mem, true, false)
	if err != nil {
		log.Fatal(err)
	}
	defer exposed.Close()
	fmt.Println(len(exposed.Key()) > 0) // the key goes to the other context in a message
	// Output: true
}

func ExampleRemoteMemory() {
	n, network := newNode(), simnet.New(1) // in a program, the transport is that of package ofi
	defer n.close()
	a := n.open(rocl.WithTransports(network.AddHost("a").Start().Transport()))
	b := n.open(rocl.WithTransports(network.AddHost("b").Start().Transport()))
	exposed, err := a.ExposeMemory([]byte("the memory of a"), true, false)
	if err != nil {
		log.Fatal(err)
	}
	defer exposed.Close()
	ctx := context.Background()
	to, from := register(b, "to"), register(a, "from")
	if err := from.SendBytes(ctx, to.ID(), 1, exposed.Key()); err != nil {
		log.Fatal(err)
	}
	m, err := to.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	memory, err := b.RemoteMemory(m.From().Context(), bytes.Clone(m.Bytes()))
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Close(ctx)
	text := make([]byte, 6)
	err = memory.Read(ctx, 4, text)
	fmt.Println(b.IsOneSided(a.ID()), string(text), err)
	// Output: true memory <nil>
}
