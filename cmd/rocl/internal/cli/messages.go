package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rocl-go/rocl"
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
		Long:  "Register a resource and print the messages sent to it, each as a line, or with --raw just as they are,\nuntil interrupted or --count messages have come.",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			l, err := attributes(args)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			c, err := rocl.Open(ctx, g.Options()...)
			if err != nil {
				return err
			}
			defer c.Close()
			r, err := c.Register(ctx, l)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "receiving as %v\n", r.ID())
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
		},
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
		Use:   "send name=value...",
		Short: "Send standard input to a resource, a message for each line",
		Long:  "Send standard input to one resource that has these attributes, a message for each line,\nor with --raw in pieces of up to 64 KiB as they are read.",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			l, err := attributes(args)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			c, err := rocl.Open(ctx, append(g.Options(), rocl.JoinOnly())...)
			if err != nil {
				return err
			}
			defer c.Close()
			to, err := findSoon(ctx, c, l, wait)
			if err != nil {
				return err
			}
			me, err := c.Register(ctx, rocl.Attrs{"type": "sender"})
			if err != nil {
				return err
			}
			var n, bytes int
			send := func(p []byte) error {
				n++
				bytes += len(p)
				return me.SendBytes(ctx, to.ID, tag, p)
			}
			// Reading, from a terminal say, cannot be interrupted; this command can.
			done := make(chan error, 1)
			go func() { done <- pieces(cmd.InOrStdin(), raw, send) }()
			select {
			case err = <-done:
			case <-ctx.Done():
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
			if err := c.Close(); err != nil { // waits until all has arrived
				return err
			}
			if g.JSON {
				return Print(cmd.OutOrStdout(), map[string]any{"to": to.ID, "messages": n, "bytes": bytes})
			}
			return nil
		},
	}
	cmd.Flags().Uint64Var(&tag, "tag", 0, "tag of the messages")
	cmd.Flags().BoolVar(&raw, "raw", false, "send the input as it is, not line by line")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for such a resource to appear")
	return cmd
}

// findSoon is Find that waits for the resource to appear.
func findSoon(ctx context.Context, c *rocl.Context, l *rocl.List, wait time.Duration) (rocl.Found, error) {
	f, err := c.Find(ctx, l)
	if wait <= 0 || !errors.Is(err, rocl.ErrNotFound) {
		return f, err
	}
	wctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for ev, err := range c.Watch(wctx, l) {
		if err != nil {
			break
		}
		if ev.Kind == rocl.Appeared {
			return ev.Found, nil
		}
	}
	return f, rocl.ErrNotFound
}

// pieces cuts the input into messages.
func pieces(r io.Reader, raw bool, send func([]byte) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	if raw {
		p := make([]byte, 64<<10)
		for {
			n, err := in.Read(p)
			if n > 0 {
				if err := send(p[:n]); err != nil {
					return err
				}
			}
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return fmt.Errorf("reading standard input: %w", err)
			}
		}
	}
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			if line[len(line)-1] == '\n' {
				line = line[:len(line)-1]
			}
			if err := send(line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
	}
}
