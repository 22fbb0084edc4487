// SPDX-License-Identifier: Apache-2.0

// Package election lets one process of many hold a name, with standbys behind it.
package election
