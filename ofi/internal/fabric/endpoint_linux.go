// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package fabric

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library has the functions that libfabric exports.
type library struct{ getinfo, freeinfo, dupinfo, fabric, strerror uintptr }

// load loads libfabric, once. The library stays loaded.
var load = sync.OnceValues(func() (*library, error) {
	runtime.LockOSThread() // dlerror knows the errors of its own thread
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen("libfabric.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	l := new(library)
	for name, f := range map[string]*uintptr{
		"fi_getinfo": &l.getinfo, "fi_freeinfo": &l.freeinfo, "fi_dupinfo": &l.dupinfo, "fi_fabric": &l.fabric, "fi_strerror": &l.strerror,
	} {
		if *f, err = purego.Dlsym(h, name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	setenv, err := purego.Dlsym(purego.RTLD_DEFAULT, "setenv")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for _, s := range settings {
		name, value := cString(s.name), cString(s.value)
		call(setenv, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&value[0])), 0)
	}
	return l, nil
})

// settings are variables of the environment that libfabric reads. A program's own values stay.
var settings = []struct{ name, value string }{
	{"FI_OFI_RXM_MSG_RX_SIZE", "256"},      // else 4096 buffers of 16 KiB for each endpoint, which takes a second
	{"FI_OFI_RXM_COMP_PER_PROGRESS", "16"}, // else a read of the completion queue handles one
}

// An Endpoint is a reliable, connectionless endpoint (FI_EP_RDM). One goroutine at a time calls
// Poll and CanWait, and one at a time Recv, Send and Read. Any goroutine may call the other
// methods. When Close is called, no other call may be in progress or follow.
type Endpoint struct {
	lib                     *library
	offers                  uintptr // list of what the providers offer, and
	info                    uintptr // the one that is used
	fabric, domain          uintptr
	av, cq, ep              uintptr
	recv, send, read, write uintptr // functions of ep
	cqRead, cqReadErr       uintptr
	trywait, insert, remove uintptr
	name                    []byte
	wait                    int // descriptor of the completion queue, or -1
	mrMode                  uint32
	contexts                []byte // one of contextLen bytes for each operation; not Go memory
	entries                 []cqEntry
	failure                 *cqError
	waitFIDs                []uintptr
	arguments               [][]byte  // of Open; see held
	args                    []uintptr // of the call in progress of Recv, Send or Read
	sharing                 *sharing  // of the provider shm
	pollArgs                []uintptr // of the call in progress of Poll or CanWait
	writing                 *writeArgs
}

// held returns the address of b, which stays valid until the endpoint is closed.
func (e *Endpoint) held(b []byte) uintptr {
	e.arguments = append(e.arguments, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// Open is OpenIn in the provider's first domain.
func Open(provider, host string, ops int) (*Endpoint, error) { return OpenIn("", provider, host, ops) }

// mostTries is how often OpenIn tries to open an endpoint of shm whose name is taken. The provider
// names memory by the process and the number of the endpoint in it. The memory of a process that
// was killed stays, and a later one may have its number.
const mostTries = 256

// OpenIn opens an endpoint of a provider, such as "tcp;ofi_rxm", in a domain, such as "mlx5_0". It
// is bound to an address of host, unless host is empty. At most ops operations may be in progress
// at once.
func OpenIn(domain, provider, host string, ops int) (*Endpoint, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	var e *Endpoint
	for try := 1; ; try++ {
		e = &Endpoint{lib: lib, wait: -1, failure: new(cqError), writing: new(writeArgs)}
		err := e.open(domain, provider, host, ops)
		if err == nil {
			break
		}
		e.free()
		if provider != "shm" || !errors.Is(err, syscall.EBUSY) || try == mostTries {
			return nil, fmt.Errorf("fabric: opening an endpoint of %q: %w", provider, err)
		}
	}
	if provider == "shm" {
		e.share()
	}
	return e, nil
}

func (e *Endpoint) open(domain, provider, host string, ops int) error {
	if err := e.find(domain, provider, host); err != nil {
		return err
	}
	if err := e.status(call(e.lib.fabric, word(e.info, infoFabric), uintptr(unsafe.Pointer(&e.fabric)), 0)); err != nil {
		return fmt.Errorf("the fabric: %w", err)
	}
	if err := e.status(call(op(e.fabric, fabricOps, opsDomain), e.fabric, e.info, uintptr(unsafe.Pointer(&e.domain)), 0)); err != nil {
		return fmt.Errorf("the domain: %w", err)
	}
	av := make([]byte, avAttrLen) // all of it is for the provider to choose
	if err := e.status(call(op(e.domain, domainOps, opsAVOpen), e.domain, uintptr(unsafe.Pointer(&av[0])), uintptr(unsafe.Pointer(&e.av)), 0)); err != nil {
		return fmt.Errorf("the address vector: %w", err)
	}
	if err := e.openQueue(ops); err != nil {
		return fmt.Errorf("the completion queue: %w", err)
	}
	if err := e.status(call(op(e.domain, domainOps, opsEP), e.domain, e.info, uintptr(unsafe.Pointer(&e.ep)), 0)); err != nil {
		return err
	}
	for fid, flags := range map[uintptr]uintptr{e.cq: capSend | capRecv, e.av: 0} {
		if err := e.status(call(op(e.ep, fidOps, opsBind), e.ep, fid, flags)); err != nil {
			return fmt.Errorf("binding: %w", err)
		}
	}
	if err := e.status(call(op(e.ep, fidOps, opsControl), e.ep, controlEnable, 0)); err != nil {
		return fmt.Errorf("enabling: %w", err)
	}
	name, length := make([]byte, mostName), uint64(mostName)
	if err := e.status(call(op(e.ep, epCM, opsGetName), e.ep, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&length)))); err != nil {
		return fmt.Errorf("its name: %w", err)
	}
	e.name = name[:min(length, mostName)]
	var err error
	if e.contexts, err = Map(ops * contextLen); err != nil {
		return err
	}
	e.recv, e.send = op(e.ep, epMsg, opsRecv), op(e.ep, epMsg, opsSend)
	e.read, e.write = op(e.ep, epRMA, opsRead), op(e.ep, epRMA, opsWriteMsg)
	e.insert, e.remove = op(e.av, avOps, opsInsert), op(e.av, avOps, opsRemove)
	return nil
}

// find sets e.info to the provider's best offer, in the domain if one is named.
func (e *Endpoint) find(domain, provider, host string) error {
	hints := call(e.lib.dupinfo, 0)
	if hints == 0 {
		return syscall.ENOMEM
	}
	name, at := e.held(cString(provider)), e.held(cString(host))
	put[uint64](hints, infoCaps, capMsg|capRMA|capRead|capWrite|capRemoteRead|capRemoteWrite|capSend|capRecv)
	put[uint64](hints, infoMode, modeContext)
	put[uint64](word(hints, infoTx), txOrder, orderSAS)
	put[uint64](word(hints, infoRx), rxOrder, orderSAS)
	put(word(hints, infoTx), txSize, uint64(queueSize))
	put(word(hints, infoRx), rxSize, uint64(queueSize))
	put[uint32](word(hints, infoEp), epType, typeRDM)
	put[uint32](word(hints, infoDomain), domainThreading, threadSafe)
	put[uint32](word(hints, infoDomain), domainMRMode, mrLocal|mrVirtAddr|mrAllocated|mrProvKey)
	put(word(hints, infoFabric), fabricProvider, name)
	var node, flags uintptr
	if host != "" {
		node, flags = at, flagSource
	}
	err := e.status(call(e.lib.getinfo, version, node, 0, flags, hints, uintptr(unsafe.Pointer(&e.offers))))
	put[uintptr](word(hints, infoFabric), fabricProvider, 0) // freeinfo would free it
	call(e.lib.freeinfo, hints)
	if err != nil {
		return fmt.Errorf("%w: no such provider, or not with what is needed of it: %w", ErrUnavailable, err)
	}
	// A domain in the hints is ignored by ofi_rxm.
	for e.info = e.offers; domain != "" && e.info != 0 && goString(word(word(e.info, infoDomain), domainName)) != domain; {
		e.info = word(e.info, 0)
	}
	if e.info == 0 {
		return fmt.Errorf("%w: the provider has no domain %q for the address", ErrUnavailable, domain)
	}
	e.mrMode = get[uint32](word(e.info, infoDomain), domainMRMode)
	return nil
}

// openQueue opens the completion queue, with a descriptor if the provider has one.
func (e *Endpoint) openQueue(ops int) error {
	at := e.held(make([]byte, cqAttrLen))
	put(at, 0, uint64(2*ops))
	put[uint32](at, cqAttrFormat, formatMsg)
	put[uint32](at, cqAttrWaitObj, waitFD)
	open := func() error {
		return e.status(call(op(e.domain, domainOps, opsCQOpen), e.domain, at, uintptr(unsafe.Pointer(&e.cq)), 0))
	}
	if err := open(); err == nil {
		fd := int32(-1)
		if e.status(call(op(e.cq, fidOps, opsControl), e.cq, controlGetWait, uintptr(unsafe.Pointer(&fd)))) == nil {
			e.wait = int(fd)
		}
	} else {
		put[uint32](at, cqAttrWaitObj, 0)
		if err := open(); err != nil {
			return err
		}
	}
	e.cqRead, e.cqReadErr = op(e.cq, cqOps, opsCQRead), op(e.cq, cqOps, opsCQReadErr)
	e.trywait, e.waitFIDs = op(e.fabric, fabricOps, opsTrywait), []uintptr{e.cq}
	return nil
}

// Name returns the endpoint's address in the provider's form. It must not be changed.
func (e *Endpoint) Name() []byte { return e.name }

// WaitFD returns a descriptor that becomes readable when the completion queue has something, or -1
// if the provider has none. CanWait must be asked before each wait.
func (e *Endpoint) WaitFD() int { return e.wait }

// CanWait reports whether the caller may wait for WaitFD now. If not, Poll has something to do.
func (e *Endpoint) CanWait() bool {
	e.pollArgs = append(e.pollArgs[:0], e.fabric, uintptr(unsafe.Pointer(&e.waitFIDs[0])), 1)
	return int32(quick(e.trywait, e.pollArgs)) == 0
}

// IsSocketName reports whether names are socket addresses (struct sockaddr_in or sockaddr_in6).
func (e *Endpoint) IsSocketName() bool {
	f := get[uint32](e.info, infoAddrFormat)
	return f == formatSockaddr || f == formatIn || f == formatIn6
}

// NeedsLocal reports whether memory must be registered before it is given to Send, Recv or Read.
func (e *Endpoint) NeedsLocal() bool { return e.mrMode&mrLocal != 0 }

// Insert adds a peer by its endpoint's name. The caller has checked the name's length and form.
func (e *Endpoint) Insert(name []byte) (Address, error) {
	if e.sharing != nil {
		return e.insertShared(name)
	}
	return e.add(name)
}

func (e *Endpoint) add(name []byte) (Address, error) {
	a, padded := addrUnspecified, make([]byte, mostName+1)
	copy(padded[:mostName], name)
	if n := int32(call(e.insert, e.av, uintptr(unsafe.Pointer(&padded[0])), 1, uintptr(unsafe.Pointer(&a)), 0, 0)); n != 1 {
		return 0, fmt.Errorf("fabric: inserting an address: %w", e.status(uintptr(min(n, -1))))
	}
	return Address(a), nil
}

// Remove undoes Insert. No operation with the address may be in progress.
func (e *Endpoint) Remove(a Address) {
	if e.sharing != nil {
		return
	}
	v := uint64(a)
	call(e.remove, e.av, uintptr(unsafe.Pointer(&v)), 1, 0)
}

// Register registers memory, which is not Go's, for all operations and for reads by peers. key is
// the region's key, as far as the provider's keys are as long, unless the provider chooses it.
func (e *Endpoint) Register(mem []byte, key uint64) (*Region, error) {
	return e.register(mem, key, capSend|capRecv|capRead|capRemoteRead)
}

func (e *Endpoint) register(mem []byte, key uint64, access uintptr) (*Region, error) {
	r := new(Region)
	at := uintptr(unsafe.Pointer(&mem[0]))
	if n := get[uint64](word(e.info, infoDomain), domainKeySize); n < 8 {
		key &= 1<<(8*n) - 1
	}
	if err := e.status(call(op(e.domain, domainMR, opsMRReg), e.domain, at, uintptr(len(mem)), access, 0, uintptr(key), 0, uintptr(unsafe.Pointer(&r.fid)), 0)); err != nil {
		return nil, fmt.Errorf("fabric: registering %d bytes: %w", len(mem), err)
	}
	r.Desc, r.Key = word(r.fid, mrDesc), get[uint64](r.fid, mrKey)
	if e.mrMode&mrVirtAddr != 0 {
		r.Base = uint64(at)
	}
	return r, nil
}

// Unregister undoes Register.
func (e *Endpoint) Unregister(r *Region) { closeFID(r.fid) }

// Recv gives the endpoint memory for one message. The memory, which is not Go's, must stay valid
// until the completion of op. That holds for Send and Read too.
func (e *Endpoint) Recv(op int, mem []byte, desc uintptr) error {
	e.args = append(e.args[:0], e.ep, addressOf(mem), uintptr(len(mem)), desc, uintptr(addrUnspecified), e.context(op))
	return e.begun("receive", quick(e.recv, e.args))
}

// Send sends a message.
func (e *Endpoint) Send(op int, mem []byte, desc uintptr, to Address) error {
	e.args = append(e.args[:0], e.ep, addressOf(mem), uintptr(len(mem)), desc, uintptr(to), e.context(op))
	return e.begun("send", quick(e.send, e.args))
}

// Read reads len(mem) bytes at an address of a peer's region. The memory may be Go's if op's owner
// keeps it alive.
func (e *Endpoint) Read(op int, mem []byte, desc uintptr, from Address, at, key uint64) error {
	e.args = append(e.args[:0], e.ep, addressOf(mem), uintptr(len(mem)), desc, uintptr(from), uintptr(at), uintptr(key), e.context(op))
	return e.begun("read", quick(e.read, e.args))
}

func (e *Endpoint) begun(what string, result uintptr) error {
	switch int64(result) {
	case 0:
		return nil
	case -eagain:
		return ErrAgain
	}
	return fmt.Errorf("fabric: %s: %w", what, e.status(result))
}

// Poll makes the progress that is possible without waiting. It returns how many operations have
// ended. If the queue has failed, the error is not nil.
func (e *Endpoint) Poll(done []Completion) (int, error) {
	if len(e.entries) < len(done) {
		e.entries = make([]cqEntry, len(done))
	}
	e.pollArgs = append(e.pollArgs[:0], e.cq, uintptr(unsafe.Pointer(&e.entries[0])), uintptr(len(done)))
	n := int64(quick(e.cqRead, e.pollArgs))
	switch {
	case n == -eagain:
		return 0, nil
	case n == -eavail:
		return e.pollError(done)
	case n < 0:
		return 0, fmt.Errorf("fabric: reading the completion queue: %w", e.status(uintptr(n)))
	}
	for i, c := range e.entries[:n] {
		done[i] = Completion{Op: e.number(c.context), Len: int(c.length)}
	}
	return int(n), nil
}

// pollError reads the error at the head of the completion queue.
func (e *Endpoint) pollError(done []Completion) (int, error) {
	f := e.failure
	*f = cqError{}
	if n := int64(call(e.cqReadErr, e.cq, uintptr(unsafe.Pointer(f)), 0)); n == -eagain {
		return 0, nil
	} else if n < 0 {
		return 0, fmt.Errorf("fabric: reading an error of the completion queue: %w", e.status(uintptr(n)))
	}
	done[0] = Completion{Op: e.number(f.context), Err: fmt.Errorf("fabric: %w (the provider's error %d)", e.status(uintptr(-int(f.err))), f.provErr)}
	return 1, nil
}

func (e *Endpoint) context(op int) uintptr {
	return uintptr(unsafe.Pointer(&e.contexts[op*contextLen]))
}

// number returns the number of the operation with a context, or -1 if there is none.
func (e *Endpoint) number(context uintptr) int {
	if at := context - uintptr(unsafe.Pointer(&e.contexts[0])); at < uintptr(len(e.contexts)) && at%contextLen == 0 {
		return int(at / contextLen)
	}
	return -1
}

// Close frees the endpoint and ends its operations, which have no completions then. Regions must
// have been unregistered.
func (e *Endpoint) Close() {
	if e.sharing != nil {
		e.closeShared()
		return
	}
	e.free()
}

func (e *Endpoint) free() {
	for _, fid := range []*uintptr{&e.ep, &e.cq, &e.av, &e.domain, &e.fabric} {
		if *fid != 0 {
			closeFID(*fid)
			*fid = 0
		}
	}
	if e.offers != 0 {
		call(e.lib.freeinfo, e.offers)
		e.offers = 0
	}
	if e.contexts != nil {
		Unmap(e.contexts)
		e.contexts = nil
	}
}

func closeFID(fid uintptr) { call(op(fid, fidOps, opsClose), fid) }

// status returns the error of a result below 0.
func (e *Endpoint) status(result uintptr) error {
	n := int32(result)
	if n >= 0 {
		return nil
	}
	if n > -256 { // as in errno
		return syscall.Errno(-n)
	}
	return fmt.Errorf("%s (%d)", goString(call(e.lib.strerror, uintptr(-n))), -n)
}
