// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// watchdog returns how often systemd wants to be told that this process is alive, 0 if it does not.
func watchdog() time.Duration {
	d, _ := daemon.SdWatchdogEnabled(false) // an error means that the variables are not systemd's
	return d
}

func tellSystemd(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}
