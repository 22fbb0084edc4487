// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/bulk"
	roclctx "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/group"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/tests/tree"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/work"
)

// A zeroUse uses what an option with a zero or a negative value has made: it provokes the use of
// the value. It returns the error with which the option was refused, or nil.
type zeroUse func(t *testing.T) error

// zeroUses has the uses of each exported function that makes an option of its parameters, by
// package and name.
var zeroUses = map[string][]zeroUse{
	"buffers.WithLimit": {usePool(buffers.WithLimit(0)), usePool(buffers.WithLimit(-1)), usePool(nil)},

	"bulk.OnTransfer":  {useBulk(bulk.OnTransfer(nil))},
	"bulk.WithLogger":  {useBulk(bulk.WithLogger(nil))},
	"bulk.PieceSize":   {useBulk(bulk.PieceSize(0)), useBulk(bulk.PieceSize(-1))},
	"bulk.Depth":       {useBulk(bulk.Depth(0)), useBulk(bulk.Depth(-1))},
	"bulk.Eager":       {useBulk(bulk.Eager(0)), useBulk(bulk.Eager(-1)), useBulk(nil)},
	"bulk.MaxRequests": {useBulk(bulk.MaxRequests(0)), useBulk(bulk.MaxRequests(-1))},

	"bulk.WithRegister": {useBulk(bulk.WithRegister()), useBulk(bulk.WithRegister(nil))},

	"dataflow.Name":     {useFlow(dataflow.Name("")), useFlow(nil)},
	"dataflow.Codec":    {useFlow(dataflow.Codec[int](nil))},
	"dataflow.Batch":    {useFlow(dataflow.Batch(0, 0, 0)), useFlow(dataflow.Batch(-1, 0, 0)), useFlow(dataflow.Batch(0, -1, -1))},
	"dataflow.Window":   {useFlow(dataflow.Window(0)), useFlow(dataflow.Window(-1))},
	"dataflow.Ordered":  {useFlow(dataflow.Ordered(0)), useFlow(dataflow.Ordered(-1))},
	"dataflow.Size":     {useFlow(dataflow.Size(0)), useFlow(dataflow.Size(-1))},
	"dataflow.Policy":   {useFlow(dataflow.Policy(nil)), useFlow(dataflow.Policy(dataflow.OnDemand(0))), useFlow(dataflow.Policy(dataflow.ByKey[int](nil)))},
	"dataflow.OnLoss":   {useFlow(dataflow.OnLoss[int](nil))},
	"dataflow.InGroup":  {useFlow(nil, dataflow.InGroup(nil, "", dataflow.Config{}))},
	"dataflow.Using":    {useFlow(nil, dataflow.Using(nil, dataflow.Config{})), useFlow(nil, nil)},
	"dataflow.LogStats": {useFlow(nil, dataflow.LogStats(nil, 0)), useFlow(nil, dataflow.LogStats(slog.New(slog.DiscardHandler), 0))},
	"dataflow.Trace":    {useFlow(nil, dataflow.Trace(nil, 0)), useFlow(nil, dataflow.Trace(nil, -1))},

	"directory.WithServe":        {useClient(directory.WithServe(nil))},
	"directory.WithClientLogger": {useClient(directory.WithClientLogger(nil))},
	"directory.WithTerms":        {useClient(directory.WithTerms(nil)), useClient(nil)},
	"directory.WithIdentity":     {useDirectory(directory.WithIdentity(nil))},
	"directory.WithDatabase":     {useDirectory(directory.WithDatabase(nil))},
	"directory.WithLogger":       {useDirectory(directory.WithLogger(nil))},
	"directory.Also":             {useDirectory(directory.Also()), useDirectory(directory.Also(""))},
	"directory.WithMembership":   {useDirectory(directory.WithMembership(nil))},
	"directory.WithLiving":       {useDirectory(directory.WithLiving(nil))},
	"directory.WithControl":      {useDirectory(directory.WithControl(nil))},
	"directory.WithSummary":      {useDirectory(directory.WithSummary(nil))},
	"directory.WithLabels":       {useDirectory(directory.WithLabels(directory.Labels{})), useDirectory(nil)},

	"pool.OnPanic": {usePanic(pool.OnPanic(nil)), usePanic(nil)},

	"rocl.WithSocket":       {useContext(lib.WithSocket("")), useContext(roclctx.WithDirectory(nil))},
	"rocl.WithTransports":   {useContext(lib.WithTransports(nil)), useContext(lib.WithTransports([]subsys.Transport{nil, nil}...))},
	"rocl.WithRules":        {useContext(lib.WithRules()), useContext(lib.WithRules(lib.Rule{}))},
	"rocl.WithListen":       {useContext(lib.WithListen()), useContext(lib.WithListen(""))},
	"rocl.WithPoll":         {useContext(lib.WithPoll(0)), useContext(lib.WithPoll(200))},
	"rocl.WithPollBudget":   {useContext(lib.WithPollBudget(0)), useContext(lib.WithPollBudget(-1))},
	"rocl.WithPollers":      {useContext(lib.WithPollers(0)), useContext(lib.WithPollers(-1))},
	"rocl.WithMailbox":      {useContext(lib.WithMailbox(0)), useContext(lib.WithMailbox(-1))},
	"rocl.WithMemory":       {useContext(lib.WithMemory(0)), useContext(lib.WithMemory(-1))},
	"rocl.WithLinger":       {useContext(lib.WithLinger(0)), useContext(lib.WithLinger(-1))},
	"rocl.WithGiveUp":       {useContext(lib.WithGiveUp(0)), useContext(lib.WithGiveUp(-1))},
	"rocl.WithCluster":      {useContext(lib.WithCluster(""))},
	"rocl.WithMember":       {useContext(lib.WithMember(nil))},
	"rocl.WithCertificates": {useContext(lib.WithCertificates("", "", ""))},
	"rocl.WithLogger":       {useContext(lib.WithLogger(nil))},
	"rocl.WithTrace":        {useContext(lib.WithTrace(nil))},
	"rocl.WithUndelivered":  {useContext(lib.WithUndelivered(nil)), useContext(nil)},
	"rocl.MailboxLimit":     {useRegister(lib.MailboxLimit(0)), useRegister(lib.MailboxLimit(-1))},
	"rocl.MailboxMessages":  {useRegister(lib.MailboxMessages(0)), useRegister(lib.MailboxMessages(-1))},
	"rocl.Over":             {useRegister(lib.Over()), useRegister(lib.Over(""))},
	"rocl.Unique":           {useRegister(lib.Unique()), useRegister(lib.Unique("")), useRegister(nil)},
	"rocl.Want":             {useFind(lib.Want()), useFind(lib.Want(""))},
	"rocl.Covered":          {useFind(lib.Covered(nil))},
	"rocl.At":               {useFind(lib.At("", 0, 0)), useFind(lib.At("n", 0, 0)), useFind(lib.At("n", 200, -1)), useFind(lib.At("", lib.Ge, 1))},
	"rocl.Least":            {useFind(lib.Least(""))},
	"rocl.Most":             {useFind(lib.Most("")), useFind(nil)},
	"rocl.Workers":          {useHandle(lib.Workers(0)), useHandle(lib.Workers(-1))},
	"rocl.Handling":         {useHandle(lib.Handling()), useHandle(lib.Handling(lib.Select{}))},
	"rocl.OnPanic":          {useHandle(lib.OnPanic(nil)), useHandle(nil)},

	"netrocl.WithRegister": {useListen(netrocl.WithRegister()), useListen(netrocl.WithRegister(nil)), useListen(nil)},

	"rpc.WithRegister":  {useCalls(rpc.WithRegister(), nil), useCalls(rpc.WithRegister(nil), nil)},
	"rpc.CallRegister":  {useCalls(nil, rpc.CallRegister()), useCalls(nil, rpc.CallRegister(nil))},
	"rpc.CallPolicies":  {useCalls(nil, rpc.CallPolicies(nil)), useCalls(nil, rpc.CallPolicies(rpc.Policies{"": {}}))},
	"rpc.WithPolicy":    {useCalls(nil, nil, rpc.WithPolicy(rpc.Policy{})), useCalls(nil, nil, rpc.WithPolicy(rpc.Policy{Attempts: -1}))},
	"rpc.Among":         {useCalls(nil, nil, rpc.Among(nil))},
	"rpc.DrainWithin":   {useServe(rpc.DrainWithin(0)), useServe(rpc.DrainWithin(-1))},
	"rpc.PublishLoad":   {useServe(rpc.PublishLoad(""))},
	"rpc.PublishLoadOf": {useServe(rpc.PublishLoadOf("", nil)), useServe(rpc.PublishLoadOf("load", nil))},
	"rpc.WithCall":      {useServe(rpc.WithCall[int, int]("", nil))},

	"rpc.CallInterceptors": {useCalls(nil, rpc.CallInterceptors()), useCalls(nil, rpc.CallInterceptors(nil))},
	"rpc.CallErrors":       {useCalls(nil, rpc.CallErrors(nil)), useCalls(nil, rpc.CallErrors(map[string]error{"": nil, "fails": nil}))},
	"rpc.CallOverflow":     {useCalls(nil, rpc.CallOverflow(0)), useCalls(nil, rpc.CallOverflow(-1)), useCalls(nil, nil)},
	"rpc.WithInterceptors": {useCalls(rpc.WithInterceptors(), nil), useCalls(rpc.WithInterceptors(nil), nil)},
	"rpc.WithErrors":       {useCalls(rpc.WithErrors(nil), nil), useCalls(rpc.WithErrors(map[string]error{"": nil, "fails": nil}), nil)},
	"rpc.WithOverflow":     {useCalls(rpc.WithOverflow(0), nil), useCalls(rpc.WithOverflow(-1), nil)},
	"rpc.WithLogger":       {useCalls(rpc.WithLogger(nil), nil)},
	"rpc.WithCalls":        {useCalls(rpc.WithCalls(nil), nil)},
	"rpc.Finding":          {useCalls(nil, nil, rpc.Finding()), useCalls(nil, nil, rpc.Finding(nil))},
	"rpc.InPool":           {useCalls(nil, nil, rpc.InPool(nil))},
	"rpc.InPoolAt":         {useCalls(nil, nil, rpc.InPoolAt(nil, 0)), useCalls(nil, nil, rpc.InPoolAt(nil, -1))},
	"rpc.WithCodecs":       {useCalls(nil, nil, rpc.WithCodecs[string, string](nil, nil))},
	"rpc.WithMetadata":     {useCalls(nil, nil, rpc.WithMetadata(nil)), useCalls(nil, nil, nil)},

	"tpvm.WithHostStarter": {useTask(tpvm.WithHostStarter(nil))},
	"tpvm.WithEnv":         {useTask(tpvm.WithEnv()), useTask(tpvm.WithEnv(""))},
	"tpvm.WithLauncher":    {useTask(tpvm.WithLauncher("")), usePod(tpvm.WithLauncher(""))},
	"tpvm.WithReady":       {useTask(tpvm.WithReady(nil)), usePod(tpvm.WithReady(nil))},
	"tpvm.WithContext":     {useTask(tpvm.WithContext(nil))},
	"tpvm.WithRocl":        {useTask(tpvm.WithRocl()), useTask(tpvm.WithRocl(nil))},
	"tpvm.WithRegister":    {useTask(tpvm.WithRegister()), useTask(tpvm.WithRegister(nil))},
	"tpvm.WithVM":          {useTask(tpvm.WithVM(""))},
	"tpvm.WithName":        {useTask(tpvm.WithName(""))},
	"tpvm.WithSignal":      {useTask(tpvm.WithSignal(nil))},
	"tpvm.WithLogger":      {useTask(tpvm.WithLogger(nil)), usePod(tpvm.WithLogger(nil))},
	"tpvm.WithExport":      {useTask(tpvm.WithExport("", nil)), useTask(tpvm.WithExport("f", nil))},
	"tpvm.WithMaxPrograms": {useTask(tpvm.WithMaxPrograms(0)), useTask(tpvm.WithMaxPrograms(-1)), useTask(nil)},
	"tpvm.Args":            {useSpawn(tpvm.Args()), useSpawn(tpvm.Args(""))},
	"tpvm.Env":             {useSpawn(tpvm.Env()), useSpawn(tpvm.Env(""))},
	"tpvm.Dir":             {useSpawn(tpvm.Dir(""))},
	"tpvm.OnHost":          {useSpawn(tpvm.OnHost(""))},
	"tpvm.OnArch":          {useSpawn(tpvm.OnArch(""))},
	"tpvm.Where":           {useSpawn(tpvm.Where(nil)), useSpawn(tpvm.Where(nil, nil)), useSpawn(nil)},
	"tpvm.Workers":         {useHandler(tpvm.Workers(0)), useHandler(tpvm.Workers(-1)), useHandler(nil)},

	"election.Above":        {useHold(election.Above(0)), useHold(nil)},
	"election.WithRegister": {useHold(election.WithRegister()), useHold(election.WithRegister(nil))},

	"work.PerWorker": {useQueue(work.PerWorker(0)), useQueue(work.PerWorker(-1)), useQueue(nil)},
	"work.Backlog":   {useQueue(work.Backlog(0)), useQueue(work.Backlog(-1))},
	"work.Attempts":  {useQueue(work.Attempts(0)), useQueue(work.Attempts(-1))},
	"work.Silence":   {useQueue(work.Silence(0)), useQueue(work.Silence(-1))},
	"work.Codec":     {useQueue(work.Codec[int](nil))},
	"work.Handlers":  {useWorker(work.Handlers(0)), useWorker(work.Handlers(-1)), useWorker(nil)},
	"work.Grace":     {useWorker(work.Grace(0)), useWorker(work.Grace(-1))},
}

