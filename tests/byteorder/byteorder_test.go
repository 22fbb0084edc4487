// SPDX-License-Identifier: Apache-2.0

// Package byteorder_test lets processors of both byte orders talk with each other.
package byteorder_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peerSocket is the variable of the environment that makes this program the other end. It names the
// socket of the directory.
const peerSocket = "ROCL_BYTEORDER_SOCKET"

// A process of this machine and one on a big-endian processor, which qemu emulates, exchange
// messages, calls and packed values. Both send and expect the same values. The processes are on one
// node, but cannot share memory, in which numbers have the order of the machine.
//
// Promise (Transports): Messages, calls and packed values pass between byte orders.
func TestByteOrders(t *testing.T) {
	if sock := os.Getenv(peerSocket); sock != "" {
		ctx := eventually.Context(t)
		c := open(ctx, t, sock)
		converse(ctx, t, c, "s390x", "here")
		return
	}
	if os.Getenv("ROCL_QEMU") != "must" {
		t.Skip("compiles for minutes: make bigendian")
	}
	qemu, err := exec.LookPath("qemu-s390x-static")
	try.OK(t, err)
	bin := filepath.Join(t.TempDir(), "s390x")
	build := exec.Command("go", "test", "-c", "-o", bin, ".")
	build.Env = append(os.Environ(), "GOARCH=s390x", "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	try.OK(t, err, "%s", out)

	ctx, cancel := context.WithCancelCause(eventually.Context(t))
	sock := freeaddr.Socket(t)
	c := open(ctx, t, sock) // serves the directory until the other end has ended
	cmd := exec.Command(qemu, bin, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), peerSocket+"="+sock)
	var failed error // of the other end, once ended is closed
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out, errOut, code, err := subprocess.Run(ctx, cmd)
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		if failed = err; failed != nil {
			cancel(failed)
		}
	}()
	defer func() { // also if converse has ended the test
		cancel(errors.New("this end has failed"))
		<-ended
	}()
	converse(ctx, t, c, "here", "s390x")
	<-ended
	try.Check(t, failed, "the other end")
}

// open opens a context, and closes it when the test ends.
func open(ctx context.Context, t *testing.T, sock string) *rocl.Context {
	t.Helper()
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(sock)))(t)
	t.Cleanup(func() { try.Check(t, c.Close()) })
	return c
}

// raw is a struct that package codec copies where the byte order is that of the wire.
type raw struct {
	Yes  bool
	I8   int8
	I16  int16
	I32  int32
	I    int
	U    uint64
	F32  float32
	F64  float64
	C    complex128
	Pair [2]uint16
}

var (
	someRaw    = raw{true, -2, 0x102, 0x1020304, -0x1020304, 0xf1f2f3f4f5f6f7f8, 0.1, math.Pi, -1 + 0.1i, [2]uint16{1, 0x203}}
	someShorts = []int16{1, -2, 0x102}
	someLongs  = []int64{1, -2, 0x1020304} // XDR has four bytes for each
	someReals  = []float64{1, -0.1, math.MaxFloat64}
	someCplx   = []complex64{1 - 0.1i, -3 + 4i}
	someMap    = map[string][]int{"a": {1, -2, 0x1020304}} // CBOR
)

// many returns numbers of 3 MB, which package bulk moves.
func many() []uint32 {
	v := make([]uint32, 750_000)
	for i := range v {
		v[i] = uint32(i)
	}
	return v
}

// check returns v, or an error if v is not want.
func check[T any](v, want T) (T, error) {
	if !reflect.DeepEqual(v, want) {
		return v, fmt.Errorf("a %T has arrived as %.200v", v, v)
	}
	return v, nil
}

// answering makes a server answer the calls of a name, which have v as argument and result.
func answering[T any](s *rpc.Server, name string, v T) error {
	return rpc.Register(s, name, func(_ context.Context, in T) (T, error) { return check(in, v) })
}

