// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/resource"
)

// ErrMember is returned where the settings of a member of a cluster are not valid, or its key or its
// certificates cannot be used.
var ErrMember = errors.New("rocl: invalid settings of a member")

// Terms are on what terms the contexts of a node link with others. Their server
// tells them, when they join and whenever that changes.
type Terms struct {
	Keys    [][]byte // who knows one of them may link
	Member  bool     // the node is in a cluster
	Cluster string   // the name of the cluster
	Host    string   // the IP address at which other nodes reach this one, "" if none
	Sealed  bool     // what goes to other nodes is to be sealed
	// Certificates says that the operator's certificates show who is one of the
	// cluster, in place of those that are made from keys.
	Certificates bool

	level uint8 // what the server understands: see the constant; 0 of one that does not say
}

// Names of the terms as they travel, in a list of attributes; who does not know
// a name passes it over.
const (
	termKey     = "key" // repeated
	termCluster = "cluster"
	termHost    = "host"
	termSealed  = "sealed"
	termCerts   = "certificates"
	termLevel   = "level"
)

func (t *Terms) list() (l resource.List) {
	add := func(name string, value []byte) { _ = l.Add(name, value) } // a name longer than that of any list cannot be served
	for _, k := range t.Keys {
		add(termKey, k)
	}
	if t.Member {
		add(termCluster, []byte(t.Cluster))
	}
	if t.Host != "" {
		add(termHost, []byte(t.Host))
	}
	if t.Sealed {
		add(termSealed, nil)
	}
	if t.Certificates {
		add(termCerts, nil)
	}
	if t.level > 0 {
		add(termLevel, []byte{t.level})
	}
	return l
}

func parseTerms(l *resource.List) (*Terms, error) {
	t := &Terms{Host: l.GetString(termHost)}
	for k := range l.Values(termKey) {
		t.Keys = append(t.Keys, slices.Clone(k))
	}
	if len(t.Keys) == 0 {
		return nil, fmt.Errorf("%w: terms without a key", ErrProtocol)
	}
	var name []byte
	name, t.Member = l.Get(termCluster)
	t.Cluster = string(name)
	_, t.Sealed = l.Get(termSealed)
	_, t.Certificates = l.Get(termCerts)
	if v, _ := l.Get(termLevel); len(v) == 1 {
		t.level = v[0]
	}
	return t, nil
}

func (t *Terms) equal(o *Terms) bool {
	a, b := t.list(), o.list()
	return a.Equal(&b)
}

// terms are the present ones. A node without a cluster has a key of its own.
func (s *Server) terms() Terms {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.told
	t.level = level
	if len(t.Keys) == 0 {
		k := s.id.linkKey()
		t.Keys = [][]byte{k[:]}
	}
	return t
}

// SetTerms says on what terms the node's contexts link, and tells those there
// are. Without keys the node's own is theirs. t is not changed afterwards.
func (s *Server) SetTerms(t Terms) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setTerms(t)
}

// SetLinkKeys changes the keys alone: the first is what new links are to be
// made with, the others are still good.
func (s *Server) SetLinkKeys(keys ...[32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.told
	t.Keys = nil
	for _, k := range keys {
		t.Keys = append(t.Keys, slices.Clone(k[:]))
	}
	s.setTerms(t)
}

func (s *Server) setTerms(t Terms) {
	same := s.told.equal(&t)
	s.told = t
	if same || s.closed {
		return
	}
	for _, l := range s.lives {
		s.busy.Add(1)
		go func() { // it may not be reading
			defer s.busy.Done()
			s.tell(l)
		}()
	}
}

// tell tells a context the present terms: whatever order those who call it
// come in, it hears the newest last.
func (s *Server) tell(l *life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := s.terms()
	terms := t.list()
	l.out.begin(msgTerms, 0)
	l.out.bytes(terms.Wire())
	_ = l.out.send() // who is gone is noticed by the reader
}
