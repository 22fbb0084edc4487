// SPDX-License-Identifier: Apache-2.0

package port

import (
	"net"
	"slices"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// An asker is a socket for questions, apart from the port proper. Answers come
// back to it. While somebody polls it, it is in no set, so that an answer wakes
// nobody: who waits for it reads it himself. If that takes too long it is put
// into the Poller, and left there for as long as an answer may come, while
// others ask from another one.
type asker struct {
	*socket
	late time.Time    // until when it is in the Poller; zero: it is not
	last *net.UDPAddr // whom it asked last
	same int          // how often now
}

// steady is how often one member is asked from a socket before the two are
// connected, which spares the kernel looking for the way each time.
const steady = 16

const (
	soon       = 16                    // times that a socket is read before it is late
	lateTime   = 20 * time.Millisecond // how long an answer is waited for at the socket that asked: then who asked asks again
	mostAskers = 16
)

// askers are those there are, of who has locked asking.
type askers struct{ all []*asker }

// Ask is Send, and then reads what comes back until done, for d at most. Of
// several that ask at a time one reads; the others, and he for whom d was not
// enough, are served by the keeper. Where it takes longer than an answer does
// that is polled for, it calls late, once; in any case before it returns without
// an answer.
func (p *Port) Ask(d time.Duration, done func() bool, late func(), out ...Out) {
	if !p.asking.TryLock() {
		p.Send(out...)
		late()
		return
	}
	defer p.asking.Unlock()
	var k *asker
	var only *peer
	if p.life.Err() == nil {
		only = p.only(out)
		k = p.asker(&p.askers, only)
	}
	if k == nil {
		p.Send(out...)
		late()
		return
	}
	p.polling.Store(true)
	defer p.polling.Store(false)
	p.sendTo(k.socket, only, saysData, out)
	var begun time.Time // looked at only where it takes long
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
		if now.Sub(begun) > d || p.life.Err() != nil {
			if p.poller.Add(k.fd, k.socket) == nil {
				k.late = now.Add(lateTime)
			}
			return
		}
	}
}

// only is to whom all goes, nil if that is not one.
func (p *Port) only(out []Out) *peer {
	if len(out) != 1 || out[0].At != nil {
		return nil
	}
	return p.peer(out[0].To)
}

// asker is one to which no answer will come any more and which can send there,
// anywhere if only is nil; nil if there is none.
func (p *Port) asker(a *askers, only *peer) *asker {
	var to *net.UDPAddr
	if only != nil {
		to = only.addr
	}
	for _, k := range a.all {
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
	if i := slices.IndexFunc(a.all, func(k *asker) bool { return now.After(k.late) && (k.to == nil || k.to == to) }); i >= 0 {
		k := a.all[i]
		p.poller.Remove(k.fd)
		k.late = time.Time{}
		return k
	}
	if len(a.all) == mostAskers {
		// Those connected with somebody else are of no use for this.
		i := slices.IndexFunc(a.all, func(k *asker) bool { return k.to != nil && !now.Before(k.late) })
		if i < 0 {
			return nil
		}
		if !a.all[i].late.IsZero() {
			p.poller.Remove(a.all[i].fd)
		}
		a.all[i].close()
		a.all = slices.Delete(a.all, i, i+1)
	}
	s, err := newSocket(&net.UDPAddr{IP: p.main.at.IP, Zone: p.main.at.Zone}, false)
	if err != nil {
		p.log.Debug("port: a socket for questions", "err", err)
		return nil
	}
	s.handle = p.datagram
	k := &asker{socket: s}
	a.all = append(a.all, k)
	return k
}
