// SPDX-License-Identifier: Apache-2.0

// Package try checks in tests, in one line, what a call returns. The results of the call come
// first, and what is expected of them after that:
//
//	c := try.Get(rocl.Open(ctx))(t)
//	try.Gives(rpc.Call[int, int](ctx, c, id, "double", 21))(t, 42)
//	try.Fails(rpc.Call[int, int](ctx, c, id, "none", 1))(t, rpc.ErrUnknownCall)
//	try.OK(t, c.Close())
//
// OK and Get end the test if an error is not nil, and are for the goroutine of the test. The others
// only report the failure, and are for any goroutine.
package try

import "errors"

// A TB is what the package needs of a test: a *testing.T, *testing.B, *testing.F or *rapid.T.
type TB interface {
	Helper()
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
}

// OK ends the test if one of errs is not nil.
func OK(t TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Check is OK that only reports the failure.
func Check(t TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// Get returns v. It ends the test if err is not nil.
func Get[T any](v T, err error) func(TB) T {
	return func(t TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Works reports the last of the results if it is an error.
func Works(results ...any) func(TB) {
	return func(t TB) {
		t.Helper()
		if err := last(results); err != nil {
			t.Error(err)
		}
	}
}

// Gives reports a result other than the expected one, or an error.
func Gives[T comparable](got T, err error) func(t TB, want T) {
	return func(t TB, want T) {
		t.Helper()
		if got != want || err != nil {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
}

// Fails reports each of kinds that the last of the results, an error, does not match.
func Fails(results ...any) func(t TB, kinds ...error) {
	return func(t TB, kinds ...error) {
		t.Helper()
		err := last(results)
		for _, kind := range kinds {
			if !errors.Is(err, kind) {
				t.Errorf("%v, want %v", err, kind)
			}
		}
	}
}

func last(results []any) error {
	err, _ := results[len(results)-1].(error)
	return err
}
