// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/tpvm"
)

const aboutIDs = "Give the identifier as 'tpvm ps' prints it (1000005-11), or with the node or the first digits of the node in front\n" +
	"(2e49-1000005-11)."

func killCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kill ID...",
		Short: "End tasks, threads and programs",
		Long:  "Send SIGTERM to tasks and programs, and end threads, on whatever host.\n" + aboutIDs,
		Args:  atLeast(1, "an identifier, as 'tpvm ps' prints it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return signalAll(cmd, syscall.SIGTERM, args)
		},
	}
}

func sigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sig SIGNAL ID...",
		Short: "Send a signal to tasks and programs",
		Long:  "Send a signal, such as TERM, SIGTERM or 15, to tasks and programs on whatever host.\n" + aboutIDs,
		Args:  atLeast(2, "a signal and an identifier"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := parseSignal(args[0])
			if err != nil {
				return usage.Errorf("%w", err)
			}
			return signalAll(cmd, s, args[1:])
		},
	}
}

// parseSignal reads a signal's name or number.
func parseSignal(what string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(what); err == nil {
		if n < 1 || n > 64 {
			return 0, fmt.Errorf("signal %d is not between 1 and 64", n)
		}
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(what)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if s := signalNumber(name); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("there is no signal %s", usage.Quote(what))
}

func signalAll(cmd *cobra.Command, s syscall.Signal, ids []string) error {
	return observe(cmd, 0, func(ctx context.Context, t *tpvm.Task) error { return signalEach(ctx, t, s, ids) }, joinOnly())
}

// signalEach signals the tasks, threads and programs that ids name, and returns the errors of those
// that could not be signalled.
func signalEach(ctx context.Context, t *tpvm.Task, s syscall.Signal, ids []string) error {
	all, err := list(ctx, t)
	if err != nil {
		return err
	}
	var errs []error
	for _, what := range ids {
		id, err := resolve(all, what)
		if err == nil {
			err = t.Signal(ctx, id, s)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
