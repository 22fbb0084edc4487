// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"slices"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// An asker is a socket for questions, apart from the port's main socket. Answers come back to it.
// While a goroutine polls it, it is not in the Poller: the goroutine reads the answer itself, and
// the answer wakes no other goroutine. If the answer takes too long, the asker is added to the
// Poller, and stays there for as long as an answer may come. The next question uses another asker
// meanwhile.
type asker struct {
	*socket
	late time.Time    // until when it stays in the Poller; zero: it is not in it
	last *net.UDPAddr // the address that was asked last; nil: none, or several
	same int          // how often last was asked in a row
}

// steady is how many questions in a row go from a socket to one member before the socket is
// connected to it. The kernel then does not look up the route for each datagram.
const steady = 16

const (
	soon = 16 // reads of a socket between two looks at the clock
	// lateTime is how long an answer is awaited at the socket that asked. After that the question
	// is asked again.
	lateTime   = 20 * time.Millisecond
	mostAskers = 16
)

// Ask is Send, and then reads what comes back until done reports true, for d at most. If several
// goroutines ask at a time, one reads. The keeper serves the rest, and the one for which d was not
// enough. Ask calls late once if an answer takes longer than usual, and in any case before it
// returns without an answer.
func (x *Mux) Ask(d time.Duration, done func() bool, late func(), out ...Out) {
	if !x.asking.TryLock() {
		x.Send(out...)
		late()
		return
	}
	defer x.asking.Unlock()
	var k *asker
	var only *peer
	if x.lifetime.Err() == nil {
		only = x.only(out)
		k = x.asker(only)
	}
	if k == nil {
		x.Send(out...)
		late()
		return
	}
	x.polling.Store(true)
	defer x.polling.Store(false)
	x.sendTo(k.socket, only, plainData, out)
	var begun time.Time // zero until an answer takes long
	for i := 1; !done(); i++ {
		k.Ready(subsys.Readable)
		if i%soon != 0 {
			continue
		}
		now := time.Now()
		if begun.IsZero() {
			begun = now
			late()
		}
		if now.Sub(begun) > d || x.lifetime.Err() != nil {
			if x.poller.Add(k.fd, k.socket) == nil {
				k.late = now.Add(lateTime)
			}
			return
		}
	}
}

// only returns the peer to which all of out goes, or nil if out is not one datagram to its port.
func (x *Mux) only(out []Out) *peer {
	if len(out) != 1 || out[0].At != nil {
		return nil
	}
	return x.peer(out[0].To)
}

// asker returns an asker to which no answer will come any more, and which can send to only, or
// anywhere if only is nil. It returns nil if there is none. x.asking must be held.
func (x *Mux) asker(only *peer) *asker {
	var to *net.UDPAddr
	if only != nil {
		to = only.addr
	}
	for _, k := range x.askers {
		if !k.late.IsZero() || k.to != nil && k.to != to {
			continue
		}
		if to == nil || to != k.last {
			k.last, k.same = to, 0
		} else if k.same++; k.same == steady {
			k.connect(to)
		}
		return k
	}
	now := time.Now()
	if i := slices.IndexFunc(x.askers, func(k *asker) bool { return now.After(k.late) && (k.to == nil || k.to == to) }); i >= 0 {
		k := x.askers[i]
		x.poller.Remove(k.fd)
		k.late = time.Time{}
		return k
	}
	if len(x.askers) == mostAskers {
		// An asker connected with another member is of no use here.
		i := slices.IndexFunc(x.askers, func(k *asker) bool { return k.to != nil && !now.Before(k.late) })
		if i < 0 {
			return nil
		}
		if !x.askers[i].late.IsZero() {
			x.poller.Remove(x.askers[i].fd)
		}
		x.askers[i].close()
		x.askers = slices.Delete(x.askers, i, i+1)
	}
	s, err := newSocket(&net.UDPAddr{IP: x.main.at.IP, Zone: x.main.at.Zone}, false)
	if err != nil {
		x.log.Debug("mux: a socket for questions cannot be opened", "err", err)
		return nil
	}
	s.handle = x.datagram
	k := &asker{socket: s}
	x.askers = append(x.askers, k)
	return k
}
