// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/subprocess"
	"golang.org/x/sys/unix"
)

// Finds between nodes: each process is a node of its own on the loopback interface. Its one context
// serves the directory, which is a member of one cluster.

// spin is how long members that poll do so.
const spin = 200 * time.Microsecond

// bareDatagram is the size of a bare datagram in bytes: about that of a question and its answer.
const bareDatagram = 128

type nodeCluster struct {
	dir   string
	key   string // path of the key file; empty for no key
	nodes []*subprocess.Process
	c     *rocl.Context
	bare  *udp
	to    unix.RawSockaddrInet4
}

func member(join, key string, poll bool) rocl.Option {
	m := cluster.Member{Bind: "127.0.0.1:0", KeyFile: key}
	if join != "" {
		m.Join = []string{join}
	}
	if poll {
		m.Poll = spin
	}
	return rocl.WithMember(m)
}

// findNodes measures finds between nodes, and finds of resources that do not exist.
func findNodes(ctx context.Context, o *options) (*Result, error) {
	k := &nodeCluster{}
	defer k.close()
	if err := k.open(ctx, o); err != nil {
		return nil, err
	}
	there, nowhere := rocl.Match{"node": "1"}, rocl.Match{"node": "none"}
	ours := func() error {
		_, err := k.c.Find(ctx, there)
		return err
	}
	none := func() error {
		if f, err := k.c.Find(ctx, nowhere); !errors.Is(err, rocl.ErrNotFound) {
			return fmt.Errorf("%v is found, but no node has it: %w", f.ID, err)
		}
		return nil
	}
	buf := make([]byte, bareDatagram)
	bare := func() error {
		if err := k.bare.send(buf, &k.to); err != nil {
			return err
		}
		_, err := k.bare.recv(buf, o.poll == "always")
		return err
	}
	a, b, n := newTimes(), newTimes(), newTimes()
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		count := o.count
		if round < 0 {
			count = min(count, 1000) // warm up
		}
		if round == 0 {
			a, b, n = newTimes(), newTimes(), newTimes()
		}
		if err := k.nodes[0].WriteLine("echo", count, o.poll); err != nil {
			return nil, err
		}
		if err := a.round(count, bare); err != nil {
			return nil, err
		}
		if err := k.nodes[0].Expect(ctx, "ok"); err != nil {
			return nil, err
		}
		before := mallocs()
		if err := b.round(count, ours); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(count)
		if err := n.round(count, none); err != nil {
			return nil, err
		}
	}
	what := "a bare blocking UDP round trip"
	if o.poll == "always" {
		what = "a bare polled UDP round trip"
	}
	r := &Result{Bench: "find", Nodes: o.nodes, Sealed: o.sealed, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: what,
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Allocs: allocs}
	if o.nodes == 2 && o.poll == "always" && !o.sealed {
		r.Target = 1.5
	}
	r.Ratio = r.P50 / r.Raw
	r.Also = &Result{Bench: "no", Nodes: o.nodes, Sealed: o.sealed, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: "a find of what another node has",
		P50: n.p50(), P99: n.p99(), Raw: b.p50(), RawP99: b.p99(), Target: 3}
	r.Also.Ratio = r.Also.P50 / r.Also.Raw
	return r, nil
}