// An option with a zero, nil or negative value, and an option that is nil, has its default, or is
// refused with an error that says so. Nothing panics, also where the value is used later.
//
// Promise (Options): An option that is zero, nil or negative has its default, or is refused with an
// error that says so. See also TestNilCodec.
//
// Promise (Options): A missing context, function, pool or `*rocl.Context` is an error. See also
// TestNothingGiven.
func TestZeroOptions(t *testing.T) {
	for name, uses := range zeroUses {
		for i, use := range uses {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				t.Setenv("ROCL_SOCKET", socket(t))
				err := use(t)
				if err == nil {
					return
				}
				first, _, _ := strings.Cut(err.Error(), ":")
				known := []string{"rocl", "rpc", "bulk", "tpvm", "directory", "dataflow", "work", "election"}
				if !slices.Contains(known, first) || strings.Contains(err.Error(), "nil pointer") {
					t.Errorf("not a clear error: %v", err)
				}
				t.Log(err)
			})
		}
	}
}

// A constructor that is given a nil context, and a second path that is empty, are refused with an
// error that says so.
func TestZeroArguments(t *testing.T) {
	ctx := eventually.Context(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for name, use := range map[string]func() error{
		"rpc.NewServer": func() error { _, err := rpc.NewServer(ctx, nil, nil); return err },
		"rpc.NewClient": func() error { _, err := rpc.NewClient(ctx, nil); return err },
		"bulk.Open":     func() error { _, err := bulk.Open(ctx, nil); return err },
		"election.Hold": func() error { _, err := election.Hold(ctx, nil, nil); return err },
		"live.Follow":   func() error { _, err := live.Follow(ctx, nil, nil); return err },
		"work.Serve": func() error {
			return work.Serve(ctx, nil, nil, func(context.Context, int) (int, error) { return 0, nil })
		},
		"rpc.Serve":  func() error { return rpc.Serve(ctx, nil, nil) },
		"group.Join": func() error { _, err := group.Join(ctx, nil, "g", nil); return err },
		"work.Open":  func() error { _, err := work.Open[int, int](ctx, nil, nil); return err },
		"dataflow.Work": func() error {
			return dataflow.Work[int, int](ctx, nil, dataflow.WorkFor{}, nil)
		},
		"netrocl.Listen": func() error { _, err := netrocl.Listen(ctx, nil, nil); return err },
		"netrocl.Dial":   func() error { _, err := netrocl.Dial(ctx, nil, nil); return err },
		"netrocl.DialID": func() error { _, err := netrocl.DialID(ctx, nil, lib.GID{}); return err },
		"directory.Also": func() error { return useDirectory(directory.Also(""))(t) },
	} {
		t.Setenv("ROCL_SOCKET", socket(t))
		want := "the context is nil"
		if name == "dataflow.Work" {
			want = "the context or the stage is nil"
		}
		if name == "directory.Also" {
			want = "the path is empty"
		}
		if err := use(); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("files in the working directory: %v %v", made, err)
	}
}

// useFlow returns a use of options in a graph with a farm, and with an elastic farm that gets no
// item.
func useFlow(o dataflow.Option, run ...dataflow.RunOption) zeroUse {
	return func(t *testing.T) error {
		pass := func(int) dataflow.Part[int, int] {
			return dataflow.Do(dataflow.Func[int, int](func(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
				return out.Send(ctx, in.Value)
			}))
		}
		n := 0
		count := func(context.Context, dataflow.Item[int]) error { n++; return nil }
		send := func(ctx context.Context, out dataflow.Out[int]) error { return out.Send(ctx, 1) }
		g, err := dataflow.New("zero", dataflow.Pipeline3(dataflow.From(send, o), dataflow.Farm(1, pass, o), dataflow.To(count)))
		if err == nil {
			if err = g.Run(eventually.Context(t), run...); err == nil && n != 1 {
				t.Errorf("%d items", n)
			}
		}
		_, elastic := dataflow.New("zero", dataflow.Pipeline3(dataflow.From(send), dataflow.Elastic[int, int]("f", o), dataflow.To(count)))
		return errors.Join(err, elastic)
	}
}

// useHold returns a use of an option of a held name.
func useHold(o election.Option) zeroUse {
	return func(t *testing.T) error {
		c, _ := two(t)
		term, err := election.Hold(eventually.Context(t), c, lib.Attrs{"name": "zero"}, o)
		if err == nil {
			err = term.Close()
		}
		return err
	}
}

// useQueue returns a use of an option in a queue with one task, and useWorker in its worker.
func useQueue(o work.Option) zeroUse { return useWork(o, nil) }

func useWorker(o work.Option) zeroUse { return useWork(nil, o) }

func useWork(queue, worker work.Option) zeroUse {
	return func(t *testing.T) error {
		c, _ := two(t)
		ctx, stop := context.WithCancel(eventually.Context(t))
		served := make(chan error, 1)
		go func() {
			served <- work.Serve(ctx, c, nil, func(_ context.Context, n int) (int, error) { return n, nil }, worker)
			stop()
		}()
		q, err := work.Open[int, int](ctx, c, nil, queue)
		if err == nil {
			for _, err = range q.Do(ctx, slices.Values([]int{1})) {
			}
			err = errors.Join(err, q.Close())
		}
		stop()
		if failed := <-served; failed != nil {
			return failed
		}
		return err
	}
}

// Each exported function that makes an option of its parameters has a use above.
func TestZeroOptionsAreAll(t *testing.T) {
	found := map[string]bool{}
	for name := range exportedOptions(t) {
		found[name] = true
		if zeroUses[name] == nil {
			t.Errorf("no test gives %s its zero value: add it to zeroUses", name)
		}
	}
	for name := range zeroUses {
		if !found[name] {
			t.Errorf("%s is no exported option any more", name)
		}
	}
}

// exportedOptions yields the exported functions, as PACKAGE.NAME, of the packages that can be
// imported, if they have parameters and return a type whose name ends in Option.
func exportedOptions(t *testing.T) iter.Seq[string] {
	skipped := []string{"internal", "tests", "examples", "cmd", "subsystest", "otelrpc", "ofi"} // otelrpc and ofi, modules of their own, have tests of their options
	return func(yield func(string) bool) {
		for _, f := range try.Get(tree.Go("..", 0, tree.IsCode))(t) {
			pkg := f.Folder()
			if slices.ContainsFunc(strings.Split(pkg, "/"), func(dir string) bool { return slices.Contains(skipped, dir) }) {
				continue
			}
			if pkg == "." {
				pkg = "rocl"
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && makesOption(fn) && !yield(pkg+"."+fn.Name.Name) {
					return
				}
			}
		}
	}
}

// makesOption reports whether fn is an exported function with parameters that returns an option.
func makesOption(fn *ast.FuncDecl) bool {
	if fn.Recv != nil || !fn.Name.IsExported() || len(fn.Type.Params.List) == 0 || fn.Type.Results == nil || len(fn.Type.Results.List) != 1 {
		return false
	}
	result := ""
	switch r := fn.Type.Results.List[0].Type.(type) {
	case *ast.Ident:
		result = r.Name
	case *ast.SelectorExpr:
		result = r.Sel.Name
	}
	return strings.HasSuffix(result, "Option")
}

// usePool gets and releases memory.
func usePool(o buffers.Option) zeroUse {
	return func(t *testing.T) error {
		p := buffers.New(o)
		defer p.Close()
		b, err := p.Get(100)
		if err == nil {
			b.Release()
		}
		return err
	}
}

// useListen listens with an option.
func useListen(o netrocl.ListenOption) zeroUse {
	return func(t *testing.T) error {
		c, _ := two(t)
		l, err := netrocl.Listen(eventually.Context(t), c, lib.Attrs{"n": "1"}, o)
		if err == nil {
			err = l.Close()
		}
		return err
	}
}

// useServe serves with an option until the server is found.
func useServe(o rpc.ServerOption) zeroUse {
	return func(t *testing.T) error {
		c, other := two(t)
		ctx, end := context.WithCancel(eventually.Context(t))
		defer end()
		go func() {
			_, _ = other.Await(ctx, lib.Match{"n": "1"}, 1)
			end()
		}()
		return rpc.Serve(ctx, c, lib.Attrs{"n": "1"}, o)
	}
}

// Promise (Options): The constructors of rpc, bulk, netrocl and tpvm take options for the
// registration of their resources.
func TestRegisterOptions(t *testing.T) {
	t.Setenv("ROCL_SOCKET", socket(t))
	c, _ := two(t)
	ctx := eventually.Context(t)
	for name, use := range map[string]func(lib.RegisterOption) (io.Closer, error){
		"rpc.NewClient": func(o lib.RegisterOption) (io.Closer, error) { return rpc.NewClient(ctx, c, rpc.CallRegister(o)) },
		"rpc.NewServer": func(o lib.RegisterOption) (io.Closer, error) {
			s, err := rpc.NewServer(ctx, c, nil, rpc.WithRegister(o))
			return closer(func() error { return s.Close(ctx) }), err
		},
		"bulk.Open": func(o lib.RegisterOption) (io.Closer, error) {
			ep, err := bulk.Open(ctx, c, bulk.WithRegister(o))
			return closer(func() error { return ep.Close(ctx) }), err
		},
		"netrocl.Listen": func(o lib.RegisterOption) (io.Closer, error) {
			return netrocl.Listen(ctx, c, nil, netrocl.WithRegister(o))
		},
		"tpvm.Enrol": func(o lib.RegisterOption) (io.Closer, error) {
			task, err := tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithRegister(o))
			return closer(func() error { return task.Exit(ctx) }), err
		},
	} {
		kind := map[string]string{"rpc.NewClient": "rpc", "rpc.NewServer": "rpc", "bulk.Open": "bulk", "netrocl.Listen": "netrocl", "tpvm.Enrol": "name"}[name]
		first := try.Get(use(lib.Unique(kind)))(t, name)
		try.Fails(use(lib.Unique(kind)))(t, lib.ErrExists, "a second %s", name)
		try.OK(t, first.Close(), name)
	}
}

