// SPDX-License-Identifier: Apache-2.0

package context

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// A question that the other context has dropped, because too many of its answers to this context
// are under way, is asked again.
func TestRoutesAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := directory.NewServer()
		net := over(inproc.NewNetwork().Transport())
		asked, asker := newBare(t, s, net), newBare(t, s, net)
		q, from := asked.questions, asker.targets.self
		set := func(n int) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.answers[from] = n
		}
		set(maxAnswers)
		box := try.Get(asker.disp.Mailbox(1, 0))(t)
		defer box.Close()
		began, done := time.Now(), make(chan error, 1)
		go func() {
			_, err := asker.questions.RoutesOf(bg, asked.targets.self, 1, box)
			done <- err
		}()
		synctest.Wait() // the question is dropped
		set(0)
		try.Check(t, <-done)
		if time.Since(began) < answerTime {
			t.Error("the first question was answered")
		}
	})
}
