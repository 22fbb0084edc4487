// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/rocl-go/rocl/internal/display"
)

// An Op compares the number in an attribute with the number in a pattern.
type Op uint8

// Comparisons of two numbers.
const (
	Eq Op = 1 + iota // equal
	Ne               // not equal
	Lt               // less
	Le               // less or equal
	Gt               // greater
	Ge               // greater or equal
)

// Conditions other than comparisons.
const (
	opLeast Op = Ge + 1 + iota // order: the least number comes first
	opMost                     // order: the greatest number comes first
	opOwner                    // the resource is owned by one context
	opOneOf                    // the resource has one of several values
	opEnd
)

// String returns the sign of the comparison, such as "<=".
func (op Op) String() string {
	if op.compares() {
		return [...]string{"=", "!=", "<", "<=", ">", ">="}[op-Eq]
	}
	return fmt.Sprintf("Op(%d)", uint8(op))
}

func (op Op) compares() bool { return op >= Eq && op <= Ge }
func (op Op) orders() bool   { return op == opLeast || op == opMost }

// holds reports whether op is satisfied by a number whose comparison with the other number gave c.
func (op Op) holds(c int) bool {
	return [...]bool{Eq: c == 0, Ne: c != 0, Lt: c < 0, Le: c <= 0, Gt: c > 0, Ge: c >= 0}[op]
}

// Protocol: Conditions in patterns
//
// If the bytes of the value are 2³¹ or more, and not 2³²-1, the attribute is a condition: bits 24
// to 30 are its kind, the lower bits the length of the operand, which takes the place of the value.
//
// | kind | operand | a resource matches if |
// |---|---|---|
// | 1 to 6 | a number | its first attribute of the name is a number that is =, ≠, <, ≤, >, ≥ it |
// | 7, 8 | none | always; the least (7) or greatest (8) number is first, resources without one
// last |
// | 9 | an identifier | that context owns it; the name is `rocl.context` |
// | 10 | up to 64 values, each its bytes u32 and the value | one of its attributes of the name has
// one of the values |
//
// A number is `[+-]digits[.digits][e[+-]digits]`, at most 128 bytes, with an exponent of at most
// 1,048,576, and compared without rounding. A pattern has at most 16 conditions, one of kind 7 or 8
// and one of kind 9. Only find, list and trace take conditions. A list with an order has the first
// of each node.

// ErrCondition is returned for an invalid comparison, order or owner, for a second order or owner,
// and for a text that is not a pattern.
//
// Cause: a comparison, order or owner is invalid, for example not a finite number, or the text is
// not a pattern. Remedy: correct the pattern.
var ErrCondition = errors.New("resource: the condition makes no sense")

const (
	// maxNumber is the most bytes of a number. A longer text is not a number.
	maxNumber = 128
	// maxConditions is the most conditions of a pattern. Each condition is checked for each
	// resource.
	maxConditions = 16
	// maxValues is the most values of OneOf, and maxOneOf the most bytes of its operand.
	maxValues = 64
	maxOneOf  = 64 << 10

	// The vlen of a condition has its highest bit set, then the Op, then the length of the operand.
	// A parser that does not know conditions sees a value that is too long.
	condition   = 1 << 31
	operandMask = 1<<24 - 1
	maxExponent = 1 << 20
)

// A decimal is a number as its text gives it, without loss. The zero decimal is 0.
type decimal struct {
	negative    bool
	whole, part []byte // digits before and after the point; the first one is not 0
	size        int    // the first digit counts for itself times 10^(size-1)
}

