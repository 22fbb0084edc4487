package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// The two processes of a bench: the parent measures, the peer answers. The
// peer does what it is told on its standard input, so that neither side's
// loop runs while the other's is measured. It ends with its input.

// pair is what the parent holds of a bench.
type pair struct {
	dir  string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	c    *rocl.Context
	me   *rocl.Resource
	peer rocl.GID
	raw  *net.TCPConn
	poll *polled
	unix *net.UnixConn
	ctx  context.Context
	buf  []byte
}

// Sizes of a find's request and reply, which the bare loop moves too.
const (
	findRequest = 16 + 6 + 6 + len("bench") + len("peer")
	findReply   = 16 + 40 + 6 + 6 + len("bench") + len("peer")
)

func newPair(o *options) (_ *pair, err error) {
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	if o.transport != "tcp" {
		return nil, fmt.Errorf("between two processes only tcp can be measured, not %q", o.transport)
	}
	p := &pair{ctx: context.Background()}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.dir, err = os.MkdirTemp("", "rocl-bench-"); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	sock := filepath.Join(p.dir, "directory.sock")
	p.cmd = exec.Command(exe, "bench-peer", sock, o.poll, strconv.Itoa(o.size))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if !p.out.Scan() {
		return nil, errors.New("the peer did not start")
	}
	addrs := strings.Fields(p.out.Text()) // tcp and unix
	if len(addrs) != 2 {
		return nil, fmt.Errorf("the peer says %q", p.out.Text())
	}
	nc, err := net.Dial("tcp", addrs[0])
	if err != nil {
		return nil, err
	}
	p.raw = nc.(*net.TCPConn)
	if p.poll, err = newPolled(p.raw); err != nil {
		return nil, err
	}
	uc, err := net.Dial("unix", addrs[1])
	if err != nil {
		return nil, err
	}
	p.unix = uc.(*net.UnixConn)
	p.c, err = rocl.Open(p.ctx, rocl.WithSocket(sock), rocl.JoinOnly(), rocl.WithPoll(policy), rocl.WithTransports(tcp.New()))
	if err != nil {
		return nil, err
	}
	if p.me, err = p.c.Register(p.ctx, rocl.Attrs{"bench": "parent"}); err != nil {
		return nil, err
	}
	f, err := p.c.Find(p.ctx, rocl.Match{"bench": "peer"})
	if err != nil {
		return nil, err
	}
	p.peer = f.ID
	p.buf = make([]byte, max(o.size, findReply, 1))
	return p, nil
}

// tell starts the peer on something; told waits until it is through.
func (p *pair) tell(what string, n int) error {
	_, err := fmt.Fprintln(p.in, what, n)
	return err
}

func (p *pair) told() error {
	if !p.out.Scan() {
		return errors.New("the peer is gone")
	}
	if s := p.out.Text(); s != "ok" {
		return fmt.Errorf("the peer says: %s", s)
	}
	return nil
}

func (p *pair) close() {
	if p.c != nil {
		p.c.Close()
	}
	for _, c := range []io.Closer{p.raw, p.unix, p.poll, p.in} {
		switch v := c.(type) {
		case *net.TCPConn:
			if v != nil {
				v.Close()
			}
		case *net.UnixConn:
			if v != nil {
				v.Close()
			}
		case *polled:
			if v != nil {
				v.Close()
			}
		case nil:
		default:
			v.Close()
		}
	}
	if p.cmd != nil && p.cmd.Process != nil {
		t := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		t.Stop()
	}
	os.RemoveAll(p.dir)
}

// peerMain is the other process.
func peerMain(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	sock, size := args[0], 0
	policy, err := (&options{poll: args[1]}).policy()
	if err != nil {
		return err
	}
	if size, err = strconv.Atoi(args[2]); err != nil {
		return err
	}
	c, err := rocl.Open(ctx, rocl.WithSocket(sock), rocl.WithPoll(policy), rocl.WithTransports(tcp.New()))
	if err != nil {
		return err
	}
	defer c.Close()
	me, err := c.Register(ctx, rocl.Attrs{"bench": "peer"})
	if err != nil {
		return err
	}
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer tl.Close()
	ul, err := net.Listen("unix", filepath.Join(filepath.Dir(sock), "raw.sock"))
	if err != nil {
		return err
	}
	defer ul.Close()
	fmt.Fprintln(out, tl.Addr(), ul.Addr())
	nc, err := tl.Accept()
	if err != nil {
		return err
	}
	defer nc.Close()
	poll, err := newPolled(nc.(*net.TCPConn))
	if err != nil {
		return err
	}
	defer poll.Close()
	uc, err := ul.Accept()
	if err != nil {
		return err
	}
	defer uc.Close()
	var busy sync.WaitGroup
	defer busy.Wait()
	busy.Go(func() { _ = answerRaw(uc, findRequest, findReply) })
	defer uc.Close()
	big := []byte(nil)
	s := bufio.NewScanner(in)
	for s.Scan() {
		var what string
		var n int
		if _, err := fmt.Sscan(s.Text(), &what, &n); err != nil {
			return err
		}
		switch what {
		case "echo-polled":
			err = echoRaw(poll, size, n)
		case "echo-blocking":
			err = echoRaw(nc, size, n)
		case "recv-raw":
			err = recvRaw(nc, size, n)
		case "recv-big":
			if big == nil {
				big = make([]byte, size)
			}
			err = recvBig(nc, big, n)
		case "echo":
			err = echo(ctx, c, me, n)
		case "recv":
			err = recv(ctx, me, n)
		default:
			err = fmt.Errorf("unknown task %q", what)
		}
		if err != nil {
			fmt.Fprintln(out, err)
			return err
		}
		fmt.Fprintln(out, "ok")
	}
	return nil
}

// echo sends back n messages, each in a buffer of its own as a server's answer
// would be.
func echo(ctx context.Context, c *rocl.Context, me *rocl.Resource, n int) error {
	for range n {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		b, err := c.Buffer(m.Len())
		if err != nil {
			return err
		}
		to, tag := m.From(), m.Tag()
		m.Release()
		if err := me.Send(ctx, to, tag, b); err != nil {
			return err
		}
	}
	return nil
}

// recv takes n messages, checks that those of each sender come in order, and
// answers once.
func recv(ctx context.Context, me *rocl.Resource, n int) error {
	var last rocl.GID
	next := map[uint64]uint64{} // by the sender's number, in the tag's upper half
	for range n {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		sender, k := m.Tag()>>40, m.Tag()&(1<<40-1)
		if next[sender] != k {
			return fmt.Errorf("message %d of sender %d came in place of %d", k, sender, next[sender])
		}
		next[sender]++
		last = m.From()
		m.Release()
	}
	return me.SendBytes(ctx, last, 0, []byte{1})
}
