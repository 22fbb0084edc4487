// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"os"
	osignal "os/signal"
	"syscall"
	"time"
)

// exitTime is how long Run waits in the end for the messages of the task to be delivered.
const exitTime = 10 * time.Second

// errLateExit is the cause of the end of that time. It does not match context.DeadlineExceeded: the
// program has set no deadline.
var errLateExit = errors.New("tpvm: the virtual machine did not answer in time")

// Run is the body of main: it enrols a task, calls f, and makes the task exit when f returns. The
// context of f ends when another task kills this one, and when the process is interrupted or
// terminated. A second signal ends the process at once.
func Run(ctx context.Context, f func(ctx context.Context, t *Task) error, opts ...Option) error {
	ctx, stop := osignal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	t, err := Enrol(ctx, opts...)
	if err != nil {
		return err
	}
	err = f(ctx, t)
	end, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), exitTime, errLateExit)
	defer cancel()
	return errors.Join(err, t.Exit(end))
}
