// SPDX-License-Identifier: Apache-2.0

package main

// #cgo CFLAGS: -Wno-unused
// #include "shim.h"
import "C"

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// lib is the state of the process. PVM's functions have no argument for the state.
var lib = newLibrary((*int32)(unsafe.Pointer(&C.pvm_errno)), program{environ: exported, abort: func() { C.abort() }, settle: func() int { return int(C.shim_settle()) }})

func init() { C.shim_at_exit() }

// exportList is the variable that names the variables for spawned programs, separated by colons.
const exportList = "PVM_EXPORT"

// getenv returns a variable of the C environment, which the program may have set. Go's environment
// is a copy from the start of the process.
func getenv(name string) (string, bool) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	v := C.shim_getenv(n)
	return C.GoString(v), v != nil
}

func setenv(name, value string) {
	n, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(v))
	C.shim_setenv(n, v)
}

// exported returns the variables that spawned programs get, as NAME=VALUE.
func exported() (env []string) {
	list, _ := getenv(exportList)
	if list == "" {
		return nil
	}
	for name := range strings.SplitSeq(list, ":") {
		if v, ok := getenv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, exportList+"="+list)
}

// ints returns an array of C ints as Go ints.
func ints(p *C.int, n C.int) []int {
	if p == nil || n < 1 {
		return nil
	}
	s := make([]int, n)
	for i, v := range unsafe.Slice(p, n) {
		s[i] = int(v)
	}
	return s
}

// array returns memory for n values that the program reads. The next call of the same function
// frees it, as PVM's functions do.
func array[T any](last **T, n int) []T {
	C.free(unsafe.Pointer(*last))
	var z T
	*last = (*T)(C.calloc(C.size_t(max(n, 1)), C.size_t(unsafe.Sizeof(z))))
	return unsafe.Slice(*last, n)
}

// intArray is array with the values vs.
func intArray(last **C.int, vs []int) {
	a := array(last, len(vs))
	for i, v := range vs {
		a[i] = C.int(v)
	}
}

// cstrings are strings that the program reads until they are reset.
type cstrings []*C.char

func (s *cstrings) reset() {
	for _, p := range *s {
		C.free(unsafe.Pointer(p))
	}
	*s = (*s)[:0]
}

func (s *cstrings) add(text string) *C.char {
	p := C.CString(text)
	*s = append(*s, p)
	return p
}

// results holds the memory to which functions of PVM return pointers.
var results struct {
	siblings    *C.int
	hosts       *C.struct_pvmhostinfo
	hostTexts   cstrings
	tasks       *C.struct_pvmtaskinfo
	taskTexts   cstrings
	strerror    *C.char
	noResets    *C.int
	classes     *C.struct_pvmmboxinfo
	classTexts  cstrings
	classArrays []*C.int
}

// set stores a result where the program wants it. A nil p is ignored.
func set(p *C.int, v int) {
	if p != nil {
		*p = C.int(v)
	}
}

func done(err error) (int, error) { return 0, err }

//export libpvm3AtExit
func libpvm3AtExit() { lib.atExit() }

//export pvm_mytid
func pvm_mytid() C.int {
	return C.int(lib.enrolled("pvm_mytid", func(context.Context) (int, error) { return lib.tid, nil }))
}

//export pvm_exit
func pvm_exit() C.int {
	return C.int(lib.call("pvm_exit", func() (int, error) { return done(lib.exit(context.Background())) }))
}

//export pvm_parent
func pvm_parent() C.int {
	return C.int(lib.quiet(func(context.Context) (int, error) {
		if lib.family.parent < 0 {
			return 0, code(lib.family.parent)
		}
		return lib.family.parent, nil
	}))
}

//export pvm_siblings
func pvm_siblings(tids **C.int) C.int {
	return C.int(lib.enrolled("pvm_siblings", func(ctx context.Context) (int, error) {
		s, err := lib.siblings(ctx)
		if err != nil {
			return 0, err
		}
		intArray(&results.siblings, s)
		if tids != nil {
			*tids = results.siblings
		}
		return len(s), nil
	}))
}

