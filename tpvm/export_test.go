// SPDX-License-Identifier: Apache-2.0

package tpvm

import "github.com/rocl-go/rocl/tpvm/pack"

// WaitChildren waits until the programs that the task has started have ended.
func (t *Task) WaitChildren() {
	t.pod.mu.Lock()
	var cs []*child
	for c := range t.pod.children {
		cs = append(cs, c)
	}
	t.pod.mu.Unlock()
	for _, c := range cs {
		<-c.exited
	}
}

// InfoMessage makes the payload of an entry of the message box a Message.
func InfoMessage(data []byte) (*Message, error) { return infoMessage(foundInfo{data: data}) }

// EncodeInfo returns the payload of an entry of the message box.
func EncodeInfo(b *pack.Buffer) ([]byte, error) { return encodeInfo(b) }
