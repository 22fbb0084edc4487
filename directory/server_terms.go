// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"slices"

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// currentTerms returns the present terms. A node without a cluster has a key of its own.
func (s *Server) currentTerms() Terms {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.terms
	if len(t.Keys) == 0 {
		k := s.id.LinkKey()
		t.Keys = [][]byte{k[:]}
	}
	return t
}

// SetTerms sets the terms on which the node's contexts link, and sends them to the contexts that
// have joined. If t has no keys, the contexts use the node's own key. The caller must not change t
// afterwards. SetTerms does not wait for the contexts: each gets the terms from a goroutine of its
// own.
//
// A cluster.Membership calls SetTerms and SetLinkKeys, each with its mutex keysMu held, so that the
// older of two changes never comes last.
func (s *Server) SetTerms(t Terms) { s.changeTerms(func(to *Terms) { *to = t }) }

// SetLinkKeys changes the keys and leaves the other terms. New links use the first key; the other
// keys stay valid.
func (s *Server) SetLinkKeys(keys ...[32]byte) {
	s.changeTerms(func(t *Terms) {
		t.Keys = nil
		for _, k := range keys {
			t.Keys = append(t.Keys, slices.Clone(k[:]))
		}
	})
}

// changeTerms changes the terms, and sends them if they are other ones then.
func (s *Server) changeTerms(change func(*Terms)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.terms
	if change(&s.terms); !before.equal(&s.terms) {
		s.sendTermsLocked()
	}
}

// resendTerms sends the present terms to the contexts that have joined, which then show their
// presence in a new lock file.
func (s *Server) resendTerms() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendTermsLocked()
}

// sendTermsLocked sends the present terms to the contexts that have joined. mu must be held.
func (s *Server) sendTermsLocked() {
	if s.closed {
		return
	}
	for _, l := range s.contexts {
		s.busy.Go(func() { s.sendTerms(l) }) // a context may be slow to read
	}
}

// sendTerms sends the present terms to a context. l.mu orders concurrent calls, so the last message
// has the newest terms.
func (s *Server) sendTerms(l *registrationServer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := s.currentTerms()
	terms := t.list()
	l.out.Begin(wire.MsgTerms, 0)
	l.out.Append(terms.Wire())
	_ = l.out.Send() // the goroutine that reads the connection notices its end
}