//export pvm_spawn
func pvm_spawn(task *C.char, argv **C.char, flag C.int, where *C.char, count C.int, tids *C.int) C.int {
	var args []string
	for argv != nil && *argv != nil {
		args = append(args, C.GoString(*argv))
		argv = (**C.char)(unsafe.Add(unsafe.Pointer(argv), unsafe.Sizeof(argv)))
	}
	return C.int(lib.enrolled("pvm_spawn", func(ctx context.Context) (int, error) {
		all, started, err := lib.spawn(ctx, C.GoString(task), args, int(flag), C.GoString(where), int(count))
		if err == nil && tids != nil {
			for i, tid := range all {
				unsafe.Slice(tids, count)[i] = C.int(tid)
			}
		}
		return started, err
	}))
}

//export pvm_kill
func pvm_kill(tid C.int) C.int {
	return C.int(lib.enrolled("pvm_kill", func(ctx context.Context) (int, error) {
		return done(lib.signal(ctx, int(tid), syscall.SIGTERM))
	}))
}

//export pvm_sendsig
func pvm_sendsig(tid, signal C.int) C.int {
	return C.int(lib.enrolled("pvm_sendsig", func(ctx context.Context) (int, error) {
		return done(lib.signal(ctx, int(tid), syscall.Signal(signal)))
	}))
}

//export pvm_pstat
func pvm_pstat(tid C.int) C.int {
	return C.int(lib.quiet(func(ctx context.Context) (int, error) { return done(lib.status(ctx, int(tid))) }))
}

//export pvm_mstat
func pvm_mstat(host *C.char) C.int {
	return C.int(lib.quiet(func(ctx context.Context) (int, error) {
		if host == nil || *host == 0 {
			return 0, badParam
		}
		_, err := lib.hostNamed(ctx, C.GoString(host))
		return done(err)
	}))
}

//export pvm_tasks
func pvm_tasks(where C.int, ntask *C.int, tasks **C.struct_pvmtaskinfo) C.int {
	return C.int(lib.enrolled("pvm_tasks", func(ctx context.Context) (int, error) {
		ts, err := lib.tasks(ctx, int(where))
		if err != nil {
			return 0, err
		}
		set(ntask, len(ts))
		if tasks == nil {
			return 0, nil
		}
		results.taskTexts.reset()
		a := array(&results.tasks, len(ts))
		for i, t := range ts {
			a[i] = C.struct_pvmtaskinfo{
				ti_tid: C.int(t.tid), ti_ptid: C.int(t.parent), ti_host: C.int(t.host), ti_flag: C.int(t.flag),
				ti_a_out: results.taskTexts.add(t.program), ti_pid: C.int(t.pid),
			}
		}
		*tasks = results.tasks
		return 0, nil
	}))
}

//export pvm_config
func pvm_config(nhost, narch *C.int, hosts **C.struct_pvmhostinfo) C.int {
	return C.int(lib.enrolled("pvm_config", func(ctx context.Context) (int, error) {
		hs, err := lib.hosts(ctx)
		if err != nil {
			return 0, err
		}
		arches := map[string]bool{}
		for _, h := range hs {
			arches[h.arch] = true
		}
		set(nhost, len(hs))
		set(narch, len(arches))
		if hosts == nil {
			return 0, nil
		}
		results.hostTexts.reset()
		a := array(&results.hosts, len(hs))
		for i, h := range hs {
			a[i] = C.struct_pvmhostinfo{
				hi_tid: C.int(h.tid), hi_name: results.hostTexts.add(h.name), hi_arch: results.hostTexts.add(h.arch),
				hi_speed: 1000, hi_dsig: signature,
			}
		}
		*hosts = results.hosts
		return 0, nil
	}))
}

//export pvm_tidtohost
func pvm_tidtohost(tid C.int) C.int {
	return C.int(lib.enrolled("pvm_tidtohost", func(ctx context.Context) (int, error) { return lib.host(int(tid)) }))
}

//export pvm_notify
func pvm_notify(what, tag, count C.int, tids *C.int) C.int {
	return C.int(lib.enrolled("pvm_notify", func(ctx context.Context) (int, error) {
		return done(lib.notify(ctx, int(what), int(tag), int(count), ints(tids, count)))
	}))
}

//export pvm_export
func pvm_export(name *C.char) C.int {
	return C.int(lib.call("pvm_export", func() (int, error) {
		if name == nil {
			return 0, badParam
		}
		list, _ := getenv(exportList)
		if n := C.GoString(name); n == "" {
			return 0, nil
		} else if list == "" {
			setenv(exportList, n)
		} else if !strings.Contains(":"+list+":", ":"+n+":") {
			setenv(exportList, list+":"+n)
		}
		return 0, nil
	}))
}

