// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/loglevel"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// What programs ask of the daemon is done at once: a level that is set holds for the next line, and
// the last lines are there.
//
// Promise (Commands): `rocl log level` changes what a running `dirserver` logs, by component, at
// once.
func TestControl(t *testing.T) {
	var b bytes.Buffer
	s := &config{format: setting{value: "text"}, level: slog.LevelInfo}
	ctl := &control{config: s, levels: loglevel.New(s.level), recent: new(recent)}
	log := s.logger(&b, ctl)
	do := func(what string, args ...string) string {
		t.Helper()
		return string(try.Get(json.Marshal(try.Get(ctl.do(t.Context(), what, args))(t)))(t))
	}
	log.Debug("cluster: one")
	try.Equal(t, do("log level", "cluster=debug"), `{"*":"info","cluster":"debug"}`)
	log.Debug("cluster: two")
	log.Debug("directory: three")
	log.Info("four")
	for _, text := range []string{b.String(), do("log")} {
		if strings.Contains(text, "one") || !strings.Contains(text, "cluster: two") || strings.Contains(text, "three") || !strings.Contains(text, "four") {
			t.Error(text)
		}
	}
	for what, want := range map[string]string{"config": `log-level`, "goroutines": "", "heap": ""} {
		if got := do(what); len(got) < 100 || !strings.Contains(got, want) {
			t.Errorf("%s: %s", what, got)
		}
	}
	if got := do("profile", "10ms"); len(got) < 10 {
		t.Error(got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ctl.do(ended, "profile", []string{"20s"}); err != nil { // ends with ctx
		t.Error(err)
	}
	for _, bad := range [][]string{{"profile"}, {"profile", "-1s"}, {"profile", "1h"}, {"log level", "cluster"}, {"sing"}} {
		if _, err := ctl.do(t.Context(), bad[0], bad[1:]); err == nil {
			t.Errorf("%q is done", bad)
		}
	}
}

// The kept lines are limited, and are the last ones.
func TestRecent(t *testing.T) {
	r := new(recent)
	line := []byte(strings.Repeat("x", 999) + "\n")
	for range 1000 {
		try.Get(r.Write(line))(t)
	}
	try.Get(r.Write([]byte("last\n")))(t)
	if s := r.String(); len(s) != mostRecent || !strings.HasSuffix(s, "last\n") || cap(r.b) > 4*mostRecent {
		t.Error(len(s), cap(r.b))
	}
}
