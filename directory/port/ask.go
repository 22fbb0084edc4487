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
	late time.Time // until when it is in the Poller; zero: it is not
}

const (
	lateTime   = 20 * time.Millisecond // how long an answer is waited for at the socket that asked: then who asked asks again
	mostAskers = 16
)

// askers are those there are. They belong to who has taken it.
type askers struct{ all []*asker }

// Ask is Send, and then reads what comes back until done, for d at most. Of
// several that ask at a time one reads; the others, and he for whom d was not
// enough, are served by the keeper.
func (p *Port) Ask(d time.Duration, done func() bool, out ...Out) {
	var free askers
	select {
	case free = <-p.asking:
	default:
		p.Send(out...)
		return
	}
	defer func() { p.asking <- free }()
	if p.life.Err() != nil {
		return
	}
	k := p.asker(&free)
	if k == nil {
		p.Send(out...)
		return
	}
	p.polling.Store(true)
	defer p.polling.Store(false)
	p.send(k.socket, saysData, out)
	var begun time.Time // looked at only where it takes long
	for i := 1; !done(); i++ {
		k.Ready(subsys.Readable)
		if i%16 != 0 {
			continue
		}
		now := time.Now()
		if begun.IsZero() {
			begun = now
		}
		if now.Sub(begun) > d || p.life.Err() != nil {
			if p.poller.Add(k.fd, k.socket) == nil {
				k.late = now.Add(lateTime)
			}
			return
		}
	}
}

// asker is one to which no answer will come any more, nil if there is none.
func (p *Port) asker(a *askers) *asker {
	if i := slices.IndexFunc(a.all, func(k *asker) bool { return k.late.IsZero() }); i >= 0 {
		return a.all[i]
	}
	now := time.Now()
	if i := slices.IndexFunc(a.all, func(k *asker) bool { return now.After(k.late) }); i >= 0 {
		k := a.all[i]
		p.poller.Remove(k.fd)
		k.late = time.Time{}
		return k
	}
	if len(a.all) == mostAskers {
		return nil
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