//export pvm_unexport
func pvm_unexport(name *C.char) C.int {
	return C.int(lib.call("pvm_unexport", func() (int, error) {
		if name == nil {
			return 0, badParam
		}
		list, _ := getenv(exportList)
		var rest []string
		for n := range strings.SplitSeq(list, ":") {
			if n != "" && n != C.GoString(name) {
				rest = append(rest, n)
			}
		}
		setenv(exportList, strings.Join(rest, ":"))
		return 0, nil
	}))
}

//export pvm_archcode
func pvm_archcode(arch *C.char) C.int {
	return C.int(lib.enrolled("pvm_archcode", func(ctx context.Context) (int, error) {
		hs, err := lib.hosts(ctx)
		if err != nil {
			return 0, err
		}
		for _, h := range hs {
			if h.arch == C.GoString(arch) {
				return signature, nil
			}
		}
		return 0, notFound
	}))
}

//export pvm_hostsync
func pvm_hostsync(host C.int, clock, delta *C.struct_timeval) C.int {
	return C.int(lib.enrolled("pvm_hostsync", func(ctx context.Context) (int, error) {
		if _, ok, err := lib.hostWith(ctx, int(host)); err != nil || !ok {
			return 0, cmp.Or(err, error(noHost))
		}
		if int(host) != hostOf(lib.tid) {
			return 0, notImpl // the clock of another host cannot be read
		}
		now := time.Now()
		if clock != nil {
			*clock = C.struct_timeval{tv_sec: C.long(now.Unix()), tv_usec: C.long(now.Nanosecond() / 1000)}
		}
		if delta != nil {
			*delta = C.struct_timeval{}
		}
		return 0, nil
	}))
}

//export pvm_halt
func pvm_halt() C.int {
	return C.int(lib.enrolled("pvm_halt", func(ctx context.Context) (int, error) { return done(lib.halt(ctx)) }))
}

//export pvm_start_pvmd
func pvm_start_pvmd(argc C.int, argv **C.char, block C.int) C.int {
	return C.int(lib.enrolled("pvm_start_pvmd", func(context.Context) (int, error) { return 0, dupHost })) // none is needed
}

// unsupported returns the result of calls that have no meaning without pvmd.
func unsupported(name string) C.int {
	return C.int(lib.call(name, func() (int, error) { return 0, notImpl }))
}

//export pvm_reg_hoster
func pvm_reg_hoster() C.int { return unsupported("pvm_reg_hoster") }

//export pvm_reg_rm
func pvm_reg_rm(hosts **C.struct_pvmhostinfo) C.int { return unsupported("pvm_reg_rm") }

//export pvm_reg_tasker
func pvm_reg_tasker() C.int { return unsupported("pvm_reg_tasker") }

//export pvm_reg_tracer
func pvm_reg_tracer(tctx, ttag, octx, otag C.int, mask *C.char, buffer, options C.int) C.int {
	return unsupported("pvm_reg_tracer")
}

//export pvm_tickle
func pvm_tickle(narg C.int, args, nresult, res *C.int) C.int { return unsupported("pvm_tickle") }

//export pvm_getfds
func pvm_getfds(fds **C.int) C.int { return unsupported("pvm_getfds") }

//export pvm_addhosts
func pvm_addhosts(hosts **C.char, count C.int, infos *C.int) C.int {
	return changeHosts("pvm_addhosts", hosts, count, infos, lib.addHosts)
}

//export pvm_delhosts
func pvm_delhosts(hosts **C.char, count C.int, infos *C.int) C.int {
	return changeHosts("pvm_delhosts", hosts, count, infos, lib.deleteHosts)
}

func changeHosts(name string, hosts **C.char, count C.int, infos *C.int, change func(names []string) []int) C.int {
	return C.int(lib.enrolled(name, func(context.Context) (int, error) {
		if count < 1 || hosts == nil {
			return 0, badParam
		}
		var names []string
		for _, h := range unsafe.Slice(hosts, count) {
			names = append(names, C.GoString(h))
		}
		done := 0
		for i, info := range change(names) {
			if info >= 0 {
				done++
			}
			if infos != nil {
				unsafe.Slice(infos, count)[i] = C.int(info)
			}
		}
		return done, nil
	}))
}

//export pvm_initsend
func pvm_initsend(encoding C.int) C.int {
	return C.int(lib.call("pvm_initsend", func() (int, error) { return lib.buffers.initSend(int(encoding)) }))
}

