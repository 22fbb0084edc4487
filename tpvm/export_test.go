// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"maps"
	"slices"
	"syscall"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// WaitChildren waits until the programs that the task has started have ended.
func (t *Task) WaitChildren() {
	for _, c := range t.running() {
		<-c.exited
	}
}

// KillChildren kills the programs that the task has started.
func (t *Task) KillChildren() {
	for _, c := range t.running() {
		_ = c.signal(syscall.SIGKILL)
	}
}

func (t *Task) running() []*child {
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	return slices.Collect(maps.Keys(t.pod.children))
}

// InfoMessage makes the payload of an entry of the message box a Message.
func InfoMessage(data []byte) (*Message, error) { return infoMessage(foundInfo{data: data}) }

// EncodeInfo returns the payload of an entry of the message box.
func EncodeInfo(b *pack.Buffer) ([]byte, error) { return encodeInfo(b) }
