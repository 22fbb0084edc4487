// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// notify sends a state to systemd, if systemd has started this process with Type=notify
// (sd_notify(3)).
func notify(log *slog.Logger, state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if name[0] == '@' {
		name = "\x00" + name[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_, err = c.Write([]byte(state))
		c.Close()
	}
	if err != nil {
		log.Warn("telling systemd", "state", state, "err", err)
	}
}

// watchdog returns the interval in which systemd expects a message of this process, or 0 for none.
func watchdog() time.Duration {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || us <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}
