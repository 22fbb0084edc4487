// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// docs/GUARANTEES.md is what the command prints.
func TestPageIsPrinted(t *testing.T) {
	page, err := os.ReadFile("../../docs/GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := printPage(&printed, "../.."); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, printed.Bytes()) {
		t.Error("docs/GUARANTEES.md is not what the tests promise: run go run ./tests/guarantees > docs/GUARANTEES.md")
	}
}

// A promise without a known section, without a text, or away from a test is refused.
func TestFormOfPromise(t *testing.T) {
	for text, want := range map[string]int{
		"Promise (Calls): One. See also TestA,\nfolder: TestB.\n\nPromise (Keys): Two.\n": 2,
		"TestX does something.\n":      0,
		"Promise: One.\n":              -1,
		"Promise (Nothing): One.\n":    -1,
		"Promises are made elsewhere.": 0,
	} {
		found, err := promise{tests: []string{"TestX"}}.readComment(text)
		if want < 0 != (err != nil) || want >= 0 && len(found) != want {
			t.Errorf("%q: %v, %v", text, found, err)
		}
	}
}
