package tcp

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// pause waits a moment after Accept failed for want of descriptors or memory,
// which only time mends, and says whether to go on.
func pause(ln *net.TCPListener, err error) bool {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) {
		return true
	}
	time.Sleep(20 * time.Millisecond)
	return true
}