type closer func() error

func (f closer) Close() error { return f() }

// two opens two contexts of the node.
func two(t *testing.T) (a, b *lib.Context) {
	sock := os.Getenv("ROCL_SOCKET")
	return open(t, sock), open(t, sock)
}

func useContext(o lib.Option) zeroUse {
	return func(t *testing.T) error {
		ctx := eventually.Context(t)
		a, err := lib.Open(ctx, o)
		if err != nil {
			return err
		}
		defer a.Close()
		b := open(t, os.Getenv("ROCL_SOCKET"))
		ra, rb := register(t, a, lib.Attrs{"n": "1"}), register(t, b, nil)
		pass(t, ra, rb, 1, []byte("there"))
		pass(t, rb, ra, 1, []byte("and back"))
		try.OK(t, rb.Close())
		_ = ra.SendBytes(ctx, rb.ID(), 1, nil) // undelivered, or refused
		try.Get(b.Find(ctx, lib.Match{"n": "1"}))(t)
		return a.Close()
	}
}

func useRegister(o lib.RegisterOption) zeroUse {
	return func(t *testing.T) error {
		a, b := two(t)
		r, err := a.Register(eventually.Context(t), lib.Attrs{"n": "1"}, o)
		if err != nil {
			return err
		}
		other := register(t, b, nil)
		pass(t, other, r, 1, []byte("there"))
		pass(t, r, other, 1, []byte("and back"))
		return nil
	}
}

