// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"unsafe"
)

func (l *library) join(ctx context.Context, group string) (int, error)      { return 0, notImpl }
func (l *library) leave(ctx context.Context, group string) (int, error)     { return 0, notImpl }
func (l *library) groupSize(ctx context.Context, group string) (int, error) { return 0, notImpl }
func (l *library) freeze(group string, count int) (int, error)              { return 0, notImpl }
func (l *library) instance(ctx context.Context, group string, tid int) (int, error) {
	return 0, notImpl
}
func (l *library) member(ctx context.Context, group string, inst int) (int, error) {
	return 0, notImpl
}
func (l *library) barrier(group string, count int) (int, error) { return 0, notImpl }
func (l *library) broadcast(ctx context.Context, group string, tag int) (int, error) {
	return 0, notImpl
}
func (l *library) gather(ctx context.Context, result, data unsafe.Pointer, count, typ, tag int, group string, root int) (int, error) {
	return 0, notImpl
}
func (l *library) scatter(ctx context.Context, result, data unsafe.Pointer, count, typ, tag int, group string, root int) (int, error) {
	return 0, notImpl
}

// A combiner combines n values of y into x.
type combiner func(typ int, x, y unsafe.Pointer, n int) code

func (l *library) reduce(ctx context.Context, f combiner, data unsafe.Pointer, count, typ, tag int, group string, root int) (int, error) {
	return 0, notImpl
}
