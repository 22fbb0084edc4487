// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/connlimit"
	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/internal/ratelog"
)

// A Config says how a Listener serves. Log, Serve and End must be given.
type Config struct {
	Daemon bool          // contexts that serve give way to this process, and it gives way to none
	Log    *slog.Logger  // for problems that do not end serving
	Check  time.Duration // the interval at which the files are checked; 0: a second
	// Serve serves a connection of a process that may connect, until the connection ends, and
	// closes it. It runs in a goroutine of its own.
	Serve func(net.Conn)
	// Remade is called when a lock file was removed and there is a new one, which no context has
	// locked a byte of. It is called with the mutex of a socket held.
	Remade func()
	// End is called when another server has the node's files. It runs in a goroutine of its own,
	// and should call Stop.
	End func()
}

// A Listener makes this process the server of a node: it holds the node's lock, guards the node's
// files, and accepts the connections of processes that may connect. All methods except Claim and
// Open may be called concurrently.
type Listener struct {
	conf    Config
	id      *Identity
	limited *ratelog.Logger // for log lines that can be repeated

	life context.Context // ends when Stop begins; end ends it
	end  context.CancelFunc
	busy sync.WaitGroup // guards, and goroutines that accept

	unproved   *connlimit.Set // connections at TCP ports that have not proved to know the key
	displaced  chan struct{}  // closed when another server has the node's files
	displace   sync.Once
	latecomers latecomers

	member        func() Member // what PATH.member is to say; nil if there is to be no file. Set before Open
	memberChanged chan struct{} // has a value when what member returns has changed

	mu      sync.Mutex
	stopped bool
	sockets []*socket // the first is that of Claim
}

// New returns a Listener of a node in memory, with identity id.
func New(id *Identity, conf Config) *Listener {
	if conf.Check == 0 {
		conf.Check = time.Second
	}
	l := &Listener{conf: conf, id: id, limited: ratelog.New(conf.Log),
		unproved: connlimit.New(maxUnproved, maxUnprovedOfSource), displaced: make(chan struct{}), memberChanged: make(chan struct{}, 1)}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// Open listens at the path of Claim.
func (l *Listener) Open() error { return l.open(l.first()) }

// OpenSecond listens at a second path too. PATH.node of the second path names the first one. A
// context that has joined at the second path does not serve there when this server ends, because
// another server may serve at the first path. It waits for this server to return.
func (l *Listener) OpenSecond(path string) error {
	if path == "" {
		return fmt.Errorf("directory: serving at a second path: %w: the path is empty", fs.ErrInvalid)
	}
	b, err := l.lock(path)
	if err != nil {
		return err
	}
	b.note = secondPrefix + l.first().path + "\n"
	if _, err = readNodeFile(b.path + nodeSuffix); err == nil {
		err = writeFile(b.path+nodeSuffix, []byte(b.note))
	}
	if err == nil {
		err = l.open(b)
	}
	if err != nil {
		b.lock.Close()
	}
	return err
}

// all returns the sockets whose locks are held.
func (l *Listener) all() []*socket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sockets)
}

// first returns the socket of Claim, which must have succeeded.
func (l *Listener) first() *socket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sockets[0]
}

// open listens at b, whose lock is held and whose path is free.
func (l *Listener) open(b *socket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return wire.ErrClosed
	}
	if err := b.openLocked(); err != nil {
		return err
	}
	b.nodeFile, _ = identify(b.path + nodeSuffix)
	if !slices.Contains(l.sockets, b) {
		l.sockets = append(l.sockets, b)
	}
	l.busy.Go(func() { l.guard(b, l.conf.Check) })
	l.acceptAt(b.ln, l.admit)
	return nil
}

// OpenTCP listens also at tcp://HOST:PORT of the loopback interface, and returns the address. If
// the port is 0, the kernel chooses it. A TCP socket has no owner, so both ends must know the
// node's key, which is in a file that only its user can read.
func (l *Listener) OpenTCP(addr string) (string, error) {
	if err := CheckListenTCP(addr); err != nil {
		return "", err
	}
	ln, err := net.Listen("tcp", strings.TrimPrefix(addr, tcpScheme))
	if err != nil {
		return "", fmt.Errorf("directory: listening at %s: %w", addr, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		ln.Close()
		return "", wire.ErrClosed
	}
	context.AfterFunc(l.life, func() { ln.Close() })
	l.acceptAt(ln, l.challenge)
	return tcpScheme + ln.Addr().String(), nil
}

// Displaced returns a channel that is closed when another server has the node's files.
func (l *Listener) Displaced() <-chan struct{} { return l.displaced }

// Stop ends listening, removes the sockets, and waits for the goroutines of the Listener. The locks
// stay held until Unlock. Connections that were passed to Serve stay.
func (l *Listener) Stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.end()
	for _, b := range l.all() {
		b.unlisten()
	}
	l.busy.Wait()
}

// Unlock releases the node's locks, after Stop.
func (l *Listener) Unlock() error {
	var err error
	for _, b := range l.all() {
		err = errors.Join(err, b.unlock())
	}
	return err
}

// acceptPause is how long a server waits after accept has failed.
const acceptPause = 20 * time.Millisecond

// acceptAt begins accept.
func (l *Listener) acceptAt(ln net.Listener, serve func(net.Conn)) {
	l.busy.Go(func() { l.accept(ln, serve) })
}

// accept passes the connections of ln to serve, each in a goroutine of its own, until ln is closed.
func (l *Listener) accept(ln net.Listener, serve func(net.Conn)) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Cause: mostly no descriptors are left. Remedy: raise `LimitNOFILE`.
			l.limited.Warn("", "directory: accepting", "err", err)
			select { // the process has no free descriptors: wait
			case <-time.After(acceptPause):
			case <-l.life.Done():
				return
			}
			continue
		}
		go serve(nc)
	}
}

// challenge serves a client that proves that it knows the node's key.
func (l *Listener) challenge(nc net.Conn) {
	waiting := l.unproved.Add(nc)
	defer waiting.Release()
	_ = nc.SetDeadline(time.Now().Add(serverTime))
	if err := serverHandshake(nc, l.id); err != nil {
		// Cause: a process without the node's key tried to connect. Remedy: give it the identity
		// file, or stop it.
		l.limited.Warn(netsource.Of(nc.RemoteAddr()), "directory: refused", "remote", nc.RemoteAddr(), "err", err)
		nc.Close()
		return
	}
	waiting.Release()
	_ = nc.SetDeadline(time.Time{})
	l.conf.Serve(nc)
}