func useFind(o lib.FindOption) zeroUse {
	return func(t *testing.T) error {
		a, b := two(t)
		register(t, a, lib.Attrs{"n": "1"})
		ctx := eventually.Context(t)
		_, first := b.Find(ctx, lib.Match{"n": "1"}, o)
		for _, err := range b.FindAll(ctx, lib.Match{"n": "1"}, o) {
			try.Equal(t, err == nil, first == nil, "FindAll: %v, Find: %v", err, first)
		}
		if _, err := b.Await(ctx, lib.Match{"n": "1"}, 1, o); err != nil && first == nil {
			t.Errorf("Await: %v", err)
		}
		for ev, err := range b.Watch(ctx, lib.Match{"n": "1"}, o) {
			if err != nil && first == nil && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Watch: %v", err)
			}
			if err != nil || ev.Kind == lib.Synced {
				break
			}
		}
		return first
	}
}

func useHandle(o lib.HandleOption) zeroUse {
	return func(t *testing.T) error {
		a, b := two(t)
		server, client := register(t, a, nil), register(t, b, nil)
		ended := make(chan error, 1)
		go func() {
			ended <- server.Handle(t.Context(), func(m *lib.Message) {
				if m.Tag() == 1 {
					panic("intended")
				}
				_ = server.ReplyBytes(t.Context(), m, nil)
			}, o)
		}()
		ctx, cancel := context.WithCancel(eventually.Context(t))
		defer cancel()
		answered := make(chan error, 1)
		go func() {
			_, err := client.CallBytes(ctx, server.ID(), 1, nil)
			if errors.Is(err, lib.ErrNoReply) {
				var m *lib.Message
				if m, err = client.CallBytes(ctx, server.ID(), 2, nil); err == nil {
					m.Release()
				}
			}
			answered <- err
		}()
		select {
		case err := <-ended: // refused
			cancel()
			<-answered
			return err
		case err := <-answered:
			try.Check(t, err)
			try.Check(t, server.Close())
			return <-ended
		}
	}
}

