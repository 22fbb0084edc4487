// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl/internal/subprocess"
)

//go:embed pvm/pingpong.c
var pvmProgram []byte

// The paths of PVM 3.4 in Debian.
const (
	pvmRoot   = "/usr/lib/pvm3"
	pvmHeader = "/usr/include/pvm3.h"
)

// The targets of messages of tpvm beside those of PVM with direct route.
const (
	pvmPollMost  = 0.1
	pvmSleepMost = 1.0
	pvmBandLeast = 3.0
)

// errNoPVM is returned when PVM is not installed.
var errNoPVM = errors.New("PVM 3.4 is not installed (Debian: pvm, pvm-dev and gcc)")

// pvmFigures are the figures of PVM 3.4.
type pvmFigures struct {
	trip float64 // µs
	band float64 // bytes a second
}

// measurePVM runs a separate PVM daemon, and measures messages between two tasks.
func measurePVM(ctx context.Context, size, count, large, largeCount int) (f pvmFigures, err error) {
	gcc, err := exec.LookPath("gcc")
	daemon, err2 := exec.LookPath("pvmd")
	_, err3 := os.Stat(pvmHeader)
	if errors.Join(err, err2, err3) != nil {
		return f, errNoPVM
	}
	dir, err := os.MkdirTemp("", "rocl-bench-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	source, program := filepath.Join(dir, "pingpong.c"), filepath.Join(dir, "pingpong")
	if err := os.WriteFile(source, pvmProgram, 0o600); err != nil {
		return f, err
	}
	if out, err := exec.CommandContext(ctx, gcc, "-O2", "-o", program, source, "-lpvm3").CombinedOutput(); err != nil {
		return f, fmt.Errorf("compiling the program of PVM: %w: %s", err, out)
	}
	env := append(os.Environ(), "PVM_ROOT="+pvmRoot, "PVM_TMP="+dir, "PVM_ALLOW_ROOT=1", "PVM_ARCH=LINUX64", "HOME="+dir)
	cmd := exec.CommandContext(ctx, daemon)
	cmd.Env, cmd.Dir, cmd.Stderr = env, dir, io.Discard
	d, err := subprocess.Start(cmd)
	if err != nil {
		return f, fmt.Errorf("starting PVM's daemon: %w", err)
	}
	defer d.Kill() // in case the program has not halted the daemon
	for {
		if m, _ := filepath.Glob(filepath.Join(dir, "pvmd.*")); len(m) > 0 {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return f, fmt.Errorf("PVM's daemon: %w", ctx.Err())
		}
	}
	p := exec.CommandContext(ctx, program, program, strconv.Itoa(size), strconv.Itoa(count), strconv.Itoa(large), strconv.Itoa(largeCount))
	p.Env, p.Dir, p.Stderr = env, dir, os.Stderr
	out, err := p.Output()
	if fields := strings.Fields(string(out)); len(fields) == 2 {
		f.trip, err = strconv.ParseFloat(fields[0], 64)
		if err == nil {
			f.band, err = strconv.ParseFloat(fields[1], 64)
		}
		return f, err
	}
	return f, fmt.Errorf("the program of PVM says %q: %w", out, err)
}

// besidePVM compares the measured results with PVM.
func besidePVM(ctx context.Context, o *options, rs []*Result) ([]*Result, error) {
	f, err := measurePVM(ctx, o.size, min(o.count, 5000), tpvmLarge, 256)
	if errors.Is(err, errNoPVM) {
		rs[len(rs)-1].Extra = strings.TrimPrefix(rs[len(rs)-1].Extra+"; "+errNoPVM.Error(), "; ")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Result
	for _, r := range rs {
		c := *r
		c.Bench, c.What = strings.Replace(r.Bench, "tpvm", "tpvm beside PVM:", 1), "PVM 3.4, direct route"
		switch {
		case r.Bench == "tpvm tasks":
			c.Raw, c.RawP99, c.Target = f.trip, 0, pvmPollMost
			if r.Poll == "never" {
				c.Target = pvmSleepMost
			}
			c.Ratio = c.P50 / c.Raw
		case r.Bench == "tpvm bw":
			c.Raw, c.Target = f.band/1e9, pvmBandLeast
			c.Ratio = c.Rate / c.Raw
		default:
			continue
		}
		all = append(all, &c)
	}
	return all, nil
}
