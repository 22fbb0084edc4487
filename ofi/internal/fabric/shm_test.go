// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package fabric

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A process may have the number of one that was killed, whose shared memory is still there.
func TestMemoryOfKilledProcess(t *testing.T) {
	first, err := Open("shm", "", 16)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, name, _ := strings.Cut(strings.TrimRight(string(first.Name()), "\x00"), "://")
	mem, err := os.ReadFile("/dev/shm/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var pid, user, number int
	if _, err := fmt.Sscanf(name, "%d:%d:%d", &pid, &user, &number); err != nil {
		t.Fatalf("%q: %v", name, err)
	}
	for i := 1; i <= 3; i++ { // this process lives, so libfabric takes the memory for that of an endpoint
		left := fmt.Sprintf("/dev/shm/%d:%d:%d", pid, user, number+i)
		if err := os.WriteFile(left, mem, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(left)
	}
	next, err := Open("shm", "", 16)
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
}

// An endpoint of the provider shm whose peer in the same process has been closed reads the end of a
// message to it. libfabric alone would crash there.
func TestClosedPeerOfSharedMemory(t *testing.T) {
	var e [2]*Endpoint
	var at [2]Address
	for i := range e {
		var err error
		if e[i], err = Open("shm", "", 16); errors.Is(err, ErrUnavailable) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for i := range e {
		var err error
		if at[i], err = e[i].Insert(e[1-i].Name()); err != nil {
			t.Fatal(err)
		}
	}
	in, out := mapped(t, 16<<10), mapped(t, 16<<10)
	if err := e[1].Recv(3, in, 0); err != nil {
		t.Fatal(err)
	}
	var c [4]Completion
	err := ErrAgain
	for range 100_000 {
		if err = e[0].Send(5, out, 0, at[0]); err != ErrAgain {
			break
		}
		_, _ = e[0].Poll(c[:])
		_, _ = e[1].Poll(c[:])
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := e[1].Poll(c[:]); n != 1 || err != nil || c[0].Op != 3 {
		t.Fatalf("%d completions of the receiver: %+v, %v", n, c[0], err)
	}
	e[1].Close()
	if n, err := e[0].Poll(c[:]); n != 1 || err != nil || c[0].Op != 5 {
		t.Fatalf("%d completions of the sender: %+v, %v", n, c[0], err)
	}
	if len(shared.byName) != 2 {
		t.Errorf("%d endpoints, want the closed one to be there still", len(shared.byName))
	}
	e[0].Close()
	if len(shared.byName) != 0 {
		t.Errorf("%d endpoints are left", len(shared.byName))
	}
}
