// SPDX-License-Identifier: Apache-2.0

// Package words checks the words of the tree against rules. Its tests check the doc comments of
// exported names, openings and words that no sentence may use, links of documents and the names of
// Go in them, the width of comments, and the reasons beside the pauses of tests.
package words