//export pvm_mkbuf
func pvm_mkbuf(encoding C.int) C.int {
	return C.int(lib.call("pvm_mkbuf", func() (int, error) {
		b, err := lib.buffers.make(int(encoding))
		return b.number(), err
	}))
}

//export pvm_freebuf
func pvm_freebuf(bufid C.int) C.int {
	return C.int(lib.call("pvm_freebuf", func() (int, error) { return done(lib.buffers.free(int(bufid))) }))
}

//export pvm_getsbuf
func pvm_getsbuf() C.int {
	return C.int(lib.call("pvm_getsbuf", func() (int, error) { return lib.buffers.send.number(), nil }))
}

//export pvm_setsbuf
func pvm_setsbuf(bufid C.int) C.int {
	return C.int(lib.call("pvm_setsbuf", func() (int, error) { return lib.buffers.setSend(int(bufid)) }))
}

//export pvm_getrbuf
func pvm_getrbuf() C.int {
	return C.int(lib.call("pvm_getrbuf", func() (int, error) { return lib.buffers.recv.number(), nil }))
}

//export pvm_setrbuf
func pvm_setrbuf(bufid C.int) C.int {
	return C.int(lib.call("pvm_setrbuf", func() (int, error) { return lib.buffers.setRecv(int(bufid)) }))
}

//export pvm_bufinfo
func pvm_bufinfo(bufid C.int, bytes, tag, tid *C.int) C.int {
	return C.int(lib.call("pvm_bufinfo", func() (int, error) {
		i, err := lib.info(context.Background(), int(bufid))
		if err == nil {
			set(bytes, i.len)
			set(tag, i.tag)
			set(tid, i.src)
		}
		return 0, err
	}))
}

//export pvm_getminfo
func pvm_getminfo(bufid C.int, info *C.struct_pvmminfo) C.int {
	return C.int(lib.call("pvm_getminfo", func() (int, error) {
		if info == nil {
			return 0, badParam
		}
		i, err := lib.info(context.Background(), int(bufid))
		if err == nil {
			*info = C.struct_pvmminfo{
				len: C.int(i.len), ctx: C.int(i.ctx), tag: C.int(i.tag), wid: C.int(i.wid),
				enc: C.int(i.enc), crc: C.int(i.crc), src: C.int(i.src), dst: C.int(i.dst),
			}
		}
		return 0, err
	}))
}

//export pvm_setminfo
func pvm_setminfo(bufid C.int, info *C.struct_pvmminfo) C.int {
	return C.int(lib.call("pvm_setminfo", func() (int, error) {
		b, err := lib.buffers.existing(int(bufid))
		if info == nil {
			err = badParam
		}
		if err != nil {
			return 0, err
		}
		b.info = minfo{
			len: b.size(), ctx: int(info.ctx), tag: int(info.tag), wid: int(info.wid),
			enc: b.info.enc, crc: int(info.crc), src: int(info.src), dst: int(info.dst),
		}
		return 0, nil
	}))
}

//export pvm_send
func pvm_send(tid, tag C.int) C.int {
	return C.int(lib.enrolled("pvm_send", func(ctx context.Context) (int, error) { return done(lib.send(ctx, int(tid), int(tag))) }))
}

//export pvm_mcast
func pvm_mcast(tids *C.int, count, tag C.int) C.int {
	return C.int(lib.enrolled("pvm_mcast", func(ctx context.Context) (int, error) {
		if count < 0 || tids == nil && count > 0 {
			return 0, badParam
		}
		return done(lib.mcast(ctx, ints(tids, count), int(tag)))
	}))
}

//export libpvm3Receive
func libpvm3Receive(receiver unsafe.Pointer, tid, tag, timed C.int, timeout *C.struct_timeval, giveBack C.int) C.int {
	name := "pvm_recv"
	if timed != 0 {
		name = "pvm_trecv"
	}
	lib.giveBack(int(giveBack))
	wait, cancel := context.WithCancel(context.Background())
	defer cancel()
	if receiver != nil {
		defer receives.add(receiver, cancel)()
	}
	return C.int(lib.enrolled(name, func(ctx context.Context) (int, error) {
		if timeout == nil {
			return lib.receive(ctx, wait, int(tid), int(tag))
		}
		if timeout.tv_sec < 0 || timeout.tv_usec < 0 {
			return 0, badParam
		}
		wait, cancel := context.WithTimeout(wait,
			time.Duration(timeout.tv_sec)*time.Second+time.Duration(timeout.tv_usec)*time.Microsecond)
		defer cancel()
		return lib.receive(ctx, wait, int(tid), int(tag))
	}))
}

