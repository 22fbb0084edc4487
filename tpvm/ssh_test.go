// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/sshd"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// A host is added over the system's ssh, with a configuration file. The error has the output of ssh
// for hosts that it does not reach.
func TestAddHostsSSH(t *testing.T) {
	f := newFarm(t)
	config := sshd.Run(t, f.env("one"))
	t.Setenv(tpvm.EnvSSH, "") // not the fake
	f.task = enrol(t, f.c, tpvm.WithHostStarter(tpvm.SSH{Config: config}))
	hs, err := f.add("one", "stranger", "impostor")
	if len(hs) != 1 || hs[0].Added != "one" || hs[0].Launcher != tpvm.LauncherPod {
		t.Fatalf("added %+v: %v", hs, err)
	}
	var e *tpvm.HostsError
	if !errors.As(err, &e) || len(e.Hosts) != 2 {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"host stranger", "255", "Permission denied", "-F " + config + " stranger true'"},
		{"host impostor", "255", "Host key verification failed", "-F " + config + " impostor true'"},
	} {
		for _, w := range want {
			if !strings.Contains(e.Hosts[i].Error(), w) {
				t.Errorf("%q does not say %q", e.Hosts[i], w)
			}
		}
	}
	ids, err := f.spawn(2, tpvm.OnHost("one"))
	if n := f.on(ids); err != nil || n[hs[0].Node] != 2 {
		t.Fatalf("tasks by node: %v: %v", n, err)
	}
	try.Get(f.task.Notify(deadline(t), 5, ids...))(t)
	try.OK(t, f.task.DelHosts(deadline(t), "one"))
	wantEnds(f.t, f.task, 5, ids...)
	left, err := f.task.Hosts(deadline(t))
	if err != nil || slices.ContainsFunc(left, func(h tpvm.Host) bool { return h.Added == "one" }) {
		t.Errorf("hosts: %+v: %v", left, err)
	}
}
