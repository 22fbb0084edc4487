// SPDX-License-Identifier: Apache-2.0

package try

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A recorder is a test that notes what is reported.
type recorder string

func (*recorder) Helper()             {}
func (r *recorder) Error(args ...any) { *r += recorder("error: " + fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { *r += recorder("fatal: " + fmt.Sprint(args...)) }

// What does not fit is reported, and nothing else.
func TestReports(t *testing.T) {
	two := func(err error) (int, error) { return 2, err }
	wrapped := fmt.Errorf("wrapped: %w", io.EOF)
	for want, do := range map[recorder]func(TB){
		"":                               func(t TB) { OK(t, nil); Check(t, nil); Get(two(nil))(t); Works(two(nil))(t); Gives(two(nil))(t, 2) },
		"fatal: EOF":                     func(t TB) { OK(t, io.EOF) },
		"error: 2 of 3: EOF":             func(t TB) { Check(t, io.EOF, "%d of %d", 2, 3) },
		"fatal: get: wrapped: EOF":       func(t TB) { Get(two(wrapped))(t, "get") },
		"error: wrapped: EOF":            func(t TB) { Works(two(wrapped))(t) },
		"error: 2, <nil>, want 3":        func(t TB) { Gives(two(nil))(t, 3) },
		"error: n 1: 2, EOF, want 2":     func(t TB) { Gives(two(io.EOF))(t, 2, "n %d", 1) },
		"error: n: 2, want 3":            func(t TB) { Equal(t, 2, 2); Equal(t, 2, 3, "n") },
		`error: "a", want "b"`:           func(t TB) { Equal(t, "a", "b") },
		"error: x: <nil>, want an error": func(t TB) { Rejects(two(io.EOF))(t); Rejects(two(nil))(t, "x") },
		"error: <nil>, want EOF":         func(t TB) { Fails(two(nil))(t, io.EOF); Fails(wrapped)(t, io.EOF) },
		"error: a: EOF, want no b":       func(t TB) { Fails(io.EOF)(t, errors.New("no b"), "a") },
	} {
		var got recorder
		if do(&got); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if v := Get(two(nil))(t); v != 2 {
		t.Error(v)
	}
}
