// SPDX-License-Identifier: Apache-2.0

// Package usage describes wrong usage of the commands: its errors name the flag or the argument,
// and say what it must be.
package usage

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// An Error is an error in the command line that the user typed.
type Error struct{ error }

// Errorf returns an Error with a formatted text.
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// Unwrap returns the cause.
func (e Error) Unwrap() error { return e.error }

// Text returns the text of an error, safe to print, without the library's name at the beginning of
// each part.
func Text(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(display.Error(err), ": rocl: ", ": "), "rocl: ")
}

// most limits how many bytes of an argument an error repeats.
const most = 60

// Quote returns an argument in quotes. A long argument is cut.
func Quote(arg string) string {
	if len(arg) <= most {
		return strconv.Quote(arg)
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(arg[end]) {
		end--
	}
	return strconv.Quote(arg[:end]) + "…"
}

// FlagError returns an Error of parsing flags with a text about the flag. The standard library's
// errors name a parsing function instead.
func FlagError(_ *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return Error{err}
	}
	want := ""
	switch bad.GetFlag().Value.Type() {
	case "duration":
		want = "a duration, such as 5s or 500ms"
	case "bool":
		want = "true or false"
	case "int":
		want = fmt.Sprintf("a whole number from %d to %d", math.MinInt, math.MaxInt)
	case "uint64":
		want = fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	default:
		return Errorf("--%s %s: %w", bad.GetFlag().Name, Quote(bad.GetValue()), bad.Unwrap())
	}
	return Errorf("--%s %s is not %s", bad.GetFlag().Name, Quote(bad.GetValue()), want)
}

// Nothing returns an Error if args is not empty. It is for commands that take no arguments.
func Nothing(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Errorf("%s takes no arguments, such as %s", cmd.CommandPath(), Quote(args[0]))
	}
	return nil
}
