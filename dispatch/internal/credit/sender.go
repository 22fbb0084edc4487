// SPDX-License-Identifier: Apache-2.0

package credit

// A Sender is the sender's side of an account. If a sender gives up, its question stays with the
// receiver: the credit for it may still come. Then no goroutine waits for that credit, and
// GiveBack returns it.
type Sender struct {
	rules
	sent     uint64   // charged bytes, in all
	limit    uint64   // the charged bytes that may be sent, in all
	asked    uint64   // the limit that was asked for last; 0: none
	askedFor Outgoing // the message for which it was asked
	unasked  span     // limits that were asked for, may still be granted, and that no sender waits for
}

// A span is the least and the greatest of some limits; zeros mean that there are none.
type span struct{ least, most uint64 }

// add adds the limit n.
func (s *span) add(n uint64) {
	if s.least == 0 || n < s.least {
		s.least = n
	}
	s.most = max(s.most, n)
}

// NewSender returns the side of a sender that may have sent first before it was granted anything.
func NewSender(first uint64) Sender { return Sender{rules: rules{first: first}, limit: first} }

// Take takes the credit for a message charged c. It reports false if there is less.
func (s *Sender) Take(c uint64) bool {
	if s.sent+c > s.limit {
		return false
	}
	s.sent += c
	return true
}

// PutBack undoes Take for a message that was not sent.
func (s *Sender) PutBack(c uint64) { s.sent -= c }

// Sent returns the charged bytes that were sent, in all.
func (s *Sender) Sent() uint64 { return s.sent }

// Asked returns the limit that was asked for last, or 0.
func (s *Sender) Asked() uint64 { return s.asked }

// Limit returns the limit that this side has, or the one that it has asked for, if that is larger.
func (s *Sender) Limit() uint64 { return max(s.limit, s.asked) }

// Grant sets what may be sent, in all. It reports false if that is no more than before.
func (s *Sender) Grant(limit uint64) bool {
	if limit <= s.limit {
		return false
	}
	s.limit = limit
	return true
}

// SetUnit sets the least that a message is charged. It reports false if the unit is too large, or
// another one was set.
func (s *Sender) SetUnit(unit uint64) bool {
	if unit > Charge(MaxMessage) || s.unit != 0 && s.unit != unit {
		return false
	}
	s.unit = unit
	return true
}

// Ask asks for the credit that the message o, charged c, needs. It returns the limit to ask the
// receiver for, and reports false if that was asked for already.
func (s *Sender) Ask(c uint64, o Outgoing) (need uint64, isNew bool) {
	if need = s.sent + c; need == s.asked && o == s.askedFor {
		return need, false
	}
	if need != s.asked { // less than before if the first sender has given up
		s.forget()
	}
	s.asked, s.askedFor = need, o
	return need, true
}

// HasAsked reports whether the limit that a message charged c needs was asked for last.
func (s *Sender) HasAsked(c uint64) bool { return s.sent+c == s.asked }

// forget notes that no sender waits for the limit that was asked for last.
func (s *Sender) forget() {
	if s.asked > s.limit {
		s.unasked.add(s.asked)
	}
	s.asked = 0
}

// Withdraw withdraws what was asked for: no sender waits any more. It returns the limit to tell the
// receiver, and reports false if nothing is open.
func (s *Sender) Withdraw() (limit uint64, isOpen bool) {
	if s.asked <= s.limit {
		return 0, false
	}
	s.forget()
	return s.limit, true
}

// GiveBack returns credit that no sender uses, because other contexts may wait for it: what a
// sender leaves that has just given up, or what has come for one that gave up before. No sender may
// wait. GiveBack returns the new limit and the one that was held, and reports false if there is
// nothing to give back.
func (s *Sender) GiveBack(hasGivenUp bool) (limit, held uint64, gives bool) {
	switch {
	case hasGivenUp:
		s.forget()
	case s.unasked.least == 0 || s.limit < s.unasked.least:
		return 0, 0, false
	}
	if s.limit >= s.unasked.most { // more than that is not to come
		s.unasked = span{}
	}
	if s.limit-s.sent <= s.first {
		return 0, 0, false
	}
	held = s.limit
	s.limit = s.sent + s.first
	return s.limit, held, true
}

// Refused notes that the receiver never has memory for the message o, for which the limit need was
// asked. It reports false if the sender of o has given up.
func (s *Sender) Refused(need uint64, o Outgoing) bool {
	if s.asked != need || s.askedFor != o {
		return false
	}
	s.asked, s.askedFor = 0, Outgoing{}
	return true
}
