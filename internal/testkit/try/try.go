// SPDX-License-Identifier: Apache-2.0

// Package try checks in tests, in one line, what a call returns. The results of the call come
// first, and what is expected of them after that:
//
//	c := try.Get(rocl.Open(ctx))(t)
//	try.Gives(rpc.Call[int, int](ctx, c, id, "double", 21))(t, 42)
//	try.Fails(rpc.Call[int, int](ctx, c, id, "none", 1))(t, rpc.ErrUnknownCall, "call %d", n)
//	try.Equal(t, c.Len(), 3, "resources")
//	try.OK(t, c.Close())
//
// The last parameters of each function may be left out. They are a format and its values, and their
// text stands in a report before what was returned.
//
// OK and Get end the test if an error is not nil, and are for the goroutine of the test. The others
// only report the failure, and are for any goroutine.
package try

import (
	"errors"
	"fmt"
	"reflect"
)

// A TB is what the package needs of a test: a *testing.T, *testing.B, *testing.F or *rapid.T.
type TB interface {
	Helper()
	Error(...any)
	Fatal(...any)
}

// OK ends the test if err is not nil.
func OK(t TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("%s%w", prefix(what), err))
	}
}

// Check is OK that only reports the failure.
func Check(t TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Error(fmt.Errorf("%s%w", prefix(what), err))
	}
}

// Get returns v. It ends the test if err is not nil.
func Get[T any](v T, err error) func(t TB, what ...any) T {
	return func(t TB, what ...any) T {
		t.Helper()
		OK(t, err, what...)
		return v
	}
}

// Works reports the last of the results if it is an error.
func Works(results ...any) func(t TB, what ...any) {
	return func(t TB, what ...any) {
		t.Helper()
		Check(t, last(results), what...)
	}
}

// Gives reports a result other than the expected one, or an error.
func Gives[T comparable](got T, err error) func(t TB, want T, what ...any) {
	return func(t TB, want T, what ...any) {
		t.Helper()
		if got != want || err != nil {
			t.Error(prefix(what) + fmt.Sprintf(verb(got)+", %v, want "+verb(want), got, err, want))
		}
	}
}

// Equal reports a value other than the expected one.
func Equal[T comparable](t TB, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Error(prefix(what) + fmt.Sprintf(verb(got)+", want "+verb(want), got, want))
	}
}

// Fails reports an error, the last of the results, that does not match kind.
func Fails(results ...any) func(t TB, kind error, what ...any) {
	return func(t TB, kind error, what ...any) {
		t.Helper()
		if err := last(results); !errors.Is(err, kind) {
			t.Error(prefix(what) + fmt.Sprintf("%v, want %v", err, kind))
		}
	}
}

// Rejects reports that the last of the results is not an error.
func Rejects(results ...any) func(t TB, what ...any) {
	return func(t TB, what ...any) {
		t.Helper()
		if err := last(results); err == nil {
			t.Error(prefix(what) + fmt.Sprintf("%v, want an error", err))
		}
	}
}

func last(results []any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

// verb returns the format of v. It puts strings in quotes, and gives only the address of an object
// that other goroutines may use.
func verb(v any) string {
	switch v.(type) {
	case string:
		return "%q"
	case fmt.Stringer, error:
		return "%v"
	}
	if reflect.ValueOf(v).Kind() == reflect.Pointer {
		return "%p"
	}
	return "%v"
}

// prefix returns the text of what.
func prefix(what []any) string {
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf(what[0].(string), what[1:]...) + ": "
}
