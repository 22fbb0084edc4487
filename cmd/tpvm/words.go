// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/rocl-go/rocl/cmd/internal/usage"
)

// split splits a line into words. Quotes keep spaces, and a backslash keeps the next character.
func split(line string) (words []string, err error) {
	var b strings.Builder
	quote, isWord, escaped := rune(0), false, false
	for _, r := range line {
		switch {
		case escaped:
			b.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, isWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			b.WriteRune(r)
		case r == '\'' || r == '"':
			quote, isWord = r, true
		case r == ' ' || r == '\t' || r == '\r':
			if isWord {
				words = append(words, b.String())
				b.Reset()
				isWord = false
			}
		default:
			b.WriteRune(r)
			isWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("the line ends within quotes: %s", usage.Quote(line))
	}
	if isWord {
		words = append(words, b.String())
	}
	return words, nil
}
