// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strconv"
	"strings"
)

// Characters of a text of a pattern that have a meaning.
const (
	spaces    = " \t\n\v\f\r"
	operators = "=!<>"
)

// Parse returns the pattern that a text describes, in the form that package rocl documents. A name
// without quotes has none of = ! < > | " and white space, and a value none of | " and white space.
// No space stands beside an operator. name=3 compares texts, and name==3 numbers.
//
// Parse fails with ErrCondition for any other text, and with the errors of Add and Compare.
func Parse(text string) (*List, error) {
	l := new(List)
	for rest := strings.TrimLeft(text, spaces); rest != ""; {
		var err error
		had := rest
		if rest, err = l.parseCondition(rest); err != nil {
			if end := strings.IndexAny(had, spaces); end >= 0 {
				had = had[:end]
			}
			at := fmt.Sprintf("%.40q", had)
			if len(at) < len(had) {
				at += "…"
			}
			return nil, fmt.Errorf("at %s: %w", at, err)
		}
		rest = strings.TrimLeft(rest, spaces)
	}
	return l, nil
}

// parseCondition appends the condition at the start of a text, and returns the rest of the text.
func (l *List) parseCondition(text string) (rest string, err error) {
	name, rest, err := cutWord(text, operators+"|")
	if err != nil {
		return "", err
	}
	op, rest := cutOperator(rest)
	if op == 0 {
		return "", fmt.Errorf("%w: an operator such as = or < must follow the name, and a value with spaces must be in quotes", ErrCondition)
	}
	var values []string
	isEmpty := false // one of the values, without quotes
	for isMore := true; isMore; {
		var value string
		isEmpty = isEmpty || rest == "" || strings.ContainsRune(spaces+"|", rune(rest[0]))
		if value, rest, err = cutWord(rest, "|"); err != nil {
			return "", err
		}
		values = append(values, value)
		rest, isMore = strings.CutPrefix(rest, "|")
	}
	switch {
	case rest != "" && !strings.ContainsRune(spaces, rune(rest[0])):
		return "", fmt.Errorf("%w: white space must follow the value", ErrCondition)
	case op == opOneOf && len(values) == 1:
		return rest, l.AddString(name, values[0])
	case op == opOneOf && isEmpty:
		return "", fmt.Errorf(`%w: an alternative is empty; the empty value among others is ""`, ErrCondition)
	case op == opOneOf:
		return rest, l.OneOf(name, values...)
	case len(values) > 1 && op != opOneOf:
		return "", fmt.Errorf("%w: only = has alternatives", ErrCondition)
	}
	return rest, l.Compare(name, op, values[0])
}

// cutOperator returns the operator at the start of a text: opOneOf for =, and 0 if there is none.
func cutOperator(text string) (op Op, rest string) {
	for _, o := range []struct {
		sign string
		op   Op
	}{{"<=", Le}, {">=", Ge}, {"!=", Ne}, {"==", Eq}, {"<", Lt}, {">", Gt}, {"=", opOneOf}} {
		if rest, ok := strings.CutPrefix(text, o.sign); ok {
			return o.op, rest
		}
	}
	return 0, text
}

// cutWord returns the name or value at the start of a text, which ends before white space, a quote,
// or one of the characters in ends.
func cutWord(text, ends string) (word, rest string, err error) {
	if strings.HasPrefix(text, `"`) {
		quoted, err := strconv.QuotedPrefix(text)
		if err == nil {
			word, err = strconv.Unquote(quoted)
		}
		if err != nil {
			return "", "", fmt.Errorf("%w: the quotes do not close, or have an unknown escape", ErrCondition)
		}
		return word, text[len(quoted):], nil
	}
	end := strings.IndexAny(text, ends+spaces+`"`)
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], nil
}
