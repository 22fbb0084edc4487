// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestSpin(t *testing.T) {
	s := spinner{most: time.Nanosecond}
	calls := 0
	inVain := func() (int, error) { calls++; return 0, syscall.EAGAIN }
	madeCalls := func() bool {
		calls = 0
		if n, err := s.repeat(inVain); n != 0 || err != syscall.EAGAIN {
			t.Fatal(n, err)
		}
		return calls > 0
	}
	skips := func() (n int) {
		for !madeCalls() {
			n++
		}
		return n
	}
	if !madeCalls() {
		t.Error("the first spin made no call")
	}
	var got []int
	for range 10 {
		got = append(got, skips())
	}
	if want := []int{1, 2, 4, 8, 8, 8, 8, 8, 8, 8}; !slices.Equal(got, want) {
		t.Errorf("spins left out: %v, want %v", got, want)
	}

	s.skip = 0
	s.most = time.Hour
	answers := []error{syscall.EAGAIN, syscall.EAGAIN, nil}
	n, err := s.repeat(func() (int, error) {
		err := answers[0]
		answers = answers[1:]
		return 7, err
	})
	if n != 7 || err != nil || len(answers) != 0 {
		t.Errorf("%d, %v, with %d answers left", n, err, len(answers))
	}
	s.most = time.Nanosecond
	if !madeCalls() || skips() != 1 {
		t.Error("a spin that succeeds does not make the next ones likelier")
	}
}

// A context that must not poll spins nowhere.
func TestSpinOff(t *testing.T) {
	var s spinner
	if n, err := s.repeat(func() (int, error) { t.Error("called"); return 1, nil }); n != 0 || err != syscall.EAGAIN {
		t.Error(n, err)
	}
}
