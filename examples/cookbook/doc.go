// SPDX-License-Identifier: Apache-2.0

// Package cookbook has the recipes of docs/COOKBOOK.md. The document shows these functions as
// they are here, and the tests of this package run them.
package cookbook
