#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs before the package is removed, not before an upgrade.
set -e
case "$1" in
remove | 0)
    if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
        systemctl disable --now dirserver.service || true
    fi
    ;;
esac