func useClient(o directory.ClientOption) zeroUse {
	return func(t *testing.T) error {
		path := os.Getenv("ROCL_SOCKET")
		s, err := directory.Listen(path)
		if err != nil {
			return err
		}
		defer func() { s.Close() }()
		c, err := directory.Join(t.Context(), directory.DialSocket(path), o)
		if err != nil {
			return err
		}
		defer c.Close()
		s.Close() // the client logs that, and looks for the next server
		if s, err = directory.Listen(path); err != nil {
			return err
		}
		_, err = c.Register(eventually.Context(t), c.Self().WithSerial(1), new(resource.List))
		return err
	}
}

func useDirectory(o directory.Option) zeroUse {
	return func(t *testing.T) error {
		path := os.Getenv("ROCL_SOCKET")
		s, err := directory.Listen(path, o)
		if err != nil {
			return err
		}
		t.Cleanup(func() { s.Close() }) // after c
		c := open(t, path, lib.JoinOnly())
		register(t, c, lib.Attrs{"n": "1"})
		_, err = c.Find(eventually.Context(t), lib.Match{"n": "1"})
		return err
	}
}

func usePanic(o pool.Option) zeroUse {
	return func(t *testing.T) error {
		s, err := pool.NewSet(pool.Config{Pools: []pool.PoolConfig{{Name: "p"}}, Streams: []pool.StreamConfig{{Pools: []string{"p"}}}}, o)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		for _, f := range []func(context.Context){func(context.Context) { panic("intended") }, func(context.Context) { close(done) }} {
			if err := s.Default().Submit(t.Context(), pool.Unit{Run: f}); err != nil {
				return err
			}
		}
		<-done
		return s.Close(t.Context())
	}
}

