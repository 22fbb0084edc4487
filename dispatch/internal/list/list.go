// SPDX-License-Identifier: Apache-2.0

// Package list has doubly linked lists of elements that contain their own places, so that adding an
// element allocates nothing. The caller's lock guards a list and the places in it.
package list

// A List is a list of elements of type T. The zero value is an empty list.
type List[T any] struct{ first, last *Place[T] }

// A Place is the part of an element that a list uses. An element has a Place for each list that it
// may be in at the same time. The zero value is in no list.
type Place[T any] struct {
	next, prev *Place[T]
	elem       *T // the element; nil: the place is in no list
}

// First returns the first element, or nil.
func (l *List[T]) First() *T { return l.first.element() }

// Last returns the last element, or nil.
func (l *List[T]) Last() *T { return l.last.element() }

// Next returns the element behind the one with place p, or nil.
func (p *Place[T]) Next() *T { return p.next.element() }

// Prev returns the element before the one with place p, or nil.
func (p *Place[T]) Prev() *T { return p.prev.element() }

// IsListed reports whether the place is in a list.
func (p *Place[T]) IsListed() bool { return p.elem != nil }

func (p *Place[T]) element() *T {
	if p == nil {
		return nil
	}
	return p.elem
}

// PushBack adds e, whose place p is in no list, as the last element.
func (l *List[T]) PushBack(e *T, p *Place[T]) {
	p.elem, p.prev = e, l.last
	if l.last != nil {
		l.last.next = p
	} else {
		l.first = p
	}
	l.last = p
}

// PushFront adds e, whose place p is in no list, as the first element.
func (l *List[T]) PushFront(e *T, p *Place[T]) {
	p.elem, p.next = e, l.first
	if l.first != nil {
		l.first.prev = p
	} else {
		l.last = p
	}
	l.first = p
}

// InsertBehind adds e, whose place p is in no list, behind the element with place at.
func (l *List[T]) InsertBehind(at *Place[T], e *T, p *Place[T]) {
	*p = Place[T]{at.next, at, e}
	if at.next != nil {
		at.next.prev = p
	} else {
		l.last = p
	}
	at.next = p
}

// Replace puts e, whose place p is in no list, into the place of the element with place old.
func (l *List[T]) Replace(old *Place[T], e *T, p *Place[T]) {
	*p = Place[T]{old.next, old.prev, e}
	if p.prev != nil {
		p.prev.next = p
	} else {
		l.first = p
	}
	if p.next != nil {
		p.next.prev = p
	} else {
		l.last = p
	}
	*old = Place[T]{}
}

// Remove takes the element with place p, which is in l, out of l.
func (l *List[T]) Remove(p *Place[T]) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	*p = Place[T]{}
}
