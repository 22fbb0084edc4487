#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs after the package is installed. The service is neither enabled nor started: a node needs no
# daemon. dpkg sets DPKG_ROOT if it installs into another root.
set -e
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers --root="${DPKG_ROOT:-/}" rocl.conf
    systemd-tmpfiles --root="${DPKG_ROOT:-/}" --create rocl.conf
fi
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
