package port

import (
	"net"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// An asker is a socket for questions, apart from the port proper. Answers come
// back to it. While somebody polls it, it is in no set, so that an answer wakes
// nobody: who waits for it reads it himself.
type asker struct {
	*socket
	watched bool      // it is in the poller
	late    time.Time // until then answers may come that nobody else reads
}

// lateTime is how long an answer is waited for at the socket that asked.
const lateTime = time.Second

// Ask is Send, and then reads what comes back until done, for d at most. Of
// several that ask at a time one reads; the others, and he for whom d was not
// enough, are served by the keeper.
func (p *Port) Ask(d time.Duration, done func() bool, out ...Out) {
	var k *asker
	select {
	case k = <-p.asking:
	default:
		p.Send(out...)
		return
	}
	defer func() { p.asking <- k }()
	if p.life.Err() != nil {
		return
	}
	if k == nil {
		s, err := newSocket(&net.UDPAddr{IP: p.main.at.IP, Zone: p.main.at.Zone}, false)
		if err != nil {
			p.log.Debug("port: a socket for questions", "err", err)
			p.Send(out...)
			return
		}
		s.handle = p.datagram
		k = &asker{socket: s}
	}
	if k.watched {
		p.poller.Remove(k.fd)
		k.watched = false
	}
	p.send(k.socket, saysData, out)
	begun := time.Now()
	now := begun
	for i := 1; !done(); i++ {
		k.Ready(subsys.Readable)
		if i%16 != 0 {
			continue
		}
		if now = time.Now(); now.Sub(begun) > d || p.life.Err() != nil {
			k.late = now.Add(lateTime)
			break
		}
	}
	if now.Before(k.late) { // ours, or another's
		k.watched = p.poller.Add(k.fd, k.socket) == nil
	}
}
