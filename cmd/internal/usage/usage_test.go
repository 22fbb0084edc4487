// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The error says in words what the flag must be, and names the flag.
func TestFlagError(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--for 5", `--for "5" is not a duration, such as 5s or 500ms`},
		{"--for=", `--for "" is not a duration, such as 5s or 500ms`},
		{"--loud=x", `--loud "x" is not true or false`},
		{"-l=x", `--loud "x" is not true or false`},
		{"--count x", `--count "x" is not a whole number from -`},
		{"--count 99999999999999999999", `--count "99999999999999999999" is not a whole number from -`},
		{"--tag -1", `--tag "-1" is not a whole number from 0 to 18446744073709551615`},
		{"--nothing", "unknown flag: --nothing"},
		{"--tag", "flag needs an argument: --tag"},
	} {
		cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
		cmd.SetFlagErrorFunc(FlagError)
		cmd.Flags().Duration("for", 0, "")
		cmd.Flags().BoolP("loud", "l", false, "")
		cmd.Flags().Int("count", 0, "")
		cmd.Flags().Uint64("tag", 0, "")
		cmd.SetArgs(strings.Fields(c.args))
		cmd.SetOut(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.args, err, c.says)
		}
	}
}

func TestText(t *testing.T) {
	err := fmt.Errorf("rocl: at x: %w", fmt.Errorf("rocl: deeper: %w", errors.New("rocl: cause\x1b")))
	try.Equal(t, Text(err), `at x: deeper: cause\x1b`)
}

// An argument of any length is repeated in one readable line.
func TestQuote(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"", `""`},
		{"a\x1b", `"a\x1b"`},
		{strings.Repeat("x", most), `"` + strings.Repeat("x", most) + `"`},
		{strings.Repeat("x", 100_000), `"` + strings.Repeat("x", most) + `"…`},
		{strings.Repeat("x", most-1) + "éx", `"` + strings.Repeat("x", most-1) + `"…`},
		{strings.Repeat("\xbf", 100), `"` + strings.Repeat(`\xbf`, most-4) + `"…`},
	} {
		try.Equal(t, Quote(c.arg), c.want, "%.80q quoted", c.arg)
	}
}