//export libpvm3GiveBack
func libpvm3GiveBack(bufid C.int) { lib.giveBack(int(bufid)) }

// receives are the calls of pvm_recv and pvm_trecv that wait, by their receivers in shim.c.
var receives = receiveCalls{cancels: map[unsafe.Pointer]func(){}}

type receiveCalls struct {
	mu      sync.Mutex
	cancels map[unsafe.Pointer]func()
}

// add adds a call. The function that it returns removes the call.
func (c *receiveCalls) add(receiver unsafe.Pointer, cancel func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancels[receiver] = cancel
	if C.shim_left(receiver) != 0 {
		cancel()
	}
	return func() {
		c.mu.Lock()
		delete(c.cancels, receiver)
		c.mu.Unlock()
	}
}

// left ends a call if its caller has left it.
func (c *receiveCalls) left(receiver unsafe.Pointer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.cancels[receiver]; cancel != nil && C.shim_left(receiver) != 0 {
		cancel()
	}
}

var leftPipe *os.File // open as long as the process runs

// libpvm3LeftPipe returns the pipe to which C writes a receiver whose caller has left. C does not
// call Go for that, so that no signal handler runs meanwhile on a stack of Go.
//
//export libpvm3LeftPipe
func libpvm3LeftPipe() C.int {
	r, w, err := os.Pipe()
	if err != nil {
		return -1
	}
	go func() {
		for {
			var receiver unsafe.Pointer
			if _, err := io.ReadFull(r, unsafe.Slice((*byte)(unsafe.Pointer(&receiver)), unsafe.Sizeof(receiver))); err != nil {
				return
			}
			receives.left(receiver)
		}
	}()
	leftPipe = w
	return C.int(w.Fd())
}

//export pvm_nrecv
func pvm_nrecv(tid, tag C.int) C.int {
	return C.int(lib.enrolled("pvm_nrecv", func(ctx context.Context) (int, error) {
		return lib.receive(ctx, nil, int(tid), int(tag))
	}))
}

//export pvm_probe
func pvm_probe(tid, tag C.int) C.int {
	return C.int(lib.enrolled("pvm_probe", func(ctx context.Context) (int, error) {
		b, err := lib.await(ctx, nil, int(tid), int(tag))
		return b.number(), err
	}))
}

//export libpvm3SetMatch
func libpvm3SetMatch(f unsafe.Pointer) {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	lib.match = nil
	if f != nil {
		lib.match = func(bufid, tid, tag int) int {
			return int(C.shim_match(C.match_function(f), C.int(bufid), C.int(tid), C.int(tag)))
		}
	}
}

//export libpvm3AddHandler
func libpvm3AddHandler(tid, tag, ctx C.int, f unsafe.Pointer) C.int {
	return C.int(lib.enrolled("pvm_addmhf", func(c context.Context) (int, error) {
		if f == nil || tag < -1 || ctx < -1 {
			return 0, badParam
		}
		h := handler{src: int(tid), tag: int(tag), ctx: int(ctx)}
		h.filter = tpvm.Filter{Tag: int(tag), Context: tpvm.MsgContext(ctx)} // -1 is AnyContext
		if tid != -1 {
			id, ok, err := lib.lookup(c, int(tid))
			if err != nil {
				return 0, err
			}
			if !ok {
				return 0, notFound
			}
			h.filter.From = id
		}
		h.call = func(bufid int) { C.shim_handler(C.handler_function(f), C.int(bufid)) }
		return lib.handlers.add(h)
	}))
}

//export pvm_delmhf
func pvm_delmhf(id C.int) C.int {
	return C.int(lib.call("pvm_delmhf", func() (int, error) { return done(lib.handlers.remove(int(id))) }))
}

//export pvmdisplaymhfinfo
func pvmdisplaymhfinfo(name, text *C.char, tid C.int) C.int {
	var s strings.Builder
	lib.mu.Lock()
	lib.handlers.display(&s, C.GoString(name), C.GoString(text), int(tid))
	lib.mu.Unlock()
	t := C.CString(s.String())
	defer C.free(unsafe.Pointer(t))
	C.shim_stdout(t)
	return 0
}

