// SPDX-License-Identifier: Apache-2.0

// Package words holds the words of the tree to rules that a program can check. Its tests check
// the doc comments of exported names, openings and words that no sentence may use, links of
// documents, and the messages that docs/TROUBLESHOOTING.md explains.
//
// A file that does not follow the rules on words yet is in todo.txt. A file of that list that
// follows them fails the test, so the list only gets shorter: "go test ./tests/words -update"
// takes such files off.
package words
