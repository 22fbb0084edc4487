// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// rocl trace shows messages from senders over shared memory, over TCP and within the process to a
// real rocl recv, and one that lies in a mailbox unread.
//
// Promise (Observing): `rocl trace` follows messages through routes, mailbox and handler, without
// a change of the programs.
func TestTrace(t *testing.T) {
	sock := node(t)
	ctx := eventually.Context(t)
	cmd := subprocess.Self("recv", "--socket", sock, "here=yes")
	cmd.Env = append(os.Environ(), "BE_ROCL=1")
	receiver := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(receiver.Kill)
	c, far := open(t, sock), open(t, sock, rocl.WithTransports(tcp.New()))
	to := try.Get(c.Await(ctx, rocl.Match{"here": "yes"}, 1))(t)[0].ID
	unread := try.Get(c.Register(ctx, rocl.Attrs{"here": "unread"}))(t)
	sending, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan error, 2)
	for _, from := range []*rocl.Context{c, far} {
		r := try.Get(from.Register(ctx, nil))(t)
		go func() {
			pace := time.NewTicker(5 * time.Millisecond) // so that all of a second are kept until they are asked for
			defer pace.Stop()
			for sending.Err() == nil {
				err := r.SendBytes(sending, to, 5, []byte("text"))
				if from == c && err == nil {
					err = r.SendBytes(sending, unread.ID(), 6, nil)
				}
				if err != nil && sending.Err() == nil {
					sent <- err
					return
				}
				select {
				case <-pace.C:
				case <-sending.Done():
				}
			}
			sent <- nil
		}()
	}
	out, errOut, code := execute(ctx, nil, "trace", "here=yes|unread", "--every", "1", "--for", "1s", "--json", "--socket", sock)
	stop()
	try.Equal(t, code, 0, errOut)
	over := map[string]int{}
	for line := range strings.Lines(out) {
		var m rocl.Followed
		try.OK(t, json.Unmarshal([]byte(line), &m))
		over[fmt.Sprint(m.Transport, " ", m.State)]++
		switch {
		case m.To == unread.ID() && (m.Tag != 6 || m.Stored <= 0 || m.Handled != 0):
			t.Errorf("unread: %+v", m)
		case m.To == to && (m.Tag != 5 || m.Bytes != 4 || m.Travelled <= 0 || m.State == dispatch.Released && (m.Stored <= 0 || m.Handled <= 0)):
			t.Errorf("received: %+v", m)
		}
	}
	for _, want := range []string{"shm released", "tcp released", " stored"} {
		if over[want] == 0 {
			t.Errorf("no message %q: %v", want, slices.Sorted(maps.Keys(over)))
		}
	}
	for range 2 {
		try.OK(t, <-sent)
	}
	for _, x := range []struct {
		code int
		args []string
	}{
		{1, []string{"trace", "here=nobody"}},
		{1, []string{"trace", "here=yes", "--for", "10ms"}},
		{64, []string{"trace", "here=yes", "--for", "11m"}},
		{64, []string{"trace", "here=yes", "--every", "0"}},
	} {
		if _, errOut, code := execute(ctx, nil, append(x.args, "--socket", sock)...); code != x.code || errOut == "" {
			t.Errorf("%v: exit code %d: %s", x.args, code, errOut)
		}
	}
}
