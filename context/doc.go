// SPDX-License-Identifier: Apache-2.0

// Package context joins the parts: a Context has ports on every transport, the
// resources registered through it, a client of the node's directory, and two
// caches that spare the directory almost every question (the paper's section
// 4.1): which context owns a resource, and under which addresses a context is
// reached. An entry is corrected when using it fails, not before.
//
// Users meet this package through its aliases in the root package rocl. The
// standard package of the same name is imported here as stdctx.
package context
