#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs after the package is removed. When dpkg purges it, and when rpm removes it, nothing stays.
set -e
case "$1" in
purge | 0)
    rm -rf "$DPKG_ROOT/run/rocl"
    if grep -qs '^rocl:' "$DPKG_ROOT/etc/passwd"; then
        userdel --prefix "$DPKG_ROOT/" rocl || true
    fi
    if grep -qs '^rocl:' "$DPKG_ROOT/etc/group"; then
        groupdel --prefix "$DPKG_ROOT/" rocl || true
    fi
    ;;
esac
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
