// SPDX-License-Identifier: Apache-2.0

package tpvm

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
