// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

type messageJSON struct {
	From rocl.GID `json:"from"`
	Tag  uint64   `json:"tag"`
	Data any      `json:"data"`
}

func recvCommand() *cobra.Command {
	var count int
	var raw bool
	cmd := &cobra.Command{
		Use:   "recv name=value...",
		Short: "Register a resource and print the messages sent to it",
		Long: "Register a resource and print the messages sent to it, each as a line, or with --raw just as they are,\nuntil interrupted or --count messages have come.\n" +
			"A line has quotes and escapes where a terminal would do anything else than show the message.\n" +
			"--timeout bounds how long it takes to register. Exit code 4 if the directory does not answer within it.",
		Args: someAttributes,
		RunE: of(ownAttributes, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			ctx := cmd.Context()
			if count < 0 {
				return usage.Errorf("--count %d is less than 0, and 0 means no end", count)
			}
			c, r, err := g.register(ctx, l)
			if err != nil {
				return err
			}
			defer c.Close()
			note(cmd, g, map[string]any{"receiving": r.ID()}, "receiving as %v", r.ID())
			out := cmd.OutOrStdout()
			n := 0
			for m, err := range r.Messages(ctx) {
				if err != nil {
					return err
				}
				switch {
				case g.JSON:
					err = Print(out, messageJSON{m.From(), m.Tag(), jsonBytes(m.Bytes())})
				case raw:
					_, err = out.Write(m.Bytes())
				default:
					_, err = fmt.Fprintln(out, display.Line(m.Bytes()))
				}
				m.Release()
				if err != nil {
					return err
				}
				if n++; n == count {
					break
				}
			}
			return c.Close()
		}),
	}
	cmd.Flags().IntVar(&count, "count", 0, "end after this many messages (0: never)")
	cmd.Flags().BoolVar(&raw, "raw", false, "print messages as they are, without newlines")
	return cmd
}

func sendCommand() *cobra.Command {
	var tag uint64
	var raw bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "send PATTERN...",
		Short: "Send standard input to a resource, a message for each line",
		Long: "Send standard input to one resource that has these attributes, a message for each line,\nor with --raw in pieces of up to 64 KiB as they are read.\n" +
			"--timeout bounds how long it takes to find the resource, and to deliver the last messages. With --wait the command\n" +
			"waits longer for the resource to appear, and for a directory.\n" +
			"Exit code 0 only if every message was delivered to the mailbox of the resource. Exit code 1 if no resource matches or a\nmessage was not delivered, with the number of those; 2 if no directory serves the node,\n" +
			"4 if the directory does not answer within --timeout.",
		Args: someAttributes,
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			ctx := cmd.Context()
			c, me, to, err := target(ctx, g, l, wait)
			if err != nil {
				return err
			}
			defer c.Close()
			g.logger().Debug("sending to", "id", to)
			var n, size, refused atomic.Int64
			send := func(p []byte) error {
				n.Add(1)
				size.Add(int64(len(p)))
				err := me.SendBytes(ctx, to, tag, p)
				if err != nil {
					refused.Add(1)
				}
				return err
			}
			_, err = interrupt.Read(ctx, func() (any, error) { return nil, pieces(cmd.InOrStdin(), raw, send) })
			undelivered, err := undelivered(ctx, g, me, to, err)
			undelivered += int(refused.Load())
			result := map[string]any{"to": to, "messages": n.Load(), "bytes": size.Load()}
			if undelivered > 0 {
				result["undelivered"] = undelivered
				err = fmt.Errorf("%d of %d messages were not delivered: %w", undelivered, n.Load(), err)
				if ctx.Err() != nil { // an interrupted command prints no error
					note(cmd, g, result, "rocl: %s", text(err))
				}
			}
			if g.JSON && (err == nil || undelivered > 0 && ctx.Err() == nil) {
				err = errors.Join(err, Print(cmd.OutOrStdout(), result))
			}
			cerr := c.Close()
			if undelivered > 0 { // otherwise Close would count them again
				return err
			}
			return errors.Join(err, cerr)
		}),
	}
	cmd.Flags().Uint64Var(&tag, "tag", 0, "tag of the messages")
	cmd.Flags().BoolVar(&raw, "raw", false, "send the input as it is, not line by line")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for such a resource, and for a directory, to appear")
	return cmd
}

