// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// notify sends a state to systemd, if systemd has started this process with Type=notify
// (sd_notify(3)).
func notify(log *slog.Logger, state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		// Cause: `NOTIFY_SOCKET` cannot be written. Remedy: check `Type=notify` and
		// `NotifyAccess=`.
		log.Warn("telling systemd", "state", state, "err", err)
	}
}
