// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	build "github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/resource"
)

// A Status is what a server says of itself. It is JSON of [Client.Control].
type Status struct {
	Version string          `json:"version"` // of the library
	PID     int             `json:"pid"`     // as the server sees itself
	Program string          `json:"program"` // the name of the executable, without its folder
	Daemon  bool            `json:"daemon"`  // see AsDaemon
	Node    resource.NodeID `json:"node"`
	Epoch   uint64          `json:"epoch"`   // of the server, one more than that of the server before it
	Serving time.Duration   `json:"serving"` // for how long it has served
	Cluster string          `json:"cluster,omitempty"`
	Sealed  bool            `json:"sealed,omitempty"`
	Lost    []LostProgram   `json:"lost,omitempty"` // the last ones, in the order of their ends
	// Member is what the Remote says of the cluster, as JSON; nil if the node is in none.
	Member json.RawMessage `json:"member,omitempty"`
}

// A LostProgram is a program with resources that has ended without closing its context, such as one
// that was killed.
type LostProgram struct {
	Program   string        `json:"program"` // its name, as the kernel has it
	PID       int           `json:"pid"`     // as the server sees it; 0 if it is not known
	Resources int           `json:"resources"`
	Ago       time.Duration `json:"ago_ns"` // how long before the answer its end was seen
}

// mostLost limits Status.Lost.
const mostLost = 16

// A lostProgram is a LostProgram, and when its end was seen.
type lostProgram struct {
	LostProgram
	at time.Time
}

// noteLost keeps a lost program for Status.
func (s *Server) noteLost(p LostProgram) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lost) == mostLost {
		s.lost = s.lost[1:]
	}
	s.lost = append(s.lost, lostProgram{p, time.Now()})
}

// WithControl gives the server a function that does in its process what programs of the node's user
// ask by [Client.Control], such as to change the level of its log. The function returns what
// becomes JSON. It may be called concurrently. ctx ends when the server closes.
func WithControl(f func(ctx context.Context, do string, args []string) (any, error)) Option {
	return func(s *Server) { s.control = f }
}

// A controlRequest is the body of a message control.
type controlRequest struct {
	Do   string   `json:"do"`
	Args []string `json:"args,omitempty"`
}

// Control asks the server to do something in its process, and returns the result, which is JSON.
// Any server knows "status", whose result is a Status. The others are those of the server's
// program: see WithControl. The error matches ErrProtocol if the server is of an older version,
// which knows none.
func (c *Client) Control(ctx context.Context, do string, args ...string) (result json.RawMessage, err error) {
	q, err := json.Marshal(controlRequest{do, args})
	if err != nil {
		return nil, err
	}
	err = c.withConn(ctx, func(a *askConn) error {
		b, err := a.exchange(ctx, wire.MsgControl, wire.MsgControlled, func(b *wire.Builder) { b.Append(q) })
		if err == nil {
			result = append(result[:0], b...)
		}
		return err
	})
	return result, err
}

// serveControl answers the message control. Only processes of the node's user and of root reach
// this: see node.Listener.
func (s *Server) serveControl(ctx context.Context, c *wire.Conn, m *wire.Message) error {
	var q controlRequest
	if err := json.Unmarshal(m.Body, &q); err != nil {
		return fmt.Errorf("%w: control: %w", ErrProtocol, err)
	}
	var v any
	var err error
	switch {
	case q.Do == "status":
		v = s.status()
	case s.control == nil:
		err = fmt.Errorf("directory: %q: the program that serves the node is no dirserver", q.Do)
	default:
		v, err = s.control(ctx, q.Do, q.Args)
	}
	var b []byte
	if err == nil {
		b, err = json.Marshal(v)
	}
	if err == nil && len(b) > wire.MaxBody {
		err = fmt.Errorf("directory: %q: the answer has %d bytes, which are too many", q.Do, len(b))
	}
	if err != nil {
		return c.SendError(m.ID, err)
	}
	c.Begin(wire.MsgControlled, m.ID)
	c.Append(b)
	return c.Send()
}

// status returns what the server says of itself.
func (s *Server) status() *Status {
	terms := s.currentTerms()
	v := &Status{
		Version: build.String(), PID: os.Getpid(), Program: program(), Daemon: s.daemon, Node: s.id.Node, Epoch: s.id.Epoch,
		Cluster: terms.Cluster, Sealed: terms.Sealed,
	}
	if at := s.opened.Load(); at != nil {
		v.Serving = time.Since(*at)
	}
	s.mu.Lock()
	for _, l := range s.lost {
		l.Ago = time.Since(l.at)
		v.Lost = append(v.Lost, l.LostProgram)
	}
	s.mu.Unlock()
	if r, ok := s.attachedRemote().(interface{ Status() any }); ok {
		v.Member, _ = json.Marshal(r.Status())
	}
	return v
}

// program returns the name of this process's executable.
func program() string { return filepath.Base(os.Args[0]) }

// Status says that the node is no member at present, and why.
func (u unreachable) Status() any { return map[string]string{"error": u.why.Error()} }