//export pvm_newcontext
func pvm_newcontext() C.int {
	return C.int(lib.enrolled("pvm_newcontext", func(ctx context.Context) (int, error) {
		c, err := lib.task.NewContext(ctx)
		return int(c), err
	}))
}

//export pvm_getcontext
func pvm_getcontext() C.int {
	return C.int(lib.enrolled("pvm_getcontext", func(context.Context) (int, error) { return lib.context, nil }))
}

//export pvm_setcontext
func pvm_setcontext(c C.int) C.int {
	return C.int(lib.enrolled("pvm_setcontext", func(context.Context) (int, error) {
		if c < 0 {
			return 0, badParam
		}
		if _, err := lib.task.SetContext(tpvm.MsgContext(c)); err != nil {
			return 0, err
		}
		old := lib.context
		lib.context = int(c)
		return old, nil
	}))
}

//export pvm_freecontext
func pvm_freecontext(c C.int) C.int {
	return C.int(lib.enrolled("pvm_freecontext", func(context.Context) (int, error) {
		if c <= 0 || lib.task.FreeContext(tpvm.MsgContext(c)) != nil {
			return 0, notFound
		}
		return 0, nil
	}))
}

//export pvm_setopt
func pvm_setopt(what, value C.int) C.int {
	return C.int(lib.call("pvm_setopt", func() (int, error) {
		old, err := lib.setOption(int(what), int(value))
		if err == nil && int(what) == optNoReset {
			ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
			defer cancel()
			if err = lib.enrol(ctx); err == nil {
				err = lib.setNoReset(ctx, value != 0)
			}
		}
		return old, err
	}))
}

//export pvm_getopt
func pvm_getopt(what C.int) C.int {
	return C.int(lib.call("pvm_getopt", func() (int, error) { return lib.getOption(int(what)) }))
}

//export pvm_perror
func pvm_perror(text *C.char) C.int {
	s := "(null)"
	if text != nil {
		s = C.GoString(text)
	}
	lib.mu.Lock()
	defer lib.mu.Unlock()
	lib.perror(s)
	return 0
}

//export lpvmerr
func lpvmerr(text *C.char, c C.int) C.int {
	return C.int(lib.fail(C.GoString(text), code(c)))
}

//export pvm_strerror
func pvm_strerror() *C.char {
	C.free(unsafe.Pointer(results.strerror))
	results.strerror = C.CString(code(*lib.errno).Error())
	return results.strerror
}

//export pvm_psend
func pvm_psend(tid, tag C.int, p unsafe.Pointer, count, typ C.int) C.int {
	return C.int(lib.enrolled("pvm_psend", func(ctx context.Context) (int, error) {
		t, err := typeFor(p, int(count), int(typ))
		if tag < 0 {
			err = badParam
		}
		b := pack.NewBuffer(pack.InPlace)
		if err == nil {
			err = t.pack(b, p, int(count), 1)
		}
		if err != nil {
			return 0, err
		}
		return done(lib.sendTo(ctx, int(tid), int(tag), b))
	}))
}

//export pvm_precv
func pvm_precv(tid, tag C.int, p unsafe.Pointer, count, typ C.int, rtid, rtag, rcount *C.int) C.int {
	return C.int(lib.enrolled("pvm_precv", func(ctx context.Context) (int, error) {
		t, err := typeFor(p, int(count), int(typ))
		if err != nil {
			return 0, err
		}
		active := lib.buffers.recv
		lib.buffers.recv = nil
		id, err := lib.receive(ctx, context.Background(), int(tid), int(tag))
		b := lib.buffers.recv
		lib.buffers.recv = active
		if err != nil {
			return 0, err
		}
		defer lib.buffers.drop(b)
		info, err := lib.info(ctx, id)
		if err != nil {
			return 0, err
		}
		n := min(b.size()/t.wireSize(b.encoding()), int(count))
		set(rtid, info.src)
		set(rtag, info.tag)
		set(rcount, b.size()) // in bytes, other than the manual says
		r, err := b.reader()
		if err == nil && n > 0 {
			err = t.unpack(r, p, n, 1)
		}
		return done(err)
	}))
}

//export libpvm3Pack
func libpvm3Pack(typ C.int, p unsafe.Pointer, count, stride C.int) C.int {
	t := &types[typ]
	return C.int(lib.call(t.pk, func() (int, error) {
		b, err := lib.buffers.toPack()
		if !isMemory(p, int(count), int(stride)) {
			err = badParam
		}
		if err == nil {
			err = t.pack(b, p, int(count), int(stride))
		}
		return 0, err
	}))
}

