// SPDX-License-Identifier: Apache-2.0

// Package words checks the words of the tree against rules. Its tests check the doc comments of
// exported names, openings and words that no sentence may use, links of documents and the names of
// Go in them, the width of comments, and the reasons beside the pauses of tests.
//
// The file todo.txt lists the files that do not follow the rules on words yet. If a listed file
// follows them, the test fails, so the list only gets shorter: "go test ./tests/words -update"
// removes such files.
package words