func useBulk(o bulk.Option) zeroUse {
	return func(t *testing.T) error {
		a, b := two(t)
		ctx := eventually.Context(t)
		from, err := bulk.Open(ctx, a, o)
		if err != nil {
			return err
		}
		defer from.Close(ctx)
		to, err := bulk.Open(ctx, b, o)
		if err != nil {
			return err
		}
		defer to.Close(ctx)
		r, err := from.Expose(bulk.ReadOnly, bulk.Bytes(make([]byte, 3<<20)))
		if err != nil {
			return err
		}
		arg := r.Argument()
		n, err := to.PullArgument(ctx, &arg, 0, make([]byte, 3<<20))
		if err == nil && n != 3<<20 {
			t.Errorf("pulled %d bytes", n)
		}
		return err
	}
}

var errIntended = errors.New("intended")

// useCalls makes calls that succeed, fail, panic and have large arguments and results.
func useCalls(so rpc.ServerOption, co rpc.ClientOption, opts ...rpc.Option) zeroUse {
	return func(t *testing.T) error {
		a, b := two(t)
		ctx := eventually.Context(t)
		s, err := rpc.NewServer(ctx, a, lib.Attrs{"n": "1"}, so)
		if err != nil {
			return err
		}
		defer s.Close(ctx)
		err = rpc.Register(s, "f", func(_ context.Context, in string) (string, error) {
			switch in {
			case "panic":
				panic(in)
			case "fail":
				return "", errIntended
			}
			return in, nil
		}, opts...)
		if err != nil {
			return err
		}
		c, err := rpc.NewClient(ctx, b, co)
		if err != nil {
			return err
		}
		defer c.Close()
		for _, in := range []string{"a", "panic", "fail", strings.Repeat("x", 3<<20)} {
			out, err := rpc.Call[string, string](ctx, c, s.ID(), "f", in, opts...)
			if fails := in == "panic" || in == "fail"; fails && err == nil || !fails && (err != nil || out != in) {
				t.Errorf("call with %.9q: %v", in, err)
			}
		}
		_, err = rpc.CallAny[string, string](ctx, c, lib.Match{"n": "1"}, "f", "a", opts...)
		return err
	}
}

