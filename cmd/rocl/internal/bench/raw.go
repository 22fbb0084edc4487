// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// polled is a socket outside the runtime's poller, for bare loops that poll.
type polled struct{ fd int }

func newPolled(nc *net.TCPConn) (*polled, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if e := raw.Control(func(s uintptr) { fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	return &polled{fd}, err
}

func (p *polled) Read(b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch e {
		case 0:
			if n == 0 {
				return 0, io.EOF
			}
			return int(n), nil
		case syscall.EAGAIN, syscall.EINTR:
			continue
		}
		return 0, e
	}
}

func (p *polled) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(p.fd), uintptr(unsafe.Pointer(&b[done])), uintptr(len(b)-done))
		if e != 0 && e != syscall.EAGAIN && e != syscall.EINTR {
			return done, e
		}
		if e == 0 {
			done += int(n)
		}
	}
	return len(b), nil
}

func (p *polled) Close() error { return unix.Close(p.fd) }

// sleeping is a polled socket whose reads sleep in poll(2) while no bytes have arrived, like a
// waiter of the library that may not poll.
type sleeping struct{ *polled }

func (s sleeping) Read(b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch e {
		case 0:
			if n == 0 {
				return 0, io.EOF
			}
			return int(n), nil
		case syscall.EAGAIN:
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
				return 0, err
			}
		case syscall.EINTR:
		default:
			return 0, e
		}
	}
}

// echoRaw sends back messages of size bytes.
func echoRaw(rw io.ReadWriter, size int, more func() bool) error {
	b := make([]byte, max(size, 1))
	for again := true; again; {
		if _, err := io.ReadFull(rw, b); err != nil {
			return err
		}
		again = more()
		if _, err := rw.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// sendRaw writes count messages through a 64 KiB buffer and waits for one byte. With lengths, four
// bytes with the length precede each message. Without, both sides know the length beforehand, which
// is less work than passing messages.
func sendRaw(nc net.Conn, size, count int, lengths bool) error {
	w := bufio.NewWriterSize(nc, 64<<10)
	b := make([]byte, size)
	var head [4]byte
	for range count {
		if lengths {
			binary.LittleEndian.PutUint32(head[:], uint32(size))
			if _, err := w.Write(head[:]); err != nil {
				return err
			}
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.ReadFull(nc, b[:1])
	return err
}

func recvRaw(nc net.Conn, size, count int, lengths bool) error {
	r := bufio.NewReaderSize(nc, 64<<10)
	b := make([]byte, size)
	var head [4]byte
	for range count {
		n := size
		if lengths {
			if _, err := io.ReadFull(r, head[:]); err != nil {
				return err
			}
			if n = int(binary.LittleEndian.Uint32(head[:])); n > len(b) {
				return errors.New("the message is longer than any that was sent")
			}
		}
		if _, err := io.ReadFull(r, b[:n]); err != nil {
			return err
		}
	}
	_, err := nc.Write([]byte{1})
	return err
}

// answerRaw reads requests and writes replies of fixed sizes.
func answerRaw(nc net.Conn, request, reply int) error {
	in, out := make([]byte, request), make([]byte, reply)
	for {
		if _, err := io.ReadFull(nc, in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := nc.Write(out); err != nil {
			return err
		}
	}
}