//export libpvm3Unpack
func libpvm3Unpack(typ C.int, p unsafe.Pointer, count, stride C.int) C.int {
	t := &types[typ]
	return C.int(lib.call(t.upk, func() (int, error) {
		r, err := lib.buffers.toUnpack()
		if !isMemory(p, int(count), int(stride)) {
			err = badParam
		}
		if err == nil {
			err = t.unpack(r, p, int(count), int(stride))
		}
		return 0, err
	}))
}

//export pvm_pkstr
func pvm_pkstr(s *C.char) C.int {
	return C.int(lib.call("pvm_pkstr", func() (int, error) {
		b, err := lib.buffers.toPack()
		if err == nil && s == nil {
			err = badParam
		}
		if err == nil {
			err = b.PackString(C.GoString(s))
		}
		return 0, err
	}))
}

//export pvm_upkstr
func pvm_upkstr(s *C.char) C.int {
	return C.int(lib.call("pvm_upkstr", func() (int, error) {
		r, err := lib.buffers.toUnpack()
		if err == nil && s == nil {
			err = badParam
		}
		if err != nil {
			return 0, err
		}
		text, err := r.UnpackString()
		if err == nil {
			d := unsafe.Slice((*byte)(unsafe.Pointer(s)), len(text)+1)
			d[copy(d, text)] = 0
		}
		return 0, err
	}))
}

//export pvm_pkmesg
func pvm_pkmesg(bufid C.int) C.int {
	return C.int(lib.call("pvm_pkmesg", func() (int, error) { return done(lib.packMessage(int(bufid), false)) }))
}

//export pvm_pkmesgbody
func pvm_pkmesgbody(bufid C.int) C.int {
	return C.int(lib.call("pvm_pkmesgbody", func() (int, error) { return done(lib.packMessage(int(bufid), true)) }))
}

//export pvm_upkmesg
func pvm_upkmesg() C.int {
	return C.int(lib.call("pvm_upkmesg", func() (int, error) { return lib.unpackMessage() }))
}

// named makes a call about a group or an entry of the message box. Without its name the call fails
// with none. Like PVM, it does not print errors of such calls.
func named(s *C.char, none code, f func(ctx context.Context, name string) (int, error)) C.int {
	return C.int(lib.quiet(func(ctx context.Context) (int, error) {
		if s == nil || *s == 0 {
			return 0, none
		}
		return f(ctx, C.GoString(s))
	}))
}

func grouped(group *C.char, f func(ctx context.Context, group string) (int, error)) C.int {
	return named(group, nullGroup, f)
}

//export pvm_joingroup
func pvm_joingroup(group *C.char) C.int { return grouped(group, lib.join) }

//export pvm_lvgroup
func pvm_lvgroup(group *C.char) C.int { return grouped(group, lib.leave) }

//export pvm_gsize
func pvm_gsize(group *C.char) C.int { return grouped(group, lib.groupSize) }

//export pvm_freezegroup
func pvm_freezegroup(group *C.char, count C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) { return lib.freeze(ctx, g, int(count)) })
}

//export pvm_getinst
func pvm_getinst(group *C.char, tid C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) { return lib.instance(ctx, g, int(tid)) })
}

//export pvm_gettid
func pvm_gettid(group *C.char, inst C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) { return lib.member(ctx, g, int(inst)) })
}

//export pvm_barrier
func pvm_barrier(group *C.char, count C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) { return lib.barrier(ctx, g, int(count)) })
}

//export pvm_bcast
func pvm_bcast(group *C.char, tag C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) { return lib.broadcast(ctx, g, int(tag)) })
}

//export pvm_gather
func pvm_gather(result, data unsafe.Pointer, count, typ, tag C.int, group *C.char, root C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) {
		return lib.gather(ctx, result, data, int(count), int(typ), int(tag), g, int(root))
	})
}

//export pvm_scatter
func pvm_scatter(result, data unsafe.Pointer, count, typ, tag C.int, group *C.char, root C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) {
		return lib.scatter(ctx, result, data, int(count), int(typ), int(tag), g, int(root))
	})
}