// call makes such a call.
func call[T any](ctx context.Context, t *testing.T, cl *rpc.Client, server rocl.GID, name string, v T) {
	t.Helper()
	out := try.Get(rpc.Call[T, T](ctx, cl, server, name, v))(t)
	try.Works(check(out, v))(t)
}

// exchange sends v as a message, and receives it from the other end.
func exchange[T any](ctx context.Context, t *testing.T, r *rocl.Resource, other rocl.GID, tag uint64, v T) {
	t.Helper()
	try.OK(t, rocl.SendValue(ctx, r, other, tag, v))
	m := try.Get(r.Recv(ctx, rocl.Tag(tag)))(t)
	defer m.Release()
	got := try.Get(rocl.Value[T](m))(t)
	try.Works(check(got, v))(t)
}

// unpack unpacks values that both ends have packed.
func unpack[T pack.Number](t *testing.T, r *pack.Reader, want []T) {
	t.Helper()
	got := make([]T, len(want))
	try.OK(t, pack.Unpack(r, got, 1))
	try.Works(check(got, want))(t)
}

// converse is one end of the conversation.
func converse(ctx context.Context, t *testing.T, c *rocl.Context, me, other string) {
	task := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("byteorder"), tpvm.WithoutLaunch()))(t)
	defer func() { try.Check(t, task.Exit(ctx)) }()
	s := try.Get(rpc.NewServer(ctx, c, nil, rpc.WithCalls(func(s *rpc.Server) error {
		return errors.Join(answering(s, "raw", someRaw), answering(s, "many", many()), answering(s, "map", someMap))
	})))(t)
	defer func() { try.Check(t, s.Close(ctx)) }()
	cl := try.Get(rpc.NewClient(ctx, c))(t)
	defer func() { try.Check(t, cl.Close()) }()
	r := try.Get(c.Register(ctx, rocl.Attrs{"end": me, "server": s.ID().String(), "task": task.ID().String()}))(t)
	peer := try.Get(c.Await(ctx, rocl.Match{"end": other}, 1))(t)[0]
	server, e1 := rocl.ParseGID(peer.Attrs.GetString("server"))
	thread, e2 := rocl.ParseGID(peer.Attrs.GetString("task"))
	try.OK(t, errors.Join(e1, e2))

	exchange(ctx, t, r, peer.ID, 1, someRaw)
	exchange(ctx, t, r, peer.ID, 2, someReals)
	exchange(ctx, t, r, peer.ID, 3, someMap)
	call(ctx, t, cl, server, "raw", someRaw)
	call(ctx, t, cl, server, "many", many())
	call(ctx, t, cl, server, "map", someMap)
	for _, enc := range []pack.Encoding{pack.Default, pack.Raw, pack.InPlace} {
		b := task.Buffer(enc)
		try.OK(t, errors.Join(pack.Pack(b, someShorts, 1), pack.Pack(b, someLongs, 1), pack.Pack(b, someReals, 1), pack.Pack(b, someCplx, 1), b.PackString(me)))
		try.OK(t, task.Send(ctx, thread, int(enc), b))
		m := try.Get(task.Recv(ctx, thread, int(enc)))(t)
		unpack(t, &m.Reader, someShorts)
		unpack(t, &m.Reader, someLongs)
		unpack(t, &m.Reader, someReals)
		unpack(t, &m.Reader, someCplx)
		try.Gives(m.UnpackString())(t, other)
		m.Release()
	}
	try.OK(t, task.SendPacked(ctx, thread, 9, int16(-2), someReals, me)) // with the types
	var short int16
	reals, name := make([]float64, len(someReals)), ""
	try.Works(task.RecvInto(ctx, thread, 9, &short, reals, &name))(t)
	try.Works(check(reals, someReals))(t)
	try.Equal(t, fmt.Sprint(short, name), fmt.Sprint(-2, other))
	routes := c.Routes()
	if len(routes) != 1 || routes[0].Transport != "tcp" {
		t.Errorf("the routes are %+v, want one over tcp", routes)
	}
	exchange(ctx, t, r, peer.ID, 4, "end") // no call of the other end comes behind it
}
