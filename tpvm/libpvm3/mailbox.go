// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
)

// A box is struct pvmmboxinfo: the entries of one name.
type box struct {
	name                   string
	indices, owners, flags []int
}

func (l *library) putInfo(ctx context.Context, name string, bufid, flags int) (int, error) {
	return 0, notImpl
}
func (l *library) recvInfo(ctx context.Context, name string, index, flags int) (int, error) {
	return 0, notImpl
}
func (l *library) deleteInfo(ctx context.Context, name string, index, flags int) error {
	return notImpl
}
func (l *library) boxes(ctx context.Context, pattern string) ([]box, error) { return nil, notImpl }
func (l *library) noResets(ctx context.Context) ([]int, error)              { return nil, notImpl }
func (l *library) insert(ctx context.Context, name string, index, data int) (int, error) {
	return 0, notImpl
}
func (l *library) find(ctx context.Context, name string, index int) (int, int, error) {
	return 0, 0, notImpl
}
func (l *library) catchOutput(w io.Writer) error { return notImpl }

func (l *library) changeHost(ctx context.Context, host string, add bool) (int, error) {
	tid, err := l.hostNamed(ctx, host)
	if add && err == nil {
		return 0, dupHost
	}
	if add {
		return 0, cantStart
	}
	_ = tid
	return 0, notImpl
}
