// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// The member file keeps the cluster's name and the addresses of members, also those of a cluster
// that the node has left. What another node wrote says nothing, and neither do lines that are no
// addresses.
func TestMemberFile(t *testing.T) {
	path := sock(t)
	s := serve(t, path, true)
	want := Member{Cluster: "blue sky", Met: map[resource.NodeID]string{7: "10.0.0.7:7946", 0xabcdef: "[fd00::8]:7946"}}
	try.OK(t, s.WriteMember(func() Member { return want }))
	expect := func(want Member, isMember bool) {
		t.Helper()
		if m, is, err := s.Member(); err != nil || is != isMember || !reflect.DeepEqual(m, want) {
			t.Errorf("it says %+v, %v: %v; want %+v, %v", m, is, err, want, isMember)
		}
	}
	expect(want, true)
	b := try.Get(os.ReadFile(path + memberSuffix))(t)
	write := func(text string) {
		try.OK(t, os.WriteFile(path+memberSuffix, []byte(text), 0o600))
	}
	write(string(b) + "\nnonsense\n00000000000g 10.0.0.9:1\n000000000009 example.org:1\n000000000009")
	expect(want, true)
	var many strings.Builder
	for i := range 2 * mostMet {
		fmt.Fprintf(&many, "%012x 10.0.0.9:1\n", i+1)
	}
	write(string(b) + many.String())
	if m, _, err := s.Member(); err != nil || len(m.Met) != mostMet {
		t.Errorf("%d addresses are read: %v", len(m.Met), err)
	}
	try.OK(t, s.LeaveMember(want))
	want.HasLeft = true
	expect(want, false)
	write(strings.Replace(string(b), memberPrefix, memberPrefix+"0", 1))
	expect(Member{}, false)
	try.OK(t, s.LeaveMember(Member{Cluster: "blue sky"}))
	try.Fails(os.Lstat(path+memberSuffix))(t, fs.ErrNotExist, "a file without addresses stays")
}
