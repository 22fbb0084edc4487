// SPDX-License-Identifier: Apache-2.0

//go:build race || rocldebug

package rocl_test

const watched = true