// withTask enrols a task, calls f, and ends the task.
func withTask(t *testing.T, o tpvm.Option, f func(ctx context.Context, task *tpvm.Task) error) error {
	ctx := eventually.Context(t)
	task, err := tpvm.Enrol(ctx, tpvm.WithVM("zero"), o)
	if err != nil {
		return err
	}
	defer func() { try.OK(t, task.Exit(ctx)) }()
	return f(ctx, task)
}

// useTask enrols a task, signals it, adds a host that does not exist, and starts a program.
func useTask(o tpvm.Option) zeroUse {
	return func(t *testing.T) error {
		t.Setenv("PATH", "/bin:/usr/bin") // no shell reaches the host
		return withTask(t, o, func(ctx context.Context, task *tpvm.Task) error {
			if err := task.Signal(ctx, task.ID(), posix.SIGCONT); err != nil {
				return err
			}
			return startTrue(ctx, t, task)
		})
	}
}

// startTrue starts the program true and waits for its end.
func startTrue(ctx context.Context, t *testing.T, task *tpvm.Task, opts ...tpvm.SpawnOption) error {
	ps, err := task.Start(ctx, "/bin/true", 1, opts...)
	if err != nil {
		return err
	}
	try.Equal(t, try.Get(ps[0].Wait(ctx))(t).Code, 0, "ended with")
	return nil
}