func (k *nodeCluster) open(ctx context.Context, o *options) (err error) {
	if k.dir, err = os.MkdirTemp("", "rocl-bench-"); err != nil {
		return err
	}
	if o.sealed {
		k.key = filepath.Join(k.dir, "key")
		if err := os.WriteFile(k.key, []byte(rand.Text()+"\n"), 0o600); err != nil {
			return err
		}
	}
	k.c, err = rocl.Open(ctx, rocl.WithSocket(filepath.Join(k.dir, "0.sock")), rocl.WithCluster("bench"), member("", k.key, o.poll == "always"))
	if err != nil {
		return err
	}
	me, err := k.c.Find(ctx, rocl.Match{rocl.AttrKind: "node"}) // finds this node, the only one yet
	if err != nil {
		return err
	}
	for i := 1; i < o.nodes; i++ {
		if err := k.start(ctx, i, me.Attrs.GetString(rocl.AttrAddr), o.poll == "always" && i == 1); err != nil {
			return err
		}
	}
	if k.bare, err = newUDP(); err != nil {
		return err
	}
	for {
		n := 0
		for _, err := range k.c.FindAll(ctx, rocl.Match{rocl.AttrKind: "node"}) {
			if err != nil {
				return err
			}
			n++
		}
		if n == o.nodes {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (k *nodeCluster) start(ctx context.Context, i int, join string, poll bool) error {
	n, err := subprocess.Start(subprocess.Self("bench-node", filepath.Join(k.dir, fmt.Sprint(i)+".sock"), join, k.key, strconv.FormatBool(poll), fmt.Sprint(i)))
	if err != nil {
		return err
	}
	k.nodes = append(k.nodes, n)
	addr, err := n.Line(ctx)
	if err != nil {
		return fmt.Errorf("a node: %w", err)
	}
	if i == 1 {
		to, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		k.to = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&k.to.Port))[:], to.Port())
	}
	return nil
}

func (k *nodeCluster) close() {
	for _, n := range k.nodes {
		_ = n.Stop()
	}
	if k.c != nil {
		k.c.Close()
	}
	if k.bare != nil {
		k.bare.close()
	}
	if k.dir != "" {
		os.RemoveAll(k.dir)
	}
}

// nodeMain is the main function of another node's process.
func nodeMain(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	poll, err := strconv.ParseBool(args[3])
	if err != nil {
		return err
	}
	c, err := rocl.Open(ctx, rocl.WithSocket(args[0]), rocl.WithCluster("bench"), member(args[1], args[2], poll))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Register(ctx, rocl.Attrs{"node": args[4]}); err != nil {
		return err
	}
	bare, err := newUDP()
	if err != nil {
		return err
	}
	defer bare.close()
	fmt.Fprintln(out, bare.addr)
	buf := make([]byte, bareDatagram)
	for s := bufio.NewScanner(in); s.Scan(); {
		var task, poll string
		var n int
		if _, err := fmt.Sscan(s.Text(), &task, &n, &poll); err != nil {
			return err
		}
		for range n {
			k, err := bare.recv(buf, poll == "always")
			if err == nil {
				err = bare.send(buf[:k], &bare.from)
			}
			if err != nil {
				return err
			}
		}
		fmt.Fprintln(out, "ok")
	}
	return nil
}

// udp is a bare socket. If it is polled, it is outside the runtime's poller.
type udp struct {
	fd   int
	addr string
	from unix.RawSockaddrInet4
	size uint32 // size of from
}

func newUDP() (*udp, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	u := &udp{fd: fd}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(fd); err == nil {
			u.addr = fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port)
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return u, nil
}

func (u *udp) send(b []byte, to *unix.RawSockaddrInet4) error {
	if _, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(u.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to)); e != 0 {
		return e
	}
	return nil
}

// recv receives a datagram. Without poll it sleeps for two seconds at most. The origin of the
// datagram is in from until the next call.
func (u *udp) recv(b []byte, poll bool) (int, error) {
	end := time.Time{}
	for idle := 0; ; idle++ {
		var n uintptr
		var e syscall.Errno
		if u.size = uint32(unsafe.Sizeof(u.from)); poll {
			n, _, e = syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(u.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&u.from)), uintptr(unsafe.Pointer(&u.size)))
		} else {
			n, _, e = syscall.Syscall6(unix.SYS_RECVFROM, uintptr(u.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(&u.from)), uintptr(unsafe.Pointer(&u.size)))
		}
		switch {
		case e == 0:
			return int(n), nil
		case e == syscall.EINTR:
		case e != syscall.EAGAIN || !poll:
			return 0, fmt.Errorf("waiting for a datagram: %w", e)
		case idle%1024 != 1023:
		case end.IsZero():
			end = time.Now().Add(2 * time.Second)
		case time.Now().After(end):
			return 0, errors.New("waiting for a datagram: none has come")
		}
	}
}

func (u *udp) close() { unix.Close(u.fd) }
