package context

import (
	stdctx "context"
	"log/slog"
	"net"
	"time"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

type config struct {
	socket      string
	joinOnly    bool
	dial        func(stdctx.Context) (net.Conn, error)
	transports  []subsys.Transport
	listen      []string
	poll        dispatch.PollPolicy
	mailbox     int
	memory      int64
	linger      time.Duration
	giveUp      time.Duration
	cluster     string
	logger      *slog.Logger
	undelivered func(dispatch.Undelivered)
}

func defaults() config {
	return config{
		transports: []subsys.Transport{inproc.New(), tcp.New()},
		linger:     5 * time.Second,
		logger:     slog.New(slog.DiscardHandler),
	}
}

// An Option changes one default of Open.
type Option func(*config)

// WithSocket names the Unix socket of the node's directory. The default is
// $ROCL_SOCKET, else a socket in the user's runtime directory.
func WithSocket(path string) Option { return func(c *config) { c.socket = path } }

// JoinOnly makes Open fail with ErrNoDirectory where no directory serves the
// node, rather than serve it.
func JoinOnly() Option { return func(c *config) { c.joinOnly = true } }

// WithDirectory reaches the directory through dial instead of a socket; it
// implies JoinOnly. Tests use it to stay in memory.
func WithDirectory(dial func(stdctx.Context) (net.Conn, error)) Option {
	return func(c *config) { c.dial = dial }
}

// WithTransports names the transports to open a port on, best first. The
// default is in-process, then TCP on the loopback interface.
func WithTransports(t ...subsys.Transport) Option {
	return func(c *config) { c.transports = t }
}

// WithListen names addresses to listen at, such as tcp://10.0.0.7:0, in place
// of the one its transport would choose.
func WithListen(urls ...string) Option { return func(c *config) { c.listen = urls } }

// WithPoll says whether those who wait for messages poll before they sleep.
func WithPoll(p dispatch.PollPolicy) Option { return func(c *config) { c.poll = p } }

// WithMailbox sets the byte limit of mailboxes; 16 MiB if not given. Beyond it
// senders wait.
func WithMailbox(bytes int) Option { return func(c *config) { c.mailbox = bytes } }

// WithMemory bounds the registered memory of the context's buffers, in bytes.
func WithMemory(bytes int64) Option { return func(c *config) { c.memory = bytes } }

// WithLinger says how long Close waits for accepted messages to be delivered;
// 5 s if not given.
func WithLinger(d time.Duration) Option { return func(c *config) { c.linger = d } }

// WithGiveUp says how long a context may be out of reach before sends to it
// fail with ErrUnreachable; 10 s if not given.
func WithGiveUp(d time.Duration) Option { return func(c *config) { c.giveUp = d } }

// WithCluster names the cluster; contexts of different clusters do not link.
func WithCluster(name string) Option { return func(c *config) { c.cluster = name } }

// WithLogger sends the library's logs to l. They are discarded otherwise.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.logger = l
		}
	}
}

// WithUndelivered calls f for each message that was accepted by Send and could
// not be delivered, because its resource or context is gone. f must not block.
func WithUndelivered(f func(dispatch.Undelivered)) Option {
	return func(c *config) { c.undelivered = f }
}