// parseDecimal reads a decimal number such as -1.5e3: an optional sign, digits with at most one
// point, and an optional power of ten.
func parseDecimal(b []byte) (d decimal, ok bool) {
	if len(b) == 0 || len(b) > maxNumber {
		return d, false
	}
	if b[0] == '-' || b[0] == '+' {
		d.negative, b = b[0] == '-', b[1:]
	}
	exponent := 0
	if i := bytes.IndexAny(b, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.Atoi(string(b[i+1:])); err != nil || max(exponent, -exponent) > maxExponent {
			return d, false
		}
		b = b[:i]
	}
	d.whole = b
	if i := bytes.IndexByte(b, '.'); i >= 0 {
		d.whole, d.part = b[:i], b[i+1:]
	}
	if len(d.whole)+len(d.part) == 0 || !digits(d.whole) || !digits(d.part) {
		return d, false
	}
	d.whole = bytes.TrimLeft(d.whole, "0")
	d.size = len(d.whole) + exponent
	if len(d.whole) == 0 {
		n := len(d.part)
		d.part = bytes.TrimLeft(d.part, "0")
		d.size -= n - len(d.part)
	}
	if len(d.whole)+len(d.part) == 0 {
		return decimal{}, true // all zeros are the same number
	}
	return d, true
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func (d *decimal) isZero() bool { return len(d.whole)+len(d.part) == 0 }

// digit returns the i-th digit. After the last digit all digits are 0.
func (d *decimal) digit(i int) byte {
	switch {
	case i < len(d.whole):
		return d.whole[i]
	case i-len(d.whole) < len(d.part):
		return d.part[i-len(d.whole)]
	}
	return '0'
}

// sign returns -1, 0 or 1.
func (d *decimal) sign() int {
	switch {
	case d.isZero():
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// compare returns -1, 0 or 1 if d is less than, equal to, or greater than o.
func (d *decimal) compare(o *decimal) int {
	s, t := d.sign(), o.sign()
	if s != t || s == 0 {
		return cmp.Compare(s, t)
	}
	c := cmp.Compare(d.size, o.size)
	for i := 0; c == 0 && i < max(len(d.whole)+len(d.part), len(o.whole)+len(o.part)); i++ {
		c = cmp.Compare(d.digit(i), o.digit(i))
	}
	return s * c
}

// compareNumbers compares two decimal numbers without rounding and returns -1, 0 or 1. ok is false
// if a or b is not a number.
func compareNumbers(a, b []byte) (c int, ok bool) {
	x, ok := parseDecimal(a)
	if !ok {
		return 0, false
	}
	y, ok := parseDecimal(b)
	if !ok {
		return 0, false
	}
	return x.compare(&y), true
}

// Compare appends a comparison to a pattern: a resource matches only if its first attribute with
// that name is a decimal number for which op holds. It fails with ErrCondition for an unknown Op
// and for a text that is not a number.
func (l *List) Compare(name string, op Op, number string) error {
	if !op.compares() {
		return fmt.Errorf("%w: no comparison has the number %d", ErrCondition, op)
	}
	if _, ok := parseDecimal([]byte(number)); !ok {
		return fmt.Errorf("%w: %q is no decimal number", ErrCondition, number)
	}
	return l.condition(name, op, number)
}

// OrderBy orders the resources that match a pattern by the number in the first attribute with that
// name: the greatest first if most is true, else the least. A resource without such a number comes
// last. A second order fails with ErrCondition.
func (l *List) OrderBy(name string, most bool) error {
	if of, _, ok := l.Order(); ok {
		return fmt.Errorf("%w: it is ordered by %q and by %q", ErrCondition, of, name)
	}
	op := opLeast
	if most {
		op = opMost
	}
	return l.condition(name, op, "")
}

// OwnedBy restricts a pattern to resources that the context owns. A second owner fails with
// ErrCondition.
func (l *List) OwnedBy(context GID) error {
	if of, ok := l.Owner(); ok {
		return fmt.Errorf("%w: nothing is owned by %v and by %v", ErrCondition, of, context)
	}
	var id [gidLen]byte
	PutGID(id[:], context)
	return l.condition(ownerName, opOwner, string(id[:]))
}

// ownerName is the name of the attribute with the owner of a resource.
const ownerName = SystemPrefix + "context"

// OneOf appends alternatives to a pattern: a resource matches only if one of its attributes with
// that name has one of the values. It fails with ErrCondition without a value and for the name
// rocl.context, and with ErrTooLarge for more than 64 values, or 64 KiB of them.
func (l *List) OneOf(name string, values ...string) error {
	var operand []byte
	for _, v := range values {
		operand = binary.LittleEndian.AppendUint32(operand, uint32(min(len(v), maxOneOf)))
		operand = append(operand, v...)
		if len(operand) > maxOneOf {
			break
		}
	}
	switch {
	case len(values) == 0 || name == ownerName:
		return fmt.Errorf("%w: %q has %d alternatives", ErrCondition, name, len(values))
	case len(values) > maxValues || len(operand) > maxOneOf:
		return fmt.Errorf("%w: %q has %d alternatives of more than %d bytes, at most %d", ErrTooLarge, name, len(values), maxOneOf, maxValues)
	}
	return l.condition(name, opOneOf, string(operand))
}

// cutValue returns the first value of the operand of OneOf, and the rest.
func cutValue(operand []byte) (value, rest []byte, ok bool) {
	if len(operand) < 4 {
		return nil, nil, false
	}
	n, rest := binary.LittleEndian.Uint32(operand), operand[4:]
	if uint64(n) > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n], rest[n:], true
}

// hasOneOf reports whether a resource has one of the alternatives of a condition.
func hasOneOf(resource *List, a attr) bool {
	for r := range each(resource.Wire()) {
		if !r.known || !bytes.Equal(r.name, a.name) {
			continue
		}
		for v, rest, ok := cutValue(a.value); ok; v, rest, ok = cutValue(rest) {
			if bytes.Equal(v, r.value) {
				return true
			}
		}
	}
	return false
}

// HasAlternatives reports whether the list is a pattern that OneOf has been called on.
func (l *List) HasAlternatives() bool {
	_, ok := l.firstCondition(func(op Op) bool { return op == opOneOf })
	return ok
}

func (l *List) condition(name string, op Op, operand string) error {
	n := 0
	for a := range each(l.Wire()) {
		if a.op != 0 {
			n++
		}
	}
	if n >= maxConditions {
		return fmt.Errorf("%w: more than %d conditions", ErrTooLarge, maxConditions)
	}
	return appendAttr(l, name, operand, condition|uint32(op)<<24|uint32(len(operand)))
}

// firstCondition returns the first condition for which want holds.
func (l *List) firstCondition(want func(Op) bool) (attr, bool) {
	for a := range each(l.Wire()) {
		if a.op != 0 && want(a.op) {
			return a, true
		}
	}
	return attr{}, false
}

// Order returns the order of the pattern: the name, and whether the greatest number comes first. ok
// is false if the pattern has no order.
func (l *List) Order() (name string, most, ok bool) {
	a, ok := l.firstCondition(Op.orders)
	return string(a.name), a.op == opMost, ok
}

// Owner returns the context whose resources alone match the pattern. ok is false if the pattern has
// no owner.
func (l *List) Owner() (context GID, ok bool) {
	a, ok := l.firstCondition(func(op Op) bool { return op == opOwner })
	if !ok {
		return GID{}, false
	}
	return GetGID(a.value), true
}

// Conditional reports whether the list is a pattern with a comparison, an order, an owner, or
// alternatives.
func (l *List) Conditional() bool {
	_, ok := l.firstCondition(func(Op) bool { return true })
	return ok
}

// Compared yields the names whose first values the conditions use, in order.
func (l *List) Compared(yield func(string) bool) {
	for a := range each(l.Wire()) {
		if (a.op.compares() || a.op.orders()) && !yield(string(a.name)) {
			return
		}
	}
}

// WithoutConditions returns a copy of the list without its conditions.
func (l *List) WithoutConditions() List {
	return l.without(func(a attr) bool { return a.op != 0 })
}

// WithoutWanted returns a copy of the list without its absent attributes.
func (l *List) WithoutWanted() List { return l.without(attr.absent) }

// WithoutOrder returns a copy of the list without its order.
func (l *List) WithoutOrder() List { return l.without(func(a attr) bool { return a.op.orders() }) }

// Answer returns the attributes of a resource that answer the pattern l: the pattern's known
// attributes, and the wanted ones with the values that the resource has.
func (l *List) Answer(resource *List) List {
	if l.Conditional() {
		plain := l.WithoutConditions()
		return plain.filled(resource)
	}
	return l.filled(resource)
}

// Meets reports whether the comparisons of a pattern hold for a resource, whether the resource has
// one of each of its alternatives, and whether owner is the pattern's owner if the pattern has one.
// It ignores the pattern's known attributes.
func Meets(owner GID, resource, pattern *List) bool {
	if id, ok := pattern.Owner(); ok && id != owner {
		return false
	}
	return compares(resource, pattern.Wire())
}

// compares reports whether the comparisons of a pattern's wire form hold for a resource, and
// whether the resource has one of each of the alternatives.
func compares(resource *List, p []byte) bool {
	for a := range each(p) {
		if a.op.compares() {
			v, _ := get(resource, a.name)
			if c, ok := compareNumbers(v, a.value); !ok || !a.op.holds(c) {
				return false
			}
		}
		if a.op == opOneOf && !hasOneOf(resource, a) {
			return false
		}
	}
	return true
}

// A Rank is the position of a resource in an order. The zero Rank comes after all others.
type Rank struct {
	d    decimal
	most bool
	ok   bool
}

// RankOf returns the rank of a resource by the number in its first attribute with that name. The
// rank is a view of the resource's attributes.
func RankOf(resource *List, name string, most bool) Rank {
	v, _ := resource.Get(name)
	d, ok := parseDecimal(v)
	return Rank{d, most, ok}
}

// Compare returns -1 if r comes before o, 1 if r comes after o, and 0 if they are equal. Both must
// be ranks in the same order.
func (r *Rank) Compare(o *Rank) int {
	switch {
	case r.ok != o.ok && r.ok:
		return -1
	case r.ok != o.ok:
		return 1
	case !r.ok:
		return 0
	case r.most:
		return o.d.compare(&r.d)
	}
	return r.d.compare(&o.d)
}

// met counts the conditions that a parser has read.
type met struct{ all, orders, owners int }

// check returns the fault of the next condition, or "" if it is valid.
func (m *met) check(name, operand []byte, op Op) string {
	if m.all++; op.orders() {
		m.orders++
	} else if op == opOwner {
		m.owners++
	}
	switch {
	case m.all > maxConditions:
		return "too many conditions"
	case op.compares():
		if _, ok := parseDecimal(operand); !ok {
			return "a comparison with what is no number"
		}
	case op.orders():
		if len(operand) > 0 || m.orders > 1 {
			return "bad order"
		}
	case op == opOwner:
		if len(operand) != gidLen || m.owners > 1 || string(name) != ownerName {
			return "bad owner"
		}
	case op == opOneOf:
		n := 0
		for rest, ok := operand, true; len(rest) > 0 || n == 0; n++ {
			if _, rest, ok = cutValue(rest); !ok || n == maxValues || len(operand) > maxOneOf || string(name) == ownerName {
				return "bad alternatives"
			}
		}
	default:
		return "unknown condition"
	}
	return ""
}

// ParsePattern is ParseList of a list that may have conditions.
func ParsePattern(b []byte) (List, error) { return parse(b, true) }

// conditionOf splits the vlen of a condition. ok is false for any other vlen.
func conditionOf(vlen uint32) (op Op, size int, ok bool) {
	if vlen == absent || vlen&condition == 0 {
		return 0, 0, false
	}
	return Op(vlen >> 24 & math.MaxInt8), int(vlen & operandMask), true
}

// appendText appends a condition in a readable form.
func appendText(b []byte, a attr, name string) []byte {
	switch {
	case a.op.compares():
		return fmt.Appendf(b, "%s%v%s", name, a.op, a.value)
	case a.op == opLeast:
		return fmt.Appendf(b, "least %s", name)
	case a.op == opMost:
		return fmt.Appendf(b, "most %s", name)
	}
	if a.op == opOneOf {
		b = append(append(b, name...), '=')
		for v, rest, ok := cutValue(a.value); ok; v, rest, ok = cutValue(rest) {
			b = append(b, display.QuoteIf(bytes.ContainsAny(v, `|",`), string(v))...)
			b = append(b, '|')
		}
		return b[:len(b)-1]
	}
	return fmt.Appendf(b, "%s=%v", name, GetGID(a.value))
}

// vlenOf returns the vlen of the attribute at position at of a wire form.
func vlenOf(w []byte, at int) uint32 { return binary.LittleEndian.Uint32(w[at+2:]) }
