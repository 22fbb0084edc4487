// SPDX-License-Identifier: Apache-2.0

// Package posix has for tests what Unix systems have alike, and a form of it for Windows.
package posix
