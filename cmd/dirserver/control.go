// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/loglevel"
)

// control is what programs of the node's user may ask of the daemon, over its Unix socket: 'rocl
// log level' and 'rocl debug' do.
type control struct {
	config *config
	levels *loglevel.Levels
	recent *recent
}

// maxProfile limits for how long the daemon's processor time is recorded.
const maxProfile = 30 * time.Second

// do carries out one request.
func (c *control) do(ctx context.Context, what string, args []string) (any, error) {
	switch what {
	case "log level": // the levels, after those in args have been set
		if err := c.levels.Set(args...); err != nil {
			return nil, err
		}
		return c.levels.All(), nil
	case "log": // the lines that were written last
		return c.recent.String(), nil
	case "config": // the settings; the files with secrets are named, and not read
		var b bytes.Buffer
		c.config.print(&b)
		return b.String(), nil
	case "goroutines", "heap":
		var b bytes.Buffer
		name, debug := "goroutine", 1
		if what == "heap" {
			name, debug = "heap", 0
		}
		if err := pprof.Lookup(name).WriteTo(&b, debug); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	case "profile": // of the processor time, for a duration
		return profile(ctx, strings.Join(args, " "))
	}
	return nil, fmt.Errorf("dirserver: %q is not known: this dirserver is older than the command", what)
}

// profile records where the daemon spends its processor time. Only one goroutine can record.
func profile(ctx context.Context, lasts string) ([]byte, error) {
	d, err := time.ParseDuration(lasts)
	if err != nil || d <= 0 || d > maxProfile {
		return nil, fmt.Errorf("dirserver: %q is not a duration of up to %v", lasts, maxProfile)
	}
	var b bytes.Buffer
	if err := pprof.StartCPUProfile(&b); err != nil {
		return nil, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	pprof.StopCPUProfile()
	return b.Bytes(), nil
}

// recent is a writer that keeps the last lines of the log.
type recent struct {
	mu sync.Mutex
	b  []byte
}

// mostRecent limits the bytes of the lines that are kept.
const mostRecent = 128 << 10

// Write keeps a line of the log, and forgets the oldest ones beyond the limit.
func (r *recent) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b = append(r.b, line...)
	if len(r.b) > 2*mostRecent {
		r.b = append(r.b[:0], r.b[len(r.b)-mostRecent:]...)
	}
	return len(line), nil
}

// String returns the lines, the first of which may lack its beginning.
func (r *recent) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.b[max(0, len(r.b)-mostRecent):])
}
