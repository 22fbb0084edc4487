package directory

import (
	"context"
	"time"

	"github.com/rocl-go/rocl/directory/database"
)

// settleTime is how long a server that follows another holds a no back: the
// contexts its predecessor knew are about to offer what they own.
const (
	settleTime = 300 * time.Millisecond
	settleStep = 5 * time.Millisecond
)

// Follows says that the node has had another server before.
func (s *Server) Follows() bool { return s.id.Epoch > 1 }

// opens says that contexts can come from now on.
func (s *Server) opens() {
	now := time.Now()
	s.begun.Store(&now)
}

// Settled says that the server knows what its predecessor knew: the contexts
// have had time to offer it again.
func (s *Server) Settled() bool {
	begun := s.begun.Load()
	return !s.Follows() || begun != nil && time.Since(*begun) >= settleTime
}

// patiently asks again while the server is settling. An error says that ctx or
// the server ended first, and is no answer.
func (s *Server) patiently(ctx context.Context, ask func() (database.Record, bool)) (r database.Record, ok bool, err error) {
	for {
		r, ok = ask()
		switch {
		case ok || s.Settled():
			return r, ok, nil
		case s.life.Err() != nil:
			return r, false, ErrClosed
		}
		if err = sleep(ctx, settleStep); err != nil {
			return r, false, err
		}
	}
}

// settle waits until the server has settled, or ended.
func (s *Server) settle() {
	_, _, _ = s.patiently(s.life, func() (r database.Record, ok bool) { return })
}
