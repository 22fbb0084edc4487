package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

const bellLen = 4096

// A bell tells who has something for a port whether its context looks. Its word
// counts the sleeps, and is odd during one. The place for a futex is here: who
// sleeps would wait on the word, who rings would wake it.
type bell struct {
	word *atomic.Uint64
	mem  []byte
	page int // the word's descriptor, to hand over; -1 for another's bell
	fd   int // the eventfd. It is never read: each write is an edge for epoll
}

func newBell() (*bell, error) {
	page, mem, err := memfd.Create("rocl-bell", bellLen)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		memfd.Unmap(mem)
		memfd.Close(page)
		return nil, os.NewSyscallError("eventfd", err)
	}
	b := &bell{word: (*atomic.Uint64)(unsafe.Pointer(&mem[0])), mem: mem, page: page, fd: fd}
	b.word.Store(1) // nobody looks before the first Doze
	return b, nil
}

// openBell takes what a peer has handed over. fd is the bell's from here on, if
// there is no error.
func openBell(page, fd int) (*bell, error) {
	// A write to something else could block.
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || name != "anon_inode:[eventfd]" || flags&unix.O_NONBLOCK == 0 {
		return nil, errors.New("a bell that is no eventfd")
	}
	mem, err := memfd.Open(page, bellLen)
	if err != nil {
		return nil, fmt.Errorf("a bell's word: %w", err)
	}
	return &bell{word: (*atomic.Uint64)(unsafe.Pointer(&mem[0])), mem: mem, page: -1, fd: fd}, nil
}

// doze says whether nobody looks.
func (b *bell) doze(asleep bool) {
	w := b.word.Load()
	if asleep { // also where it is odd: who rang in the last sleep does so again
		b.word.Store(w + 1 | 1)
	} else if w&1 != 0 {
		b.word.Store(w + 1)
	}
}

// ring wakes who sleeps, if nobody else has in the same sleep whose number is kept
// in last.
func (b *bell) ring(last *atomic.Uint64, count *subsys.Counters) {
	if w := b.word.Load(); w&1 != 0 && last.Swap(w) != w {
		b.strike(count)
	}
}

func (b *bell) strike(count *subsys.Counters) {
	one := [8]byte{1}
	count.Writes.Add(1)
	_, _ = unix.Write(b.fd, one[:])
}

func (b *bell) close() {
	memfd.Unmap(b.mem)
	if b.page >= 0 {
		unix.Close(b.page)
	}
	unix.Close(b.fd)
}