// undelivered waits until the messages that me has sent are delivered. It returns how many were
// not, and why: err, with which sending ended, or the reason of the reports.
func undelivered(ctx context.Context, g Globals, me *rocl.Resource, to rocl.GID, err error) (int, error) {
	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.Timeout) // goes on after an interrupt
	defer cancel()
	ferr := me.Flush(fctx)
	var fe *rocl.FlushError
	if !errors.As(ferr, &fe) {
		return 0, cmp.Or(err, ferr)
	}
	var none *rocl.NoConnectionError
	if errors.As(ferr, &none) && fctx.Err() != nil { // otherwise the library has given the target up before
		ferr = &unreachableError{to, g.Timeout, none.Reason}
	} else if fctx.Err() != nil {
		ferr = fmt.Errorf("not acknowledged within %v: %w", g.Timeout, fe.Err)
	} else {
		ferr = fe.Err
	}
	return fe.Undelivered + fe.Waiting, cmp.Or(err, ferr)
}

// target opens a context, registers a resource to send from, and finds one to send to. It waits up
// to wait for a directory and for the target to appear.
func target(ctx context.Context, g Globals, l *rocl.List, wait time.Duration) (c *rocl.Context, me *rocl.Resource, to rocl.GID, err error) {
	if wait < 0 {
		return nil, nil, to, usage.Errorf("--wait %v is less than 0", wait)
	}
	late := time.Now().Add(wait)
	for {
		c, err = g.Open(ctx, rocl.JoinOnly(), rocl.WithLinger(min(g.Timeout, time.Second)))
		if !errors.Is(err, rocl.ErrNoDirectory) {
			break
		}
		g.logger().Debug("waiting for a directory", "err", err)
		if !pause(ctx, late) {
			break
		}
	}
	if err != nil {
		return nil, nil, to, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	p := g.withTimeout(ctx)
	defer p.stop()
	f, err := c.Find(p, l)
	if wait > 0 && errors.Is(err, rocl.ErrNotFound) {
		p.timer.Stop()
		f, err = appears(ctx, c, l, time.Until(late))
		p.timer.Reset(p.limit)
	}
	if err == nil {
		me, err = c.Register(p, rocl.Attrs{"type": "sender"})
	}
	return c, me, f.ID, p.err(err)
}

// pause waits a moment. It reports false if the time late has come or ctx has ended.
func pause(ctx context.Context, late time.Time) bool {
	rest := time.Until(late)
	if rest <= 0 {
		return false
	}
	select {
	case <-time.After(min(rest, 50*time.Millisecond)):
		return true
	case <-ctx.Done():
		return false
	}
}

// appears waits for a resource to appear.
func appears(ctx context.Context, c *rocl.Context, l *rocl.List, wait time.Duration) (rocl.Found, error) {
	wctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	found, err := c.Await(wctx, l, 1)
	if err != nil {
		return rocl.Found{}, rocl.ErrNotFound
	}
	return found[0], nil
}

// inputError returns an error of reading standard input, without the parts of its text that repeat
// that.
func inputError(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("reading standard input: %w", err)
}

// pieces cuts the input into messages and calls send with each.
func pieces(r io.Reader, raw bool, send func([]byte) error) error {
	in, buf := bufio.NewReaderSize(r, 64<<10), make([]byte, 64<<10)
	for {
		var p []byte
		var err error
		if raw {
			var n int
			n, err = in.Read(buf)
			p = buf[:n]
		} else {
			p, err = in.ReadBytes('\n')
		}
		if len(p) > 0 {
			if !raw {
				p = bytes.TrimSuffix(p, []byte("\n"))
			}
			if err := send(p); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return inputError(err)
		}
	}
}
