// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// An ear hears every frame on a lab's wire, and counts the frames with certain words.
type ear struct {
	fd   int
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	frames int
	heard  map[string]int
}

func (l *lab) ear(words ...string) *ear {
	l.t.Helper()
	e := &ear{stop: make(chan struct{}), heard: map[string]int{}}
	opened := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		f, err := os.Open("/var/run/netns/" + strings.TrimSuffix(l.nodes[0].ns, "0") + "wire")
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the byte order of the wire
			e.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		}
		if err == nil {
			err = unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
		}
		if err == nil { // without the permission for it, a smaller buffer must do
			_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		}
		opened <- err
	}()
	try.OK(l.t, <-opened)
	e.done.Go(func() {
		b := make([]byte, 1<<17)
		for {
			n, _, err := unix.Recvfrom(e.fd, b, 0)
			if err != nil { // no frame for a while
				select {
				case <-e.stop:
					return
				default:
					continue
				}
			}
			e.mu.Lock()
			e.frames++
			for _, w := range words {
				if bytes.Contains(b[:n], []byte(w)) {
					e.heard[w]++
				}
			}
			e.mu.Unlock()
		}
	})
	l.t.Cleanup(func() {
		close(e.stop)
		e.done.Wait()
		unix.Close(e.fd)
	})
	return e
}

// soFar returns the number of frames, and how often each word was heard in them.
func (e *ear) soFar() (frames int, heard map[string]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.frames, maps.Clone(e.heard)
}

// In a cluster with a key, nothing that nodes send each other is on the wire in the clear: neither
// attributes in questions and answers, by datagram or by stream, nor messages. Without a key
// messages are in the clear, which shows that the ear hears. The traffic of directories is sealed
// even then, but with a key that anyone can compute.
//
// Promise (Keys): With a key, nothing between nodes is on the wire in the clear. See also
// TestNoDowngrade, context: TestPlaces.
func TestNothingInTheClear(t *testing.T) {
	const name, value, large, question, message = "name-of-an-attribute", "value-of-a-resource", "value-that-is-large", "what-nobody-has", "what-a-message-says"
	words := []string{name, value, large, question, message}
	for _, sealed := range []bool{true, false} {
		t.Run(map[bool]string{true: "with a key", false: "without"}[sealed], func(t *testing.T) {
			l := newLab(t, 3)
			if !sealed {
				l.key = ""
			}
			e := l.ear(words...)
			for i, n := range l.nodes {
				n.serve(l.nodes[max(i-1, 0)])
			}
			l.together(l.nodes...)
			var as []*agent
			var ids []rocl.GID
			for _, n := range l.nodes {
				a := n.agent()
				as = append(as, a)
				ids = append(ids, a.register(rocl.Attrs{name: value}))
				a.register(rocl.Attrs{"type": "large", "content": strings.Repeat(large+" ", 5000)})
			}
			slices.SortFunc(ids, rocl.GID.Compare)
			for i, a := range as {
				if got := a.all(rocl.Match{name: value}); got.How != "" || !slices.Equal(got.IDs, ids) {
					t.Fatalf("all that node %d finds: %+v", i, got)
				}
				if got := a.all(rocl.Match{"type": "large"}); got.How != "" || len(got.IDs) != len(as) {
					t.Fatalf("large: node %d finds %+v", i, got)
				}
				if got := a.find(rocl.Match{"type": question}); got.How != definite {
					t.Fatalf("node %d: %+v", i, got)
				}
			}
			for i, a := range as {
				b := as[(i+1)%len(as)]
				a.say(b, b.register(nil), strings.Repeat(message+" ", 5000))
				a.say(b, b.register(nil), message)
			}
			if !sealed {
				eventually.True(t, "messages are heard", func() bool { _, heard := e.soFar(); return heard[message] > 1 })
				return
			}
			// All frames have been heard by now, or will be soon. Unsealed ones would have been
			// heard long ago.
			began, _ := e.soFar()
			eventually.True(t, "the wire goes on", func() bool { frames, _ := e.soFar(); return frames > began+100 })
			if _, heard := e.soFar(); len(heard) > 0 {
				t.Errorf("in the clear: %v", heard)
			}
		})
	}
}