//export libpvm3Reduce
func libpvm3Reduce(f, data unsafe.Pointer, count, typ, tag C.int, group *C.char, root C.int) C.int {
	return grouped(group, func(ctx context.Context, g string) (int, error) {
		if f == nil {
			return 0, badParam
		}
		combine := func(typ int, x, y unsafe.Pointer, n int) code {
			t, c, info := C.int(typ), C.int(n), C.int(0)
			C.shim_reduce(C.reduce_function(f), &t, x, y, &c, &info)
			return code(info)
		}
		return lib.reduce(ctx, combine, data, int(count), int(typ), int(tag), g, int(root))
	})
}

//export pvm_putinfo
func pvm_putinfo(key *C.char, bufid, flags C.int) C.int {
	return named(key, badParam, func(ctx context.Context, k string) (int, error) {
		return lib.putInfo(ctx, k, int(bufid), int(flags))
	})
}

//export pvm_recvinfo
func pvm_recvinfo(key *C.char, index, flags C.int) C.int {
	cc := named(key, badParam, func(ctx context.Context, k string) (int, error) {
		return lib.recvInfo(ctx, k, int(index), int(flags))
	})
	if cc < 0 && code(cc) != notFound {
		cc = C.int(lib.fail("pvm_recvinfo()", code(cc)))
	}
	return cc
}

//export pvm_delinfo
func pvm_delinfo(key *C.char, index, flags C.int) C.int {
	return named(key, badParam, func(ctx context.Context, k string) (int, error) {
		return done(lib.deleteInfo(ctx, k, int(index)))
	})
}

//export pvm_getmboxinfo
func pvm_getmboxinfo(pattern *C.char, nclasses *C.int, classes **C.struct_pvmmboxinfo) C.int {
	return C.int(lib.quiet(func(ctx context.Context) (int, error) {
		cs, err := lib.boxes(ctx, C.GoString(pattern))
		if err != nil {
			return 0, err
		}
		set(nclasses, len(cs))
		if classes == nil {
			return 0, nil
		}
		results.classTexts.reset()
		for _, a := range results.classArrays {
			C.free(unsafe.Pointer(a))
		}
		results.classArrays = nil
		keep := func(vs []int) (p *C.int) {
			intArray(&p, vs)
			results.classArrays = append(results.classArrays, p)
			return p
		}
		a := array(&results.classes, len(cs))
		for i, c := range cs {
			a[i] = C.struct_pvmmboxinfo{
				mi_name: results.classTexts.add(c.name), mi_nentries: C.int(len(c.indices)),
				mi_indices: keep(c.indices), mi_owners: keep(c.owners), mi_flags: keep(c.flags),
			}
		}
		*classes = results.classes
		return 0, nil
	}))
}

//export pvm_getnoresets
func pvm_getnoresets(tids **C.int, count *C.int) C.int {
	return C.int(lib.enrolled("pvm_getnoresets", func(ctx context.Context) (int, error) {
		s, err := lib.noResets(ctx)
		if err != nil {
			return 0, err
		}
		intArray(&results.noResets, s)
		set(count, len(s))
		if tids != nil {
			*tids = results.noResets
		}
		return 0, nil
	}))
}

//export pvm_insert
func pvm_insert(key *C.char, index, data C.int) C.int {
	return named(key, badParam, func(ctx context.Context, k string) (int, error) {
		return lib.insert(ctx, k, int(index), int(data))
	})
}

//export pvm_lookup
func pvm_lookup(key *C.char, index C.int, data *C.int) C.int {
	return named(key, badParam, func(ctx context.Context, k string) (int, error) {
		i, v, err := lib.find(ctx, k, int(index))
		if err == nil {
			set(data, v)
		}
		return i, err
	})
}

//export pvm_delete
func pvm_delete(key *C.char, index C.int) C.int {
	return named(key, badParam, func(ctx context.Context, k string) (int, error) {
		return int(index), lib.deleteInfo(ctx, k, int(index))
	})
}

//export libpvm3Catchout
func libpvm3Catchout(file unsafe.Pointer) C.int {
	return C.int(lib.enrolled("pvm_catchout", func(context.Context) (int, error) {
		if file == nil {
			return done(lib.task.Catchout(nil))
		}
		return done(lib.catchOutput(cfile{file}))
	}))
}

// cfile writes to a FILE of the program.
type cfile struct{ f unsafe.Pointer }

func (f cfile) Write(p []byte) (int, error) {
	if len(p) > 0 {
		C.shim_write(f.f, (*C.char)(unsafe.Pointer(&p[0])), C.int(len(p)))
	}
	return len(p), nil
}
