// SPDX-License-Identifier: Apache-2.0

package inproc_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen opens a port with a key.
func listen(t *testing.T, tr subsys.Transport, addr string, key any) subsys.LocalPort {
	t.Helper()
	p := try.Get(tr.Listen(addr, subsys.Config{Key: key, Here: "the context " + key.(string)}))(t)
	return p.(subsys.LocalPort)
}

// Contexts of one network find each other by their keys while their ports are open.
func TestLocal(t *testing.T) {
	tr := inproc.NewNetwork().Transport()
	a, b := listen(t, tr, "", "a"), listen(t, tr, "", "b")
	defer a.Close()
	for _, from := range []subsys.LocalPort{a, b} {
		here, addr := from.Local("b")
		if here != "the context b" || addr != b.Addr() {
			t.Errorf("b is %v at %q, not at %q", here, addr, b.Addr())
		}
		if here, addr := from.Local("c"); here != nil || addr != "" {
			t.Errorf("c is %v at %q", here, addr)
		}
		if !from.Reaches(b.Addr()) {
			t.Errorf("%s is not reached", b.Addr())
		}
	}
	try.OK(t, b.Close())
	if here, _ := a.Local("b"); here != nil {
		t.Errorf("b is closed, and found: %v", here)
	}
}

// Contexts of another network are not found, like those of another process.
func TestOtherNetwork(t *testing.T) {
	a := listen(t, inproc.NewNetwork().Transport(), "", "a")
	defer a.Close()
	other := inproc.NewNetwork().Transport()
	b := listen(t, other, "", "b")
	defer b.Close()
	if here, _ := a.Local("b"); here != nil || a.Reaches(b.Addr()) {
		t.Errorf("b is found in another network: %v", here)
	}
	try.Fails(other.Listen(a.Addr(), subsys.Config{}))(t, subsys.ErrAddress, "listening at an address of another network")
}

// A port is the only one with its address until it is closed.
func TestAddresses(t *testing.T) {
	tr := inproc.NewNetwork().Transport()
	a := listen(t, tr, "", "a")
	if !strings.HasPrefix(a.Addr(), "inproc://") {
		t.Errorf("the address is %q", a.Addr())
	}
	try.Rejects(tr.Listen(a.Addr(), subsys.Config{}))(t, "an address is used twice")
	try.OK(t, a.Close())
	b := listen(t, tr, a.Addr(), "a")
	defer b.Close()
	if err := a.Close(); err != nil { // a second Close: b has the address and the key now
		t.Fatal(err)
	}
	if here, addr := b.Local("a"); here == nil || addr != b.Addr() {
		t.Errorf("a is %v at %q", here, addr)
	}
}

// There are no connections within a process.
func TestDial(t *testing.T) {
	tr := inproc.New()
	a, b := listen(t, tr, "", "a"), listen(t, tr, "", "b")
	defer a.Close()
	defer b.Close()
	if c, err := a.Dial(t.Context(), b.Addr(), nil); c != nil || !errors.Is(err, subsys.ErrNoPeer) {
		t.Errorf("dialled: %v", err)
	}
}
