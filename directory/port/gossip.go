package port

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/go-sockaddr"
	"github.com/hashicorp/memberlist"
)

// gossipByte is how everything of memberlist begins that has a label.
const gossipByte = 244

// Gossip is the port as memberlist sees it. A label must be set.
func (p *Port) Gossip() memberlist.NodeAwareTransport { return gossip{p} }

type gossip struct{ p *Port }

func advertised(host string, at *net.TCPAddr) (*net.UDPAddr, error) {
	if !at.IP.IsUnspecified() {
		return &net.UDPAddr{IP: at.IP, Port: at.Port, Zone: at.Zone}, nil
	}
	ip := private(at.IP.To4() != nil)
	if ip == nil {
		return nil, fmt.Errorf("port: %s is every address, and none of this machine's is private: name one", host)
	}
	return &net.UDPAddr{IP: ip, Port: at.Port}, nil
}

// private is the private address of the interface that leads outside; nil if
// there is none.
func private(only4 bool) net.IP {
	all, err := sockaddr.GetPrivateInterfaces()
	if err != nil {
		return nil
	}
	for _, i := range all {
		if a := sockaddr.ToIPAddr(i.SockAddr); a != nil {
			if ip := *(*a).NetIP(); !only4 || ip.To4() != nil {
				return ip
			}
		}
	}
	return nil
}

// network says which family is listened to: with no host, that of the address
// that is told to others, because casts go out by the same socket.
func network(host string) string {
	ip := net.ParseIP(host)
	if host == "" {
		ip = private(false)
	}
	if ip.To4() != nil {
		return "tcp4"
	}
	return "tcp"
}

func (g gossip) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return g.p.adv.IP, g.p.adv.Port, nil
}

func (g gossip) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("port: gossip to %s: %w", addr, err)
	}
	g.p.count.GossipSent.Add(1)
	g.p.count.GossipSentBytes.Add(uint64(len(b)))
	return time.Now(), g.p.main.write(b, to)
}

func (g gossip) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return g.WriteTo(b, a.Addr)
}

func (g gossip) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(g.p.life, timeout)
	defer cancel()
	return g.p.DialAddr(ctx, addr)
}

func (g gossip) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return g.DialTimeout(a.Addr, timeout)
}

func (g gossip) PacketCh() <-chan *memberlist.Packet { return g.p.packets }
func (g gossip) StreamCh() <-chan net.Conn           { return g.p.streams }

// Shutdown implements memberlist.Transport. The port outlives memberlist.
func (g gossip) Shutdown() error { return nil }