func usePod(o tpvm.Option) zeroUse {
	return func(t *testing.T) error {
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- tpvm.ServePod(ctx, tpvm.WithVM("zero"), o) }()
		c := open(t, os.Getenv("ROCL_SOCKET"))
		eventually.True(t, "the pod is there", func() bool {
			_, err := c.Find(t.Context(), lib.Match{"type": "systhread"})
			return err == nil
		})
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) { // the pod may be about to start
			return err
		}
		return nil
	}
}

func useSpawn(o tpvm.SpawnOption) zeroUse {
	return func(t *testing.T) error {
		return withTask(t, nil, func(ctx context.Context, task *tpvm.Task) error { return startTrue(ctx, t, task, o) })
	}
}

func useHandler(o tpvm.HandlerOption) zeroUse {
	return func(t *testing.T) error {
		return withTask(t, nil, func(ctx context.Context, task *tpvm.Task) error {
			done := make(chan struct{})
			remove, err := task.AddHandler(tpvm.AnyTask, 1, tpvm.AnyContext, func(context.Context, *tpvm.Message) { close(done) }, o)
			if err != nil {
				return err
			}
			defer remove()
			try.OK(t, task.SendBytes(ctx, task.ID(), 1, nil))
			<-done
			return nil
		})
	}
}
