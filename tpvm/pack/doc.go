// SPDX-License-Identifier: Apache-2.0

// Package pack packs values into messages and unpacks them, as PVM does.
package pack
