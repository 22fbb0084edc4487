// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/programs"
)

// Prefixes of the elements of Member.Join that are not HOST:PORT.
const (
	srvPrefix  = "srv:"  // the name of SRV records follows
	execPrefix = "exec:" // a command follows
)

const (
	maxDNSName  = 255              // bytes of a name in DNS, with its last dot
	commandTime = 10 * time.Second // for a command: one that asks a cloud takes seconds
	mostPrinted = 64 << 10         // bytes that a command may print
	mostShown   = 200              // bytes of its output that an error shows
	mostLookups = 16               // of names under way, for one element
)

// IsJoin reports whether s is valid as an element of Member.Join.
func IsJoin(s string) bool {
	if name, ok := strings.CutPrefix(s, srvPrefix); ok {
		return name != "" && len(name) <= maxDNSName && !strings.ContainsAny(name, " \t\r\n/:")
	}
	if command, ok := strings.CutPrefix(s, execPrefix); ok {
		return len(strings.Fields(command)) > 0
	}
	return isAddress(s)
}

// places returns the HOST:PORT that an element of Config.Join stands for at present, in random
// order, mostAddresses at most.
func (c *core) places(ctx context.Context, join string) (at []string, err error) {
	if name, ok := strings.CutPrefix(join, srvPrefix); ok {
		at, err = c.records(ctx, name)
	} else if command, ok := strings.CutPrefix(join, execPrefix); ok {
		at, err = printed(ctx, command)
	} else {
		return []string{join}, nil
	}
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
	return at[:min(len(at), mostAddresses)], nil
}

// records returns the targets of SRV records. It ignores priorities and weights: all members are
// joined.
func (c *core) records(ctx context.Context, name string) (at []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.lookup)
	defer cancel()
	all, err := c.cfg.service(ctx, name)
	for _, r := range all {
		if place := net.JoinHostPort(r.Target, strconv.Itoa(int(r.Port))); r.Target != "." && isAddress(place) {
			at = append(at, place)
		}
	}
	if len(at) == 0 {
		return nil, fmt.Errorf("the SRV records of %s: %w", display.Quote(name), cmp.Or(err, errors.New("none has a target")))
	}
	return at, nil // err is of other records
}

// printed runs a command without a shell, and returns the HOST:PORT that it prints, separated by
// white space.
func printed(ctx context.Context, command string) (at []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the command %s: %w", display.Quote(command), err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	args := strings.Fields(command)
	cmd := exec.Command(args[0], args[1:]...)
	var out, errOut excerpt
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errOut, time.Second
	p, err := programs.Start(cmd)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = p.Signal(syscall.SIGKILL) })()
	err = p.Wait()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("it runs longer than %v: %w", commandTime, ctx.Err())
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, shown(errOut.b))
	case out.isCut:
		return nil, fmt.Errorf("it prints more than %d bytes", mostPrinted)
	}
	for _, b := range bytes.Fields(out.b) {
		if !isAddress(string(b)) {
			return nil, fmt.Errorf("it prints %s, which is not HOST:PORT", shown(b))
		}
		at = append(at, string(b))
	}
	if len(at) == 0 {
		return nil, errors.New("it prints no HOST:PORT")
	}
	return at, nil
}

// shown returns the beginning of an output, quoted.
func shown(b []byte) string {
	return display.Quote(string(bytes.TrimSpace(b[:min(len(b), mostShown)])))
}

// An excerpt keeps the first mostPrinted bytes that are written to it.
type excerpt struct {
	b     []byte
	isCut bool // more bytes were written
}

// Write always succeeds: a command that prints too much ends as if it had been read.
func (o *excerpt) Write(p []byte) (int, error) {
	n := min(len(p), mostPrinted-len(o.b))
	o.b, o.isCut = append(o.b, p[:n]...), o.isCut || n < len(p)
	return len(p), nil
}

// resolveAll looks the hosts of some HOST:PORT up. The time for all together is bounded. It returns
// an error only if no host has an address.
func (c *core) resolveAll(ctx context.Context, places []string) (to []netip.AddrPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.lookup)
	defer cancel()
	found, errs := make([][]netip.AddrPort, len(places)), make([]error, len(places))
	slots := make(chan struct{}, mostLookups)
	var busy sync.WaitGroup
	for i, at := range places {
		slots <- struct{}{}
		busy.Go(func() {
			found[i], errs[i] = c.resolveOne(ctx, at)
			<-slots
		})
	}
	busy.Wait()
	for _, f := range found {
		to = append(to, f...)
	}
	if len(to) == 0 {
		return nil, errors.Join(errs[:min(len(errs), mostNamed)]...)
	}
	return to, nil
}

// resolveOne looks the host of HOST:PORT up.
func (c *core) resolveOne(ctx context.Context, at string) (to []netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, err
	}
	ips, err := c.cfg.resolve(ctx, host)
	for _, ip := range ips {
		to = append(to, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return to, err
}
