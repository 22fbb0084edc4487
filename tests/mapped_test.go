// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"math/rand/v2"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// changing is the number of resources that a peer changes all the time.
const changing = 50

// restless serves the node and changes its resources all the time. A checksum in each attribute
// list shows whether the list is whole.
func restless(t testing.TB, c *lib.Context, who lib.Attrs) {
	rs := make([]*lib.Resource, changing)
	for i := range rs {
		rs[i] = try.Get(c.Register(bg, summed(who, i, 0)))(t)
	}
	fmt.Println("registered")
	for round := 1; ; round++ {
		i := rand.IntN(len(rs))
		try.OK(t, rs[i].Update(bg, summed(who, i, round)))
	}
}

// summed returns attributes of a varying length, with their checksum.
func summed(who lib.Attrs, i, round int) lib.Attrs {
	a := lib.Attrs{"peer": who["peer"], "i": fmt.Sprint(i), "round": fmt.Sprint(round), "pad": fmt.Sprintf("%0*d", round%150, round)}
	a["sum"] = fmt.Sprintf("%x", sumOf(a))
	return a
}

func sumOf(a lib.Attrs) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(a["pad"])))
	return crc64.Checksum([]byte(fmt.Sprint(b, a["peer"], a["i"], a["round"], a["pad"])), table)
}

// A process is killed while it changes the index. Readers get whole lists until its end, and true
// ones afterwards.
//
// Promise (Index): A server that is killed while it writes the index harms no reader. See also
// TestMappedAcrossServers.
func TestIndexWriterKilled(t *testing.T) {
	ctx := eventually.Context(t)
	sock := socket(t)
	for round := range 8 {
		name := fmt.Sprint("restless ", round)
		p := peer(t, "restless", sock, name)
		c := try.Get(lib.Open(ctx, lib.WithSocket(sock)))(t)
		mine := try.Get(c.Register(ctx, lib.Attrs{"mine": name}))(t)
		look := func() error {
			want := fmt.Sprint(rand.IntN(changing))
			f, err := c.Find(ctx, lib.Match{"peer": name, "i": want})
			if err != nil {
				return err
			}
			got := lib.Attrs{}
			for k, v := range f.Attrs.All() {
				got[k] = string(v)
			}
			if got["peer"] != name || got["i"] != want || got["sum"] != fmt.Sprintf("%x", sumOf(got)) {
				t.Fatalf("torn: asked for %s and found %v", want, got)
			}
			return nil
		}
		for until := 2000 + rand.Uint64N(20_000); c.Stats().Mapped < until; {
			try.OK(t, look())
		}
		p.Kill()
		var gone error
		eventually.True(t, "the resources of a dead process are not found", func() bool { gone = look(); return gone != nil })
		if !errors.Is(gone, lib.ErrNotFound) {
			t.Fatalf("of a dead process: %v", gone)
		}
		t.Logf("%d answers in place", c.Stats().Mapped)
		if f, err := c.Find(ctx, lib.Match{"mine": name}); err != nil || f.ID != mine.ID() {
			t.Fatal(f, err)
		}
		try.OK(t, c.Close())
	}
}

// A writer that is stopped, at any point, does not delay processes that read the index. Questions
// that only the writer can answer wait.
func TestIndexWriterStopped(t *testing.T) {
	ctx := eventually.Context(t)
	sock := socket(t)
	p := peer(t, "restless", sock, "stopped")
	c := try.Get(lib.Open(ctx, lib.WithSocket(sock)))(t)
	defer c.Close()
	eventually.True(t, "questions are answered from the index", func() bool {
		try.Get(c.Find(ctx, lib.Match{"peer": "stopped", "i": "0"}))(t)
		return c.Stats().Mapped > 0
	})
	for range 20 {
		p.signal(t, posix.SIGSTOP)
		read := 0
		for i := range changing { // at most one is being changed
			short, done := context.WithTimeout(ctx, 200*time.Millisecond)
			_, err := c.Find(short, lib.Match{"i": fmt.Sprint(i)})
			done()
			if err == nil {
				read++
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if read < changing/2 { // a part of the index may be locked too
			t.Errorf("of %d resources %d are read while the writer is stopped", changing, read)
		}
		p.signal(t, posix.SIGCONT)
	}
}
